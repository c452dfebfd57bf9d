/// \file dense_average_test.cpp
/// The dense average in 16 bits at this number of ranks: what every rank gets is its serial simulation, bit for bit,
/// whatever the transport, the hosts and the cut into buckets, and the bytes that it counts are those of its messages.

#include "comm/dense_average.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "../support.hpp"
#include "base/mpi.hpp"
#include "comm/overlap/overlapped_average.hpp"
#include "comm/reference.hpp"
#include "comm/transport/combined/hierarchical.hpp"

namespace onebit::comm {
namespace {

constexpr Exchange by_pairs{4096};

/// Values of all sizes that bf16 and fp16 have, some of which the other rounds to 0, to a subnormal number or to
/// infinity.
std::vector<float> vector_of(int rank, long step, std::size_t length) {
  std::vector<float> values = test::random_values(length, static_cast<std::uint64_t>(100 * step + rank));
  for (std::size_t i = 0; i < length; ++i)
    if (i % 3 == 0) values[i] = std::ldexp(values[i], static_cast<int>(i % 45) - 30);
  return values;
}

std::vector<std::vector<float>> vectors_of_all(int ranks, long step, std::size_t length) {
  std::vector<std::vector<float>> vectors;
  for (int rank = 0; rank < ranks; ++rank) vectors.push_back(vector_of(rank, step, length));
  return vectors;
}

constexpr DenseType types[] = {DenseType::bf16, DenseType::fp16};

/// Hosts of `local` ranks each.
std::vector<std::vector<int>> hosts_of(int ranks, int local) {
  std::vector<std::vector<int>> hosts(ranks / local);
  for (int rank = 0; rank < ranks; ++rank) hosts[rank / local].push_back(rank);
  return hosts;
}

template <class Exec>
class Dense16 : public ::testing::Test {
protected:
  /// Two steps with each type on vectors of several lengths. \param check gets the bytes of a call
  template <class Check>
  void expect_simulation(Transport<Exec>& transport, int local, const Check& check) {
    for (const DenseType type : types)
      for (const std::size_t length : {0, 1, 33, 1000, 5003}) {
        SCOPED_TRACE(::testing::Message() << to_string(type) << " length " << length);
        DenseAverage<Exec> average(transport, type);
        const DenseAverageRef simulation{type, hosts_of(world.size(), local)};
        for (long step = 1; step <= 2; ++step) {
          const auto x = test::to_device<Exec>(vector_of(world.rank(), step, length));
          const Traffic before = transport.traffic();
          average(Exec(), x, times);
          // The simulation is the same on every rank, so this shows too that all hold the same bits.
          EXPECT_TRUE(test::same_bits(test::to_host(x), simulation(vectors_of_all(world.size(), step, length))));
          check(length, before, transport.traffic());
        }
      }
  }

