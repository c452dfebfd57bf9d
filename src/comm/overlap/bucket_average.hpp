#pragma once
/// \file bucket_average.hpp
/// The average of one bucket of a vector, which can go on beside the backward pass.

#include <algorithm>
#include <memory>
#include <type_traits>
#include <utility>

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
/// \tparam On Kokkos::Serial, or Exec if that is a GPU
template <class Exec, class On>
class AverageByTransport final : public BucketAverage<Exec> {
public:
  /// \param transport on a communicator that only this thread uses \param length of a bucket
  AverageByTransport(std::unique_ptr<Transport<On>> transport, std::size_t length, DenseType type)
      : m_transport(std::move(transport)), m_length(length), m_average(*m_transport, type) {}

  std::size_t bucket_length() const override { return m_length; }
  /// Averages all of it.
  void begin(const Vector<Exec, float>& bucket, std::size_t /*first*/, PhaseTimes& times) override {
    const std::size_t length = bucket.extent(0);
    if constexpr (is_host<Exec> == is_host<On>) {
      m_average(m_instance.get(), Vector<On, float>(bucket.data(), length), times);
    } else {
      if (m_staging.extent(0) < length)
        m_staging = HostBucket(Kokkos::view_alloc("OneBit::comm::bucket", Kokkos::WithoutInitializing), length);
      const auto staged = Kokkos::subview(m_staging, std::make_pair(std::size_t{0}, length));
      Kokkos::deep_copy(m_copies.get(), staged, bucket);
      fence(m_copies.get(), "OneBit::comm::staged_bucket");
      m_average(m_instance.get(), Vector<On, float>(staged.data(), length), times);
      Kokkos::deep_copy(m_copies.get(), bucket, staged);
      fence(m_copies.get(), "OneBit::comm::unstaged_bucket");
    }
  }
  Traffic traffic() const override { return m_transport->traffic(); }
  Traffic traffic_within_host() const override { return m_transport->traffic_within_host(); }

private:
  using HostBucket = Kokkos::View<float*, Kokkos::LayoutRight, StagingSpace<Exec>>;

  std::unique_ptr<Transport<On>> m_transport;
  std::size_t m_length;
  DenseAverage<On> m_average;
  InstanceOfItsOwn<On> m_instance;
  InstanceOfItsOwn<std::conditional_t<is_host<On>, Exec, Kokkos::Serial>> m_copies;  ///< between device and host
  HostBucket m_staging;  ///< (longest bucket) for device memory on a host transport
};

/// \param transport, length, type as of AverageByTransport
template <class Exec, class On>
std::unique_ptr<BucketAverage<Exec>> make_bucket_average(std::unique_ptr<Transport<On>> transport, std::size_t length,
                                                         DenseType type = DenseType::fp32) {
  return std::make_unique<AverageByTransport<Exec, On>>(std::move(transport), length, type);
}

}  // namespace onebit::comm
