/// \file transfer_test.cpp
/// Exchanges through staging buffers, on any backend, give the bits of those without; and repeated exchanges allocate
/// nothing.

#include <atomic>
#include <memory>

#include "../support.hpp"
#include "base/mpi.hpp"
#include "comm/compressed_average.hpp"
#include "comm/overlap/overlapped_average.hpp"

namespace onebit::comm {
namespace {

template <class Exec>
std::unique_ptr<Transport<Exec>> transport_by(const Communicator& world, Exchange exchange) {
  return make_transport<Exec>(TransportKind::automatic, world, exchange);
}

std::vector<float> vector_of(int rank, int round, std::size_t length) {
  return test::random_values(length, static_cast<std::uint64_t>(100 * round + rank));
}

template <class Exec>
class Transfers : public ::testing::Test {
protected:
  const Communicator world;
  const Exec exec{};
  PhaseTimes times;

  compress::Layout layout(std::size_t length) const { return {length, world.size(), compress::Grouping::chunk}; }
};
TYPED_TEST_SUITE(Transfers, test::Backends, test::BackendNames);

TYPED_TEST(Transfers, staged_exchanges_give_the_same_bits) {
  for (Exchange exchange : {Exchange{}, Exchange{1024}, Exchange{0, false, true}})
    for (const std::size_t length : {1, 33, 1000, 1200007}) {
      SCOPED_TRACE(::testing::Message() << exchange.message_bytes << " bytes a message, grid " << exchange.grid
                                        << ", length " << length);
      std::vector<float> dense[2], compressed[2], scattered[2];
      std::uint64_t bytes[2];
      for (const bool staged : {false, true}) {
        exchange.stages_host = staged;
        const auto transport = transport_by<TypeParam>(this->world, exchange);
        CompressedAverage<TypeParam> allreduce(*transport, this->layout(length), {});
        for (int round = 0; round < 3; ++round) {
          const auto x = test::to_device<TypeParam>(vector_of(this->world.rank(), round, length));
          allreduce(this->exec, x, this->times);
          compressed[staged] = test::to_host(x);
        }
        const auto y = test::to_device<TypeParam>(vector_of(this->world.rank(), 3, length));
        average(this->exec, *transport, y, this->times);
        dense[staged] = test::to_host(y);

        std::vector<std::size_t> begins;
        for (int rank = 0; rank <= this->world.size(); ++rank) begins.push_back(length * rank / this->world.size());
        const auto z = test::to_device<TypeParam>(vector_of(this->world.rank(), 4, length));
        transport->reduce_scatter(this->exec, z, begins);
        transport->all_gather(this->exec, z, begins);
        scattered[staged] = test::to_host(z);

        // Each rank has the elements of its own number, and then those of the rank before it.
        const auto last = static_cast<std::size_t>(this->world.size());
        std::vector<std::size_t> shifted = {0, begins[last] - begins[last - 1]};
        for (std::size_t rank = 1; rank < last; ++rank)
          shifted.push_back(shifted.back() + begins[rank] - begins[rank - 1]);
        std::vector<float> own(length, -1), expected(length, -1);
        const auto fill = [&](std::vector<float>& values, const std::vector<std::size_t>& of) {
          for (std::size_t i = of[this->world.rank()]; i < of[this->world.rank() + 1]; ++i) values[i] = i % 1000;
        };
        fill(own, begins);
        expected = own;
        fill(expected, shifted);
        const auto values = test::to_device<TypeParam>(own);
        const std::uint64_t before = transport->traffic().all_to_all;
        transport->redistribute(this->exec, values, begins, shifted);
        EXPECT_EQ(test::to_host(values), expected);
        const Range had = range_of(begins, this->world.rank()), has = range_of(shifted, this->world.rank());
        EXPECT_EQ(transport->traffic().all_to_all - before, 4 * (had.length() - common(had, has).length()));
        bytes[staged] = transport->traffic().total();
      }
      EXPECT_TRUE(test::same_bits(compressed[true], compressed[false]));
      EXPECT_TRUE(test::same_bits(dense[true], dense[false]));
      EXPECT_TRUE(test::same_bits(scattered[true], scattered[false]));
      EXPECT_EQ(bytes[true], bytes[false]);
    }
}

/// Counts the Views that are allocated in its scope.
class Allocations {
public:
  Allocations() : m_before(Kokkos::Tools::Experimental::get_callbacks().allocate_data) {
    s_count = 0;
    Kokkos::Tools::Experimental::set_allocate_data_callback(
        [](Kokkos::Tools::SpaceHandle, const char*, const void*, const std::uint64_t) { ++s_count; });
  }
  ~Allocations() { Kokkos::Tools::Experimental::set_allocate_data_callback(m_before); }
  Allocations(const Allocations&) = delete;
  Allocations& operator=(const Allocations&) = delete;
  int count() const { return s_count; }

private:
  static inline std::atomic<int> s_count{0};  // the callbacks of Kokkos are plain functions
  decltype(Kokkos::Tools::Experimental::get_callbacks().allocate_data) m_before;
};

TYPED_TEST(Transfers, repeated_averages_allocate_nothing) {
  const std::size_t length = 70007;
  {
    const Allocations allocations;
    const Vector<TypeParam, float> x("OneBit::test::counted", 1);
    EXPECT_EQ(allocations.count(), 1);
  }
  for (const std::size_t message_bytes : {0, 1024})
    for (const bool staged : {false, true}) {
      SCOPED_TRACE(::testing::Message() << message_bytes << " bytes a message, staged " << staged);
      const Communicator buckets;
      const auto transport = transport_by<TypeParam>(this->world, {message_bytes, staged});
      CompressedAverage<TypeParam> allreduce(*transport, this->layout(length), {});
      const auto by_buckets =
          make_bucket_average<TypeParam>(transport_by<Kokkos::Serial>(buckets, {message_bytes, staged}), block_length);
      OverlappedAverage<TypeParam> overlapped;
      const auto x = test::to_device<TypeParam>(vector_of(this->world.rank(), 0, length));
      const auto averages = [&] {
        allreduce(this->exec, x, this->times);
        allreduce.begin(this->exec, {x}, this->times);
        allreduce.serve(this->exec, this->times);
        allreduce.finish(this->exec, this->times);
        average(this->exec, *transport, x, this->times);
        overlapped.start(this->exec, *by_buckets, x, [](std::size_t, std::size_t) {});
        overlapped.finish(this->times);
      };
      averages();
      const Allocations allocations;
      for (int repetition = 0; repetition < 3; ++repetition) averages();
      EXPECT_EQ(allocations.count(), 0);
    }
}

}  // namespace
}  // namespace onebit::comm
