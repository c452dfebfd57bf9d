#pragma once
/// \file overlapped_average.hpp
/// The dense average of a gradient while the backward pass still computes the rest of it, as PyTorch's
/// DistributedDataParallel does (Li et al., VLDB 2020): the gradient is cut into buckets, and a thread of its own averages
/// each as soon as it is final.

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

/// Averages a vector in place from its end to its beginning, the same buckets on every rank.
///
/// The thread works in host memory on the Serial backend: others, such as OpenMP, take kernels from one thread alone.
/// Device memory is staged on an instance of its own, so that copies run beside the backward pass.
/// Between `start` and the end of `wait` no other thread of this rank may call MPI.
template <class Exec>
class OverlappedAverage {
public:
  using HostTransport = Transport<Kokkos::Serial>;
  /// Called on the calling thread for each bucket [begin, end) before it is averaged, when its elements are final and all
  /// kernels have been waited for.
  using BeforeBucket = std::function<void(std::size_t begin, std::size_t end)>;

  /// \param transport    on a communicator that nothing else uses
  /// \param length       d, elements of the vectors
  /// \param bucket_bytes of one bucket, rounded up to whole pieces (base/parallel.hpp); the last one may be shorter
  OverlappedAverage(std::unique_ptr<HostTransport> transport, int ranks, std::size_t length, std::size_t bucket_bytes);
  /// Ends the thread when the bucket that it is at is done.
  ~OverlappedAverage();
  OverlappedAverage(const OverlappedAverage&) = delete;
  OverlappedAverage& operator=(const OverlappedAverage&) = delete;

  /// Whether there is more than one bucket of so many bytes, so that one can be averaged before the last is final.
  static bool worthwhile(std::size_t length, std::size_t bucket_bytes) { return length > bucket_length(bucket_bytes); }

  /// Begins an average of `values` (d), none of which is final yet.
  void start(const Exec& exec, const Vector<Exec, float>& values, BeforeBucket before);
  /// Elements [b, d) are final once the kernels in `exec` are done. Fences if that completes a bucket.
  void final_from(std::size_t b);
  /// Hands over what is left, whether it was said to be final or not, so that a rank that failed keeps no other waiting.
  /// Returns when all of `values` is averaged. Adds the time that it takes to `Phase::allreduce`.
  /// \returns seconds of the average that were hidden behind what happened since `start`
  /// \throws what the thread threw; other ranks may wait for this one then
  double wait(PhaseTimes& times);

  /// Not to be looked at between `start` and the end of `wait`.
  const HostTransport& transport() const { return *m_transport; }

private:
  static std::size_t bucket_length(std::size_t bytes) {
    return piece_length * std::max<std::size_t>(1, piece_count(bytes / sizeof(float)));
  }
  void run();
  void average_bucket(std::size_t begin, std::size_t end);

  std::unique_ptr<HostTransport> m_transport;
  int m_ranks;
  std::size_t m_length, m_bucket_length;
  InstanceOfItsOwn<Exec> m_copies;                                          ///< copies between device and host
  Kokkos::View<float*, Kokkos::LayoutRight, StagingSpace<Exec>> m_staging;  ///< (bucket), for device memory alone

  // Of the average that is under way.
  Exec m_exec;
  Vector<Exec, float> m_values;
  BeforeBucket m_before;
  PhaseTimes m_thread_times;  ///< of the thread, which alone uses it while it has buckets

  // Shared with the thread. Buckets are done from the last one, at the end of the vector, to the first.
  std::mutex m_mutex;
  std::condition_variable m_changed;
  std::size_t m_final_begin = 0;     ///< elements from here on were handed over
  std::size_t m_averaged_begin = 0;  ///< elements from here on are averaged
  std::exception_ptr m_error;
  bool m_ends = false;

  std::thread m_thread;  ///< last, so that it begins when all else is there
};

}  // namespace onebit::comm
