/// \file sharded_test.cpp
/// Algorithms whose state is divided among the ranks: their bits are those of the algorithm without shards, and what
/// they send. optim_test.cpp compares them to plain references, checkpoint_test.cpp restarts them.

#include <gtest/gtest.h>

#include <numeric>

#include "../optim_reference.hpp"
#include "../support.hpp"
#include "optim/algorithm.hpp"
#include "optim/compression.hpp"

namespace {

using namespace onebit;

constexpr int steps = 30;

/// Two tensors of `length` elements together, one without decay.
TensorTable make_tensors(std::size_t length) {
  TensorTable tensors;
  tensors.add("weight", {length - length / 3}, true);
  if (length / 3 > 0) tensors.add("bias", {length / 3}, false);
  return tensors;
}

config::Input make_input(const std::string& algorithm) {
  config::Input input;
  input.optimizer.algorithm = algorithm;
  input.optimizer.lr = 0.01;
  input.optimizer.beta2 = 0.99;
  input.optimizer.weight_decay = 0.1;
  input.train.steps = steps;
  input.freeze.step = {"", 10};
  return input;
}

/// x after all steps, with sums in rank order.
template <class Exec>
std::vector<float> trained(const config::Input& input, const TensorTable& tensors) {
  const Communicator world;
  const auto transport = comm::make_transport<Exec>(TransportKind::automatic, world, comm::Exchange{1 << 16});
  comm::DenseAverage<Exec> average(*transport);
  const auto algorithm = optim::make_algorithm<Exec>({input, tensors, *transport, average});
  const test::Values initial = test::initial_parameters(tensors.size());
  const Vector<Exec, float> x = test::to_device<Exec>(std::vector<float>(initial.begin(), initial.end()));
  PhaseTimes times;
  for (int t = 1; t <= steps; ++t) {
    const std::vector<test::Values> g = test::random_gradients(tensors.size(), world.size(), t, input.run.seed);
    double mean_square = 0;
    for (const test::Values& one : g)
      mean_square += std::inner_product(one.begin(), one.end(), one.begin(), 0.0) / world.size();
    const std::vector<float> own(g[world.rank()].begin(), g[world.rank()].end());
    algorithm->step(Exec(), x, test::to_device<Exec>(own), {t, 0.01, mean_square}, times);
  }
  return test::to_host(x);
}

template <class Exec>
class Sharded : public ::testing::Test {};
TYPED_TEST_SUITE(Sharded, test::Backends, test::BackendNames);

// 203 elements are 7 words: at 8 ranks the last shard is empty, and at 3 ranks it is shorter than the others.
TYPED_TEST(Sharded, adam_has_the_bits_of_adam) {
  for (const std::size_t length : {1u, 203u, 5000u})
    for (const bool groups : {false, true}) {
      config::Input input = make_input("adam");
      input.optimizer.bias_correction = groups;
      if (groups) input.optimizer.groups = {{"weight", 0.5, 0.2, ""}};
      const TensorTable tensors = make_tensors(length);
      const std::vector<float> whole = trained<TypeParam>(input, tensors);
      input.optimizer.algorithm = "sharded_adam";
      EXPECT_TRUE(test::same_bits(trained<TypeParam>(input, tensors), whole)) << length << " elements";
    }
}

// From three ranks on the matrix is more than twice a mean chunk: chunks are cut between its rows, and its average
// moves to one server and back.
TYPED_TEST(Sharded, averages_of_muon_move_to_their_servers) {
  const Communicator world;
  const auto n = static_cast<std::size_t>(world.size());
  constexpr std::size_t rows = 60, columns = 40, d = rows * columns + 100;
  TensorTable tensors;
  tensors.add("weight", {rows, columns}, true);
  tensors.add("bias", {d - rows * columns}, false);
  const config::Input input = make_input("onebit_muon");
  const auto transport = comm::make_transport<TypeParam>(TransportKind::automatic, world);
  comm::DenseAverage<TypeParam> average(*transport);
  const optim::Setup<TypeParam> setup{input, tensors, *transport, average};

  const std::vector<std::size_t> servers = optim::server_begins(setup), chunks = optim::chunk_begins(setup);
  std::size_t longest = 0, moved = 0;
  for (std::size_t k = 0; k < n; ++k) {
    EXPECT_TRUE(servers[k] == 0 || servers[k] >= rows * columns) << servers[k];
    longest = std::max(longest, chunks[k + 1] - chunks[k]);
    moved += chunks[k + 1] - chunks[k] - common({chunks[k], chunks[k + 1]}, {servers[k], servers[k + 1]}).length();
  }
  if (n < 3) {
    EXPECT_EQ(chunks, servers);
  } else {
    EXPECT_LE(longest, d / n + columns);
    EXPECT_GT(moved, rows * columns / 2);
  }

  const std::size_t message = optim::make_compressed_average(setup, {0, d})->compressor()->message_words();
  std::vector<float> found[2];
  for (const bool pairwise : {false, true}) {
    const auto by = comm::make_transport<TypeParam>(TransportKind::automatic, world,
                                                    comm::Exchange{pairwise ? std::size_t{1000} : 0});
    comm::DenseAverage<TypeParam> average_by(*by);
    const auto algorithm = optim::make_algorithm<TypeParam>({input, tensors, *by, average_by});
    const Vector<TypeParam, float> x("OneBit::test::x", d);
    PhaseTimes times;
    for (int t = 1; t <= 3; ++t) {
      const test::Values g = test::random_gradients(d, world.size(), t, input.run.seed)[world.rank()];
      algorithm->step(TypeParam(), x, test::to_device<TypeParam>(std::vector<float>(g.begin(), g.end())),
                      {t, 0.01, 1.0}, times);
    }
    // Averages move to their servers, and what these make of them comes back.
    EXPECT_EQ(world.sum(by->traffic().all_to_all), 3 * 4 * (n * (n - 1) * message + 2 * moved));
    found[pairwise] = test::to_host(x);
    found[pairwise].resize(rows * columns);  // MPI adds the gradients of vectors in an order of its own
  }
  EXPECT_TRUE(test::same_bits(found[true], found[false]));
}

}  // namespace
