#pragma once
/// \file overlapped_average.hpp
/// Averages beside the computation: a thread averages each bucket of a gradient as soon as it is final, as in PyTorch's
/// DistributedDataParallel (Li et al., VLDB 2020). What the backward pass leaves over may go on during the next forward
/// pass, the first layers' buckets first, as in ByteScheduler (Peng et al., SOSP 2019).

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/device/parallel.hpp"
#include "base/timer.hpp"
#include "comm/overlap/bucket_pipeline.hpp"
#include "comm/overlap/event.hpp"

namespace onebit::comm {

/// Averages a vector in place, in buckets. This class says which bucket is averaged when; BucketAverage averages it.
///
/// The order is the same on every rank. A backward pass computes the vector from its end to its beginning, so the
/// `early` last buckets come first, from the end on. The others come after the backward pass, from the beginning on,
/// because a forward pass needs them in this order.
///
/// On a GPU the thread waits for an event at which the bucket is final. The caller waits for nothing, so the backward
/// pass goes on without a gap. No other thread of this rank may call MPI between `start` and the end of `wait`; what
/// the caller must ask the other ranks meanwhile, the thread asks for it (`when_final`).
template <class Exec>
class OverlappedAverage {
public:
  /// Called on the caller's thread for each bucket [begin, end). What it gives to the instance of `start` sees the
  /// bucket before it is averaged.
  using BeforeBucket = std::function<void(std::size_t begin, std::size_t end)>;

  /// \param length       d, elements of the vectors
  /// \param bucket_bytes rounded up to whole blocks of `block_length` elements (base/device/parallel.hpp)
  OverlappedAverage(std::shared_ptr<BucketAverage<Exec>> average, std::size_t length, std::size_t bucket_bytes);
  /// Waits for the buckets under way.
  ~OverlappedAverage();
  OverlappedAverage(const OverlappedAverage&) = delete;
  OverlappedAverage& operator=(const OverlappedAverage&) = delete;

  /// Whether there is more than one bucket, so that one can be averaged during the backward pass.
  static bool worthwhile(std::size_t length, std::size_t bucket_bytes) { return length > bucket_length(bucket_bytes); }

  /// Begins the average of step `step`. The last one must have ended. \param values (d), none final yet
  void start(const Exec& exec, const Vector<Exec, float>& values, long step, BeforeBucket before);
  /// Says that elements [b, d) are final when the kernels in `exec` are done.
  void final_from(std::size_t b);
  /// Says that all elements are final, and lets the thread call `work` between its turns until that returns true.
  /// `work` may call MPI, and must not wait for other ranks. \throws what `work` throws, and as `wait`
  void when_final(const std::function<bool()>& work);
  /// Waits for the average of elements [0, e) and adds this time to `Phase::allreduce`. All elements count as final, so
  /// a rank that failed does not leave others waiting. \throws as `wait`
  void wait_until(std::size_t e, PhaseTimes& times);
  /// Waits for the average of all of `values`, as `wait_until` does. \returns seconds of the average since `start` in
  /// which the caller did not wait \throws what the thread threw; other ranks may then wait for this one
  double wait(PhaseTimes& times);

  /// Sets how many buckets are early: at first all. Between `wait` and `start` only, and on every rank alike. The bits
  /// of the averages do not depend on it.
  void set_early(std::size_t early) {
    const std::lock_guard<std::mutex> lock(m_mutex);
    m_early = early;
  }
  /// The number of early buckets that suits this rank: those that were averaged when all elements were final, and one
  /// more if all that were early were. The network is then free for the others. To be called in or after `when_final`.
  std::size_t best_early() const { return std::min(m_averaged_early + (m_averaged_early == m_early), size()); }

  /// Must not be called between `start` and the end of `wait`.
  Traffic traffic() const { return m_average->traffic(); }
  Traffic traffic_within_host() const { return m_average->traffic_within_host(); }

private:
  std::size_t size() const { return m_final.size(); }
  std::size_t begin_of(std::size_t bucket) const { return bucket * m_bucket_length; }
  std::size_t end_of(std::size_t bucket) const { return std::min(begin_of(bucket + 1), m_length); }
  /// The bucket at a place in the order.
  std::size_t bucket_at(std::size_t place) const { return place < m_early ? size() - 1 - place : place - m_early; }
  /// Places in the order after which elements [0, e) are averaged.
  std::size_t places_for(std::size_t e) const;
  /// Whether the thread may begin the next bucket. Needs the lock.
  bool may_begin() const;
  void run();
  /// Calls the work of `when_final`. These two hold the lock only while they read and write what is shared.
  void do_work(std::unique_lock<std::mutex>& lock);
  /// Begins the next bucket, if it may begin, and takes others on.
  void take_turn(std::unique_lock<std::mutex>& lock);
  /// Begins a bucket. \returns how many have then become averaged
  std::size_t begin(std::size_t bucket);

  std::shared_ptr<BucketAverage<Exec>> m_average;
  std::size_t m_length, m_bucket_length;
  std::vector<Event<Exec>> m_final;  ///< (buckets) when each bucket is final

  // The average under way.
  Exec m_exec;
  Vector<Exec, float> m_values;
  long m_step = 0;
  BeforeBucket m_before;
  PhaseTimes m_thread_times;  ///< used by the thread only while it has buckets
  double m_exposed = 0;       ///< seconds that the caller has waited
  BucketPipeline<Exec> m_pipeline;

  // Shared with the thread.
  std::mutex m_mutex;
  std::condition_variable m_changed;
  std::size_t m_final_begin = 0;                  ///< first element of the buckets with an event
  std::size_t m_early;                            ///< buckets that come first
  std::size_t m_begun, m_averaged;                ///< buckets, in their order
  std::size_t m_averaged_early = 0;               ///< of them, when all elements were final
  const std::function<bool()>* m_work = nullptr;  ///< of `when_final`; null when it is done
  std::exception_ptr m_error;
  bool m_ends = false;

  std::thread m_thread;  ///< last, because it uses the others
};

}  // namespace onebit::comm
