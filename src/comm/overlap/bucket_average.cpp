#include "comm/overlap/bucket_average.hpp"

#include <utility>

namespace onebit::comm {
namespace {

template <class Exec, class On>
class AverageByTransport final : public BucketAverage<Exec> {
public:
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

}  // namespace

template <class Exec, class On>
std::unique_ptr<BucketAverage<Exec>> make_bucket_average(std::unique_ptr<Transport<On>> transport, std::size_t length,
                                                         DenseType type) {
  return std::make_unique<AverageByTransport<Exec, On>>(std::move(transport), length, type);
}

#define ONEBIT_INSTANTIATE(Exec)                                                                                \
  template std::unique_ptr<BucketAverage<Exec>> make_bucket_average(std::unique_ptr<Transport<Kokkos::Serial>>, \
                                                                    std::size_t, DenseType);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)
#ifdef ONEBIT_GPU
template std::unique_ptr<BucketAverage<GpuExec>> make_bucket_average(std::unique_ptr<Transport<GpuExec>>, std::size_t,
                                                                     DenseType);
#endif

}  // namespace onebit::comm