  const Communicator world;
  PhaseTimes times;
};
TYPED_TEST_SUITE(Dense16, test::Backends, test::BackendNames);

TYPED_TEST(Dense16, average_equals_simulation_and_counts_its_bytes) {
  const std::uint64_t ranks = this->world.size();
  for (const Exchange& exchange : {Exchange{}, by_pairs, Exchange{4096, true}}) {
    const auto transport = make_transport<TypeParam>(TransportKind::automatic, this->world, exchange);
    this->expect_simulation(*transport, 1, [&](std::size_t length, const Traffic& before, const Traffic& after) {
      const std::uint64_t chunk = ((length + 31) / 32 + ranks - 1) / ranks * 32;
      EXPECT_EQ(after.all_to_all - before.all_to_all, (ranks - 1) * chunk * 2);
      EXPECT_EQ(after.all_gather - before.all_gather, (ranks - 1) * chunk * 2);
      EXPECT_EQ(after.total() - before.total(), (ranks - 1) * chunk * 4);
    });
  }
}

TYPED_TEST(Dense16, hierarchical_average_equals_simulation) {
  const int ranks = this->world.size();
  for (int local = 1; local <= ranks; ++local) {
    if (ranks % local != 0) continue;
    SCOPED_TRACE(::testing::Message() << local << " ranks on a host");
    std::vector<int> hosts;
    for (int rank = 0; rank < ranks; ++rank) hosts.push_back(rank / local);
    const auto transport =
        make_hierarchical_transport<TypeParam>(TransportKind::automatic, this->world, hosts, by_pairs);
    this->expect_simulation(*transport, local, [&](std::size_t length, const Traffic& before, const Traffic& after) {
      const std::uint64_t across = ranks / local, shard = ((length + 31) / 32 + local - 1) / local;
      EXPECT_LE(after.total() - before.total(), (across - 1) * 4 * 32 * ((shard + across - 1) / across));
    });
  }
}

TYPED_TEST(Dense16, buckets_give_the_bits_of_the_whole) {
  const Communicator buckets;
  const std::size_t length = 5000;
  for (const DenseType type : types) {
    SCOPED_TRACE(to_string(type));
    const auto average = make_bucket_average<TypeParam>(
        make_transport<Kokkos::Serial>(TransportKind::automatic, buckets), block_length, type);
    OverlappedAverage<TypeParam> overlapped;
    const DenseAverageRef simulation{type, hosts_of(this->world.size(), 1)};
    for (const long step : {3, 4}) {
      const auto x = test::to_device<TypeParam>(vector_of(this->world.rank(), step, length));
      overlapped.start(TypeParam(), *average, x, [](std::size_t, std::size_t) {});
      overlapped.finish(this->times);
      EXPECT_TRUE(test::same_bits(test::to_host(x), simulation(vectors_of_all(this->world.size(), step, length))));
    }
  }
}

TYPED_TEST(Dense16, sends_half_of_what_floats_do) {
  const std::size_t length = 96000;
  const auto x = test::to_device<TypeParam>(std::vector<float>(length, 1.5f));
  std::uint64_t bytes[2] = {};
  for (const DenseType type : {DenseType::fp32, DenseType::bf16}) {
    const auto transport = make_transport<TypeParam>(TransportKind::automatic, this->world);
    DenseAverage<TypeParam> average(*transport, type);
    average(TypeParam(), x, this->times);
    bytes[type == DenseType::bf16] = transport->traffic().total();
  }
  EXPECT_EQ(bytes[0], 2 * bytes[1]);
  EXPECT_EQ(test::to_host(x), std::vector<float>(length, 1.5f));
}

/// A number that a type cannot hold, and NaN, reach every rank alike and touch no other element.
TYPED_TEST(Dense16, all_ranks_get_infinity_and_nan) {
  const int ranks = this->world.size();
  for (const DenseType type : types) {
    SCOPED_TRACE(to_string(type));
    std::vector<float> values(100, 1.0f);
    if (this->world.rank() == ranks - 1) {
      values[1] = infinite_from(type);
      values[2] = std::nextafter(values[1], 0.0f);
      values[3] = std::numeric_limits<float>::quiet_NaN();
      values[4] = -values[1];
    }
    const auto transport = make_transport<TypeParam>(TransportKind::automatic, this->world);
    const auto x = test::to_device<TypeParam>(values);
    DenseAverage<TypeParam> average(*transport, type);
    average(TypeParam(), x, this->times);
    const std::vector<float> mean = test::to_host(x);
    EXPECT_EQ(mean[1], std::numeric_limits<float>::infinity());
    EXPECT_TRUE(std::isfinite(mean[2])) << mean[2];
    EXPECT_TRUE(std::isnan(mean[3]));
    EXPECT_EQ(mean[4], -std::numeric_limits<float>::infinity());
    for (const std::size_t other : {0, 5, 99}) EXPECT_EQ(mean[other], 1.0f);
  }
}

}  // namespace
}  // namespace onebit::comm
