/// \file quantized_average_test.cpp
/// The quantised average at this number of ranks: what every rank gets is its serial simulation, bit for bit, and the
/// bytes that it counts are those of its messages.

#include "comm/quantized_average.hpp"

#include <algorithm>
#include <cmath>

#include "../quantize_reference.hpp"
#include "../support.hpp"
#include "base/mpi.hpp"

namespace onebit::comm {
namespace {

std::vector<float> vector_of(int rank, long step, std::size_t length) {
  std::vector<float> values = test::random_values(length, static_cast<std::uint64_t>(100 * step + rank));
  for (float& value : values) value = std::fabs(value);
  return values;
}

template <class Exec>
class Quantized : public ::testing::Test {};
TYPED_TEST_SUITE(Quantized, test::Backends, test::BackendNames);

TYPED_TEST(Quantized, average_equals_simulation_and_counts_its_bytes) {
  const Communicator world;
  const int ranks = world.size();
  for (const std::size_t length : {0, 1, 33, 1000, 5003})
    for (const int bits : {1, 2, 5, 8, 16}) {
      SCOPED_TRACE(::testing::Message() << "length " << length << " bits " << bits);
      const auto transport = make_transport<TypeParam>(TransportKind::automatic, world);
      QuantizedAverage<TypeParam> average(*transport, length, bits, 11);
      const compress::QuantizerRef simulation{length, ranks, bits};
      PhaseTimes times;
      for (long step = 1; step <= 3; ++step) {
        std::vector<std::vector<std::uint32_t>> messages;
        for (int rank = 0; rank < ranks; ++rank)
          messages.push_back(simulation.quantize(vector_of(rank, step, length), 11, step, rank));
        const auto v = test::to_device<TypeParam>(vector_of(world.rank(), step, length));
        const Traffic before = transport->traffic();
        average(TypeParam(), v, step, times);
        // The simulation is the same on every rank, so this shows too that all hold the same bits.
        EXPECT_TRUE(test::same_bits(test::to_host(v), simulation.average(messages)));

        const std::uint64_t words = ((length + 31) / 32 + ranks - 1) / ranks, others = ranks - 1;
        EXPECT_EQ(transport->traffic().all_to_all - before.all_to_all, others * 4 * ((words + 15) / 16 + bits * words));
        EXPECT_EQ(transport->traffic().all_gather - before.all_gather, others * 128 * words);
        EXPECT_EQ(transport->traffic().allreduce, 0u);
      }
    }
}

}  // namespace
}  // namespace onebit::comm
