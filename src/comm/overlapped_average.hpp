#pragma once
/// \file overlapped_average.hpp
/// The dense average of a gradient during the backward pass, as in PyTorch's DistributedDataParallel (Li et al., VLDB
/// 2020): a thread averages each bucket of the gradient as soon as it is final.

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/parallel.hpp"
#include "base/timer.hpp"
#include "comm/bucket_pipeline.hpp"
#include "comm/event.hpp"

namespace onebit::comm {

/// Averages a vector in place, in buckets from its end to its beginning. This class says which bucket is averaged when;
/// BucketAverage averages it.
///
/// On a GPU the thread waits for an event at which the bucket is final. The caller waits for nothing, so the backward
/// pass goes on without a gap. No other thread of this rank may call MPI between `start` and the end of `wait`.
template <class Exec>
class OverlappedAverage {
public:
  /// Called on the caller's thread for each bucket [begin, end). What it gives to the instance of `start` sees the
  /// bucket before it is averaged.
  using BeforeBucket = std::function<void(std::size_t begin, std::size_t end)>;

  /// \param length       d, elements of the vectors
  /// \param bucket_bytes rounded up to whole blocks of `block_length` elements (base/parallel.hpp)
  OverlappedAverage(std::shared_ptr<BucketAverage<Exec>> average, std::size_t length, std::size_t bucket_bytes);
  /// Waits for the buckets under way.
  ~OverlappedAverage();
  OverlappedAverage(const OverlappedAverage&) = delete;
  OverlappedAverage& operator=(const OverlappedAverage&) = delete;

  /// Whether there is more than one bucket, so that one can be averaged during the backward pass.
  static bool worthwhile(std::size_t length, std::size_t bucket_bytes) { return length > bucket_length(bucket_bytes); }

  /// Begins the average of step `step`. \param values (d), none final yet
  void start(const Exec& exec, const Vector<Exec, float>& values, long step, BeforeBucket before);
  /// Says that elements [b, d) are final when the kernels in `exec` are done.
  void final_from(std::size_t b);
  /// Waits for the average of all of `values` and adds this time to `Phase::allreduce`. All elements count as final, so
  /// a rank that failed does not leave others waiting.
  /// \returns seconds of the average that were hidden behind the work since `start`
  /// \throws what the thread threw; other ranks may then wait for this one
  double wait(PhaseTimes& times);

  /// Must not be called between `start` and the end of `wait`.
  Traffic traffic() const { return m_average->traffic(); }
  Traffic traffic_within_host() const { return m_average->traffic_within_host(); }

private:
  /// First element of the bucket whose end is `end`.
  std::size_t begin_of(std::size_t end) const { return (end - 1) / m_bucket_length * m_bucket_length; }
  void run();
  /// Begins the next bucket if it is final, and takes others on. \returns the first element of one that finished
  std::optional<std::size_t> take_turn(std::size_t final_begin);

  std::shared_ptr<BucketAverage<Exec>> m_average;
  std::size_t m_length, m_bucket_length;
  std::vector<Event<Exec>> m_final;  ///< (buckets) when each bucket is final

  // The average under way.
  Exec m_exec;
  Vector<Exec, float> m_values;
  long m_step = 0;
  BeforeBucket m_before;
  PhaseTimes m_thread_times;      ///< used by the thread only while it has buckets
  std::size_t m_begun_begin = 0;  ///< first element of the buckets that the thread has begun to average
  BucketPipeline<Exec> m_pipeline;

  // Shared with the thread. The last bucket, at the end of the vector, comes first.
  std::mutex m_mutex;
  std::condition_variable m_changed;
  std::size_t m_final_begin = 0;     ///< first element of the buckets with an event
  std::size_t m_averaged_begin = 0;  ///< first element that is averaged
  std::exception_ptr m_error;
  bool m_ends = false;

  std::thread m_thread;  ///< last, because it uses the others
};

}  // namespace onebit::comm
