#pragma once
/// \file overlapped_average.hpp
/// Averages beside the backward pass: a thread averages each bucket of a gradient as soon as it is complete, as in
/// PyTorch's DistributedDataParallel (Li et al., VLDB 2020).

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

  OverlappedAverage();
  /// Waits for the buckets in flight.
  ~OverlappedAverage();
  OverlappedAverage(const OverlappedAverage&) = delete;
  OverlappedAverage& operator=(const OverlappedAverage&) = delete;

  /// Begins an average. The last one must have ended. \param values (d), none complete yet
  void start(const Exec& exec, BucketAverage<Exec>& average, const Vector<Exec, float>& values, BeforeBucket before);
  /// Says that elements [b, d) are complete when the kernels in `exec` are done.
  void ready_from(std::size_t b);
  /// Waits for the average of all of `values`, and adds this time to `Phase::allreduce`. All elements count as
  /// complete, so a rank that failed does not leave others waiting.
  /// \returns seconds of the average since `start` in which the caller did not wait
  /// \throws what the thread threw; other ranks may then wait for this one
  double finish(PhaseTimes& times);

private:
  std::size_t begin_of(std::size_t bucket) const { return bucket * m_bucket_length; }
  /// The bucket at a place in the order.
  std::size_t bucket_at(std::size_t place) const { return m_buckets - 1 - place; }
  /// Whether the thread may begin the next bucket. Needs the lock.
  bool may_begin() const { return m_begun < m_buckets && m_ready_from <= begin_of(bucket_at(m_begun)); }
  void run();
  /// Begins the next bucket, if it may begin, and takes others on. Holds the lock only while it reads and writes what
  /// is shared.
  void take_turn(std::unique_lock<std::mutex>& lock);
  /// Begins a bucket. \returns how many have then become averaged
  std::size_t begin(std::size_t bucket);

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
