#pragma once
/// \file bucket_average.hpp
/// The average of one bucket of a vector, which can go on beside the backward pass.

#include <algorithm>
#include <memory>
#include <type_traits>

#include "base/device/parallel.hpp"
#include "base/kokkos.hpp"
#include "base/timer.hpp"
#include "comm/dense_average.hpp"

namespace onebit::comm {

/// Where kernels that a second thread gives may run: those of OpenMP may come from one thread only.
template <class Exec>
using ForSecondThread = std::conditional_t<is_host<Exec>, Kokkos::Serial, Exec>;

/// Elements of a bucket of `bytes`, rounded up to whole blocks of `block_length` elements.
inline std::size_t bucket_length(std::size_t bytes) {
  return block_length * std::max<std::size_t>(1, block_count(bytes / sizeof(float)));
}

/// Averages the buckets of a vector, on the thread of OverlappedAverage. Each bucket takes three calls, which buckets
/// take in the same order. Other buckets may take theirs between them, so that messages of one travel while another is
/// computed.
template <class Exec>
class BucketAverage {
public:
  virtual ~BucketAverage() = default;

  /// Elements of every bucket but the last, which may be shorter.
  virtual std::size_t bucket_length() const = 0;
  /// Begins to average a bucket. \param bucket complete \param first its place in the vector
  virtual void begin(const Vector<Exec, float>& bucket, std::size_t first, PhaseTimes& times) = 0;
  /// Receives what other ranks send for this rank's share of the bucket, and sends its average.
  virtual void serve(std::size_t /*first*/, PhaseTimes& /*times*/) {}
  /// The bucket is averaged when this call returns.
  virtual void finish(std::size_t /*first*/, PhaseTimes& /*times*/) {}
  /// Of a transport of its own, if it has one. Must not be called beside an average.
  virtual Traffic traffic() const = 0;
  virtual Traffic traffic_within_host() const = 0;
};

/// Averages densely by `transport`, in place. A transport of Kokkos::Serial averages in host memory, through which GPU
/// memory is then staged: kernels of OpenMP may come from one thread only. On a GPU, copies and kernels have a stream
/// of their own.
/// \tparam On        Kokkos::Serial, or Exec if that is a GPU
/// \param  transport on a communicator that only this thread uses
/// \param  length    of a bucket
template <class Exec, class On>
std::unique_ptr<BucketAverage<Exec>> make_bucket_average(std::unique_ptr<Transport<On>> transport, std::size_t length,
                                                         DenseType type = DenseType::fp32);

}  // namespace onebit::comm
