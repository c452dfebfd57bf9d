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
#include <thread>

#include "base/kokkos.hpp"
#include "base/parallel.hpp"
#include "base/timer.hpp"
#include "comm/transport.hpp"

namespace onebit::comm {

/// Averages a vector in place, in buckets from its end to its beginning.
///
/// The thread works in host memory on the Serial backend, because other backends (OpenMP) take kernels from one thread
/// only. Device memory is staged on an instance of its own, so that copies overlap with the backward pass. No other
/// thread of this rank may call MPI between `start` and the end of `wait`.
template <class Exec>
class OverlappedAverage {
public:
  using HostTransport = Transport<Kokkos::Serial>;
  /// Called on the caller's thread for each bucket [begin, end) before it is averaged, after a fence.
  using BeforeBucket = std::function<void(std::size_t begin, std::size_t end)>;

  /// \param transport    on a communicator that nothing else uses
  /// \param length       d, elements of the vectors
  /// \param bucket_bytes rounded up to whole blocks of `block_length` elements (base/parallel.hpp)
  OverlappedAverage(std::unique_ptr<HostTransport> transport, int ranks, std::size_t length, std::size_t bucket_bytes);
  /// Waits for the bucket under way.
  ~OverlappedAverage();
  OverlappedAverage(const OverlappedAverage&) = delete;
  OverlappedAverage& operator=(const OverlappedAverage&) = delete;

  /// Whether there is more than one bucket, so that one can be averaged during the backward pass.
  static bool worthwhile(std::size_t length, std::size_t bucket_bytes) { return length > bucket_length(bucket_bytes); }

  /// Begins an average. \param values (d), none final yet
  void start(const Exec& exec, const Vector<Exec, float>& values, BeforeBucket before);
  /// Says that elements [b, d) are final when the kernels in `exec` are done. Fences if this completes a bucket.
  void final_from(std::size_t b);
  /// Waits for the average of all of `values` and adds this time to `Phase::allreduce`. All elements count as final, so
  /// a rank that failed does not leave others waiting.
  /// \returns seconds of the average that were hidden behind the work since `start`
  /// \throws what the thread threw; other ranks may then wait for this one
  double wait(PhaseTimes& times);

  /// Must not be used between `start` and the end of `wait`.
  const HostTransport& transport() const { return *m_transport; }

private:
  static std::size_t bucket_length(std::size_t bytes) {
    return block_length * std::max<std::size_t>(1, block_count(bytes / sizeof(float)));
  }
  void run();
  void average_bucket(std::size_t begin, std::size_t end);

  std::unique_ptr<HostTransport> m_transport;
  int m_ranks;
  std::size_t m_length, m_bucket_length;
  InstanceOfItsOwn<Exec> m_copies;                                          ///< copies between device and host
  Kokkos::View<float*, Kokkos::LayoutRight, StagingSpace<Exec>> m_staging;  ///< (bucket); empty on host backends

  // The average under way.
  Exec m_exec;
  Vector<Exec, float> m_values;
  BeforeBucket m_before;
  PhaseTimes m_thread_times;  ///< used by the thread only while it has buckets

  // Shared with the thread. The last bucket, at the end of the vector, comes first.
  std::mutex m_mutex;
  std::condition_variable m_changed;
  std::size_t m_final_begin = 0;     ///< first element that is final
  std::size_t m_averaged_begin = 0;  ///< first element that is averaged
  std::exception_ptr m_error;
  bool m_ends = false;

  std::thread m_thread;  ///< last, because it uses the others
};

}  // namespace onebit::comm
