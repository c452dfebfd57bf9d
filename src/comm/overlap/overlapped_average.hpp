#pragma once
/// \file overlapped_average.hpp
/// Averages beside the backward pass: a thread averages each bucket of a gradient as soon as it is complete, as in
/// PyTorch's DistributedDataParallel (Li et al., VLDB 2020).

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/device/parallel.hpp"
#include "base/system/activity.hpp"
#include "base/system/affinity.hpp"
#include "base/timer.hpp"
#include "comm/overlap/bucket_pipeline.hpp"
#include "comm/overlap/event.hpp"

namespace onebit::comm {

/// The thread, and what it shares with the thread that computes. BucketAverage averages a bucket; this class says when.
///
/// The order is the same on every rank: a backward pass computes a gradient from its end to its beginning, so the last
/// bucket comes first.
///
/// On a GPU the thread waits for an event at which the bucket is complete. The caller waits for nothing, so the
/// backward pass goes on without a gap. No other thread of this rank may call MPI between `start` and the end of
/// `finish`.
template <class Exec>
class OverlappedAverage {
public:
  /// Called on the caller's thread for each bucket [begin, end). What it gives to the instance of `start` sees the
  /// bucket before it is averaged.
  using BeforeBucket = std::function<void(std::size_t begin, std::size_t end)>;

  OverlappedAverage() : m_thread([this] { run(); }) {}
  /// Waits for the buckets in flight.
  ~OverlappedAverage() {
    {
      const std::lock_guard<std::mutex> lock(m_mutex);
      m_ends = true;
    }
    m_changed.notify_all();
    m_thread.join();
  }

  OverlappedAverage(const OverlappedAverage&) = delete;
  OverlappedAverage& operator=(const OverlappedAverage&) = delete;

  /// Begins an average. The last one must have ended. \param values (d), none complete yet
  void start(const Exec& exec, BucketAverage<Exec>& average, const Vector<Exec, float>& values, BeforeBucket before) {
    m_exec = exec;
    m_values = values;
    m_before = std::move(before);
    m_bucket_length = average.bucket_length();
    const std::size_t buckets = (values.extent(0) + m_bucket_length - 1) / m_bucket_length;
    if (m_complete.size() < buckets) m_complete = std::vector<Event<Exec>>(buckets);
    m_thread_times.clear();
    m_pipeline = BucketPipeline<Exec>(average);
    const std::lock_guard<std::mutex> lock(m_mutex);
    m_buckets = buckets;
    m_ready_from = values.extent(0);
    m_begun = m_averaged = 0;
  }

  /// Says that elements [b, d) are complete when the kernels in `exec` are done.
  void ready_from(std::size_t b) {
    // Only this thread writes m_ready_from.
    while (m_ready_from > 0) {
      const std::size_t bucket = (m_ready_from - 1) / m_bucket_length, begin = begin_of(bucket);
      if (begin < b) return;
      m_before(begin, m_ready_from);  // gives kernels that read the bucket, so the event comes after them
      m_complete[bucket].record(m_exec);
      {
        const std::lock_guard<std::mutex> lock(m_mutex);
        m_ready_from = begin;
      }
      m_changed.notify_all();
    }
  }

  /// Waits for the average of all of `values`, and adds this time to `Phase::allreduce`. All elements count as
  /// complete, so a rank that failed does not leave others waiting.
  /// \returns seconds of the average since `start` in which the caller did not wait
  /// \throws what the thread threw; other ranks may then wait for this one
  double finish(PhaseTimes& times) {
    ready_from(0);
    const Stopwatch watch;
    const Activity activity("OneBit::comm::buckets", waits_for_ranks);
    {
      std::unique_lock<std::mutex> lock(m_mutex);
      m_changed.wait(lock, [&] { return m_averaged == m_buckets || m_error; });
      if (m_error) std::rethrow_exception(m_error);
    }
    const double waited = watch.seconds();
    times.add(Phase::allreduce, waited);
    return std::max(0.0, m_thread_times[Phase::allreduce] - waited);
  }

private:
  std::size_t begin_of(std::size_t bucket) const { return bucket * m_bucket_length; }
  /// The bucket at a place in the order.
  std::size_t bucket_at(std::size_t place) const { return m_buckets - 1 - place; }
  /// Whether the thread may begin the next bucket. Needs the lock.
  bool may_begin() const { return m_begun < m_buckets && m_ready_from <= begin_of(bucket_at(m_begun)); }

  void run() {
    leave_first_place();    // where the caller computes
    Activity::help();       // for the watchdog, the caller's wait goes on as long as buckets do
    use_device_of(Exec());  // start() may write m_exec now
    std::unique_lock<std::mutex> lock(m_mutex);
    for (;;) {
      // The thread never sleeps while messages are under way: MPI may need its calls to send the rest of them.
      m_changed.wait(lock, [&] { return m_ends || may_begin() || m_averaged < m_begun; });
      if (m_ends && m_averaged == m_begun) return;
      try {
        take_turn(lock);
      } catch (...) {
        if (!lock.owns_lock()) lock.lock();
        m_error = std::current_exception();
        m_changed.notify_all();
        return;
      }
    }
  }

  /// Begins the next bucket, if it may begin, and takes others on. Holds the lock only while it reads and writes what
  /// is shared.
  void take_turn(std::unique_lock<std::mutex>& lock) {
    const bool begins = !m_ends && may_begin();
    const std::size_t place = m_begun;
    if (begins) ++m_begun;
    lock.unlock();
    const std::size_t averaged = begins ? begin(bucket_at(place)) : m_pipeline.advance(m_thread_times) ? 1 : 0;
    lock.lock();
    m_averaged += averaged;
    if (averaged > 0) m_changed.notify_all();
  }

  /// Begins a bucket. \returns how many have then become averaged
  std::size_t begin(std::size_t bucket) {
    const Region region("OneBit::comm::bucket");
    std::size_t averaged = 0;
    // On a GPU, kernels of the backward pass may be left to run before the bucket is complete.
    const Event<Exec>& is_complete = m_complete[bucket];
    while (!m_pipeline.empty() && !is_complete.has_happened())
      if (m_pipeline.advance(m_thread_times)) ++averaged;
    is_complete.wait();
    const std::size_t first = begin_of(bucket), end = std::min(first + m_bucket_length, m_values.extent(0));
    if (m_pipeline.begin(Kokkos::subview(m_values, std::make_pair(first, end)), first, m_thread_times)) ++averaged;
    return averaged;
  }

  // The average under way; the thread is idle when these change.
  Exec m_exec;
  Vector<Exec, float> m_values;
  BeforeBucket m_before;
  std::size_t m_bucket_length = 0;
  std::vector<Event<Exec>> m_complete;  ///< (buckets of the longest average) when each bucket is complete
  PhaseTimes m_thread_times;            ///< used by the thread only while it has buckets
  BucketPipeline<Exec> m_pipeline;

  // Shared with the thread.
  std::mutex m_mutex;
  std::condition_variable m_changed;
  std::size_t m_buckets = 0, m_begun = 0, m_averaged = 0;
  std::size_t m_ready_from = 0;  ///< first element of the buckets with an event
  std::exception_ptr m_error;
  bool m_ends = false;

  std::thread m_thread;  ///< last, because it uses the others
};

}  // namespace onebit::comm
