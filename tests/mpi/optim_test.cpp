/// \file optim_test.cpp
/// Every algorithm against its plain reference in double precision, on random gradients that every rank can make for
/// itself; replicas are the same bits wherever the algorithm says so, and differ where they drift apart.
///
/// Where a compressor decides between two values (a sign, a rounding), one that lies within single precision's error of
/// the border may be decided otherwise than in double. So gradients are taken with which none does.
///
/// Every rank compares the vectors of all ranks, so all come to the same verdict and none waits for one that has left.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "../optim_reference.hpp"
#include "../support.hpp"
#include "io/hdf5.hpp"
#include "optim/algorithm.hpp"
#include "optim/compression.hpp"
#include "optim/onebit_adam_reference.hpp"
#include "train/checkpoint/initial_variance.hpp"

namespace {

using namespace onebit;
using test::Values;

constexpr int steps = 50;

/// Tensors of a small model; the second one does not decay and the sizes share no factor with 32.
TensorTable make_tensors() {
  TensorTable tensors;
  tensors.add("weight", {13, 7}, true);
  tensors.add("bias", {13}, false);
  tensors.add("output.weight", {5, 21}, true);
  return tensors;
}

config::Input make_input(const std::string& algorithm) {
  config::Input input;
  input.optimizer.algorithm = algorithm;
  input.optimizer.lr = 0.01;
  input.optimizer.beta2 = 0.99;
  input.optimizer.variance_bits = 4;
  input.train.steps = steps;
  input.freeze.step = {"", 20};
  return input;
}

/// Copies of the vectors that an algorithm hands to an archive.
template <class Exec>
class Vectors final : public optim::Archive<Exec> {
public:
  /// \param length d \param communicator of the ranks that have shards
  Vectors(std::size_t length, const Communicator& communicator)
      : optim::Archive<Exec>(Exec()), m_length(length), m_communicator(communicator) {}
  bool restores() const override { return false; }
  const std::string& file() const override { return m_file; }
  void numbers(const std::string&, std::vector<double>&, bool) override {}
  void vector(const std::string& name, const Vector<Exec, float>& values, bool differs) override {
    m_vectors[name] = test::to_host(values);
    m_differs[name] = differs;
  }
  /// A shard of a vector of which each rank has one; all ranks get the vector.
  void part(const std::string& name, const Vector<Exec, float>& values, optim::Part part) override {
    if (name != "momentum" && name != "variance" && name != "table_variance") return;
    const std::vector<float> own = test::to_host(values);
    Values whole(m_length);
    std::copy_n(own.begin(), part.end - part.begin, whole.begin() + part.begin);
    m_communicator.sum(whole.data(), static_cast<int>(m_length));
    std::vector<float>& all = m_vectors[name];  // a rank may have several parts
    all.resize(m_length);
    std::transform(whole.begin(), whole.end(), all.begin(), all.begin(), std::plus<>());
    m_differs[name] = false;
  }
  std::map<std::string, std::vector<float>> of(optim::Algorithm<Exec>& algorithm) {
    m_vectors.clear();
    algorithm.state(*this);
    return m_vectors;
  }
  /// Whether the ranks' vectors of this name differ, as the last call of `of` found it.
  bool differs(const std::string& name) const { return m_differs.at(name); }

private:
  std::size_t m_length;
  const Communicator& m_communicator;
  std::map<std::string, bool> m_differs;
  std::string m_file = "test";
  std::map<std::string, std::vector<float>> m_vectors;
};

/// The buckets that `input` asks for, or none.
template <class Exec>
std::shared_ptr<comm::CompressedBuckets<Exec>> make_buckets(const config::Input& input, const TensorTable& tensors,
                                                            const Communicator& world) {
  if (input.comm.compressed_bucket_bytes == 0) return nullptr;
  return optim::make_overlapped_momentum_buckets<Exec>(
      input, tensors, comm::make_transport<comm::ForSecondThread<Exec>>(TransportKind::automatic, world));
}

/// Begins a step, and averages its buckets of g as they would be during a backward pass. \returns whether it has any
template <class Exec>
bool begin_step(optim::Algorithm<Exec>& algorithm, const Vector<Exec, float>& g, const optim::StepContext& context) {
  comm::BucketAverage<Exec>* const buckets = algorithm.begin(context);
  if (buckets == nullptr) return false;
  PhaseTimes times;
  const std::size_t length = buckets->bucket_length();
  for (std::size_t end = g.extent(0); end > 0;) {
    const std::size_t begin = (end - 1) / length * length;
    buckets->begin(Kokkos::subview(g, std::make_pair(begin, end)), begin, times);
    buckets->serve(begin, times);
    buckets->finish(begin, times);
    end = begin;
  }
  return true;
}

/// Runs the algorithm and its reference side by side. \param variance that both start with; empty for 0
/// \param earlier_steps of which that variance is the average; infinite where that is unknown
template <class Exec>
void compare(const config::Input& given, const TensorTable& tensors = make_tensors(), const Values& variance = {},
             double earlier_steps = 0) {
  const std::string& name = given.optimizer.algorithm;
  const Communicator world;
  const config::Input input = test::with_clear_decisions(given, tensors, world.size(), variance, optim::learning_rate);
  const Exec exec;
  const std::size_t d = tensors.size();
  const auto transport = comm::make_transport<Exec>(TransportKind::automatic, world);
  comm::DenseAverage<Exec> average(*transport);
  const auto buckets = make_buckets<Exec>(input, tensors, world);
  const auto algorithm = optim::make_algorithm<Exec>({input, tensors, *transport, average, nullptr, buckets.get()});
  train::read_initial_variance(exec, input, d, *algorithm);
  const Values initial = test::initial_parameters(d);
  test::SimulatedRanks reference(input, tensors, world.size(), initial);
  if (!variance.empty()) reference.v = variance;
  reference.earlier_steps = earlier_steps;
  const Vector<Exec, float> x = test::to_device<Exec>(std::vector<float>(initial.begin(), initial.end()));
  PhaseTimes times;
  int apart = 0, bucket_steps = 0;
  for (int t = 1; t <= input.train.steps; ++t) {
    const std::vector<Values> g = test::random_gradients(tensors, world.size(), t, input.run.seed);
    double mean_square = 0;
    for (const Values& one : g)
      mean_square += std::inner_product(one.begin(), one.end(), one.begin(), 0.0) / world.size();
    const Values& mine = g[world.rank()];
    const double lr = optim::learning_rate(input, t);
    const auto own_g = test::to_device<Exec>(std::vector<float>(mine.begin(), mine.end()));
    optim::StepContext context{t, lr, mean_square};
    context.averaged = t % 3 != 0 && begin_step(*algorithm, own_g, context);
    bucket_steps += context.averaged;
    const optim::StepState state = algorithm->step(exec, x, own_g, context, times);
    test::references().at(name)(reference, g, t, lr);

    const std::vector<float> updated = test::to_host(x);
    const Values bits(updated.begin(), updated.end());
    const Values all = world.gather(bits.data(), static_cast<int>(d));
    for (int rank = 0; rank < world.size(); ++rank) {
      const Values of_rank(all.begin() + rank * d, all.begin() + (rank + 1) * d);
      ASSERT_LE(test::relative_difference(of_rank, reference.x[rank]), 1e-6)
          << name << " step " << t << " rank " << rank;
      if (rank == 0) continue;
      const bool same = std::equal(of_rank.begin(), of_rank.end(), all.begin());
      ASSERT_EQ(same, state.synchronised) << name << " step " << t << " rank " << rank;
      apart += !same;
    }
    ASSERT_TRUE(state.synchronised || t < input.train.steps) << name;
  }
  Vectors<Exec> state(d, world);
  for (const auto& [vector, values] : state.of(*algorithm))
    if (vector == "momentum" || vector == "variance" || vector == "table_variance") {
      const bool momentum = vector == "momentum";
      const Values& own = (momentum ? reference.own_m : reference.own_v)[world.rank()];
      const Values& expected = state.differs(vector) ? own : momentum ? reference.m : reference.v;
      EXPECT_LE(test::relative_difference(values, expected), 1e-6) << name << " " << vector;
    }
  EXPECT_EQ(bucket_steps > 0, buckets != nullptr) << name;
  const bool drifts =
      name == "local_sgd" || name == "local_momentum_sgd" || name == "adam_lazy_variance" || name == "diloco";
  EXPECT_EQ(apart > 0, drifts && input.optimizer.local_steps > 1 && world.size() > 1) << name;
}

template <class Exec>
class Optim : public ::testing::Test {};
TYPED_TEST_SUITE(Optim, test::Backends, test::BackendNames);

TYPED_TEST(Optim, every_algorithm_is_its_reference) {
  for (const auto& reference : test::references()) compare<TypeParam>(make_input(reference.first));
}

// The file that one reads first (docs/develop/reading.md) is what many ranks compute.
TYPED_TEST(Optim, onebit_adam_is_algorithm_1) {
  const Communicator world;
  const TensorTable tensors = make_tensors();
  const config::Input input =
      test::with_clear_decisions(make_input("onebit_adam"), tensors, world.size(), {}, optim::learning_rate);
  const auto transport = comm::make_transport<TypeParam>(TransportKind::automatic, world);
  comm::DenseAverage<TypeParam> average(*transport);
  const optim::Setup<TypeParam> setup{input, tensors, *transport, average};
  const auto algorithm = optim::make_algorithm<TypeParam>(setup);
  const Values initial = test::initial_parameters(tensors.size());
  optim::OnebitAdamReference reference(optim::chunk_begins(setup), input.optimizer.beta1, input.optimizer.beta2,
                                       input.optimizer.epsilon, initial);
  const auto x = test::to_device<TypeParam>(std::vector<float>(initial.begin(), initial.end()));
  PhaseTimes times;
  for (int t = 1; t <= input.train.steps; ++t) {
    const std::vector<Values> g = test::random_gradients(tensors, world.size(), t, input.run.seed);
    const Values& mine = g[world.rank()];
    const double lr = optim::learning_rate(input, t);
    algorithm->step(TypeParam(), x, test::to_device<TypeParam>(std::vector<float>(mine.begin(), mine.end())),
                    {t, lr, 0}, times);
    if (t <= input.freeze.step.number)
      reference.warm_up(g, lr);
    else
      reference.compressed(g, lr);
    const std::vector<float> updated = test::to_host(x);
    ASSERT_LE(test::relative_difference(Values(updated.begin(), updated.end()), reference.x), 1e-6) << "step " << t;
  }
}

TYPED_TEST(Optim, every_algorithm_clips_decays_and_corrects_as_its_reference) {
  for (const auto& reference : test::references()) {
    config::Input input = make_input(reference.first);
    input.optimizer.weight_decay = 0.1;
    compare<TypeParam>(input);
    input.optimizer.bias_correction = reference.first.find("adam") != std::string::npos;
    input.optimizer.clip = 1.0;  // below every norm
    compare<TypeParam>(input);
  }
}

TYPED_TEST(Optim, every_algorithm_has_the_rates_of_groups_as_its_reference) {
  for (const auto& reference : test::references()) {
    config::Input input = make_input(reference.first);
    input.optimizer.weight_decay = 0.1;
    input.optimizer.groups = {{"b?as", 3, 0.2, ""}, {"*.weight", 0.25, {}, ""}};
    input.compression.scale_residual_by_lr = config::traits(reference.first).has(config::scales_residual_by_lr);
    input.schedule.decay = Decay::linear;
    compare<TypeParam>(input);
  }
}

/// x after all steps, from multiples of 1/64, of which the average of equal ones is exact.
template <class Exec>
std::vector<float> trained(const config::Input& input, const TensorTable& tensors, const std::vector<float>& initial) {
  const Communicator world;
  const auto transport = comm::make_transport<Exec>(TransportKind::automatic, world);
  comm::DenseAverage<Exec> average(*transport);
  const auto algorithm = optim::make_algorithm<Exec>({input, tensors, *transport, average});
  const Vector<Exec, float> x = test::to_device<Exec>(initial);
  PhaseTimes times;
  for (int t = 1; t <= steps; ++t) {
    const Values g = test::random_gradients(tensors, world.size(), t, input.run.seed)[world.rank()];
    algorithm->step(Exec(), x, test::to_device<Exec>(std::vector<float>(g.begin(), g.end())), {t, 0.01, 1.0}, times);
  }
  return test::to_host(x);
}

// What travels does not change either: all other elements have the bits that they have without the group. Only the
// compressed pseudo-gradient of `diloco` shares scales with the tensor that rests, so its average is dense here.
TYPED_TEST(Optim, lr_factor_0_freezes_a_tensor_and_changes_no_other) {
  const TensorTable tensors = make_tensors();
  const Tensor& frozen = tensors.tensors()[1];
  std::vector<float> initial;
  for (std::size_t i = 0; i < tensors.size(); ++i) initial.push_back(static_cast<float>(i % 17) / 64 - 0.125f);
  for (const std::string& name : config::algorithm_names()) {
    config::Input input = make_input(name);
    input.optimizer.weight_decay = 0.1;
    input.zero_one = {20, 4, 8, 4};
    if (name == "diloco") input.compression.compressor = CompressorKind::none;
    std::vector<float> expected = trained<TypeParam>(input, tensors, initial);
    std::copy_n(initial.begin() + frozen.offset, frozen.size(), expected.begin() + frozen.offset);
    input.optimizer.groups = {{frozen.name, 0, 0.1, ""}};
    EXPECT_TRUE(test::same_bits(trained<TypeParam>(input, tensors, initial), expected)) << name;
  }
}

TYPED_TEST(Optim, a_frozen_tensor_of_diloco_keeps_its_bits_whatever_the_compressor_sends) {
  const TensorTable tensors = make_tensors();
  const Tensor& frozen = tensors.tensors()[1];
  const Values start = test::initial_parameters(tensors.size());
  const std::vector<float> initial(start.begin(), start.end());
  config::Input input = make_input("diloco");
  input.optimizer.groups = {{frozen.name, 0, 0.1, ""}};
  const std::vector<float> x = trained<TypeParam>(input, tensors, initial);
  EXPECT_TRUE(std::equal(x.begin() + frozen.offset, x.begin() + frozen.offset + frozen.size(),
                         initial.begin() + frozen.offset));
  EXPECT_NE(x.front(), initial.front());
}

TYPED_TEST(Optim, every_algorithm_drops_residuals_and_reconstructs_as_its_reference) {
  for (const auto& reference : test::references()) {
    config::Input input = make_input(reference.first);
    input.compression.error_feedback = false;
    compare<TypeParam>(input);
    input.compression.reconstruction = Reconstruction::range;
    compare<TypeParam>(input);
  }
}

// The learning rate is another in every step, and 0 in the last one.
TYPED_TEST(Optim, residuals_are_scaled_by_the_quotient_of_learning_rates_as_in_the_reference) {
  for (const char* name : {"onebit_adam", "ef_momentum_sgd", "double_squeeze", "onebit_sgd", "efficient_adam",
                           "sharded_onebit_adam", "server_onebit_adam"})
    for (const Decay decay : {Decay::linear, Decay::exponential}) {
      config::Input input = make_input(name);
      input.compression.scale_residual_by_lr = true;
      input.schedule.warmup_steps = 25;
      input.schedule.decay = decay;
      input.schedule.rate = 0.9;
      input.schedule.every = 1;
      compare<TypeParam>(input);
    }
}

TYPED_TEST(Optim, compressed_algorithms_are_their_references_with_every_scale_and_group) {
  for (const char* name : {"onebit_adam", "adam_1bit_naive", "ef_momentum_sgd", "efficient_adam", "sharded_onebit_adam",
                           "server_onebit_adam"})
    for (const Scale scale : {Scale::l1, Scale::l2})
      for (const char* group : {"vector", "chunk", "tensor", "32"}) {
        config::Input input = make_input(name);
        input.compression.scale = scale;
        input.compression.group =
            std::isdigit(group[0]) != 0 ? config::NumberOrWord{"", std::atoi(group)} : config::NumberOrWord{group, 0};
        input.optimizer.weight_decay = 0.01;
        compare<TypeParam>(input);
      }
}

/// Tensors of three buckets of 1024 elements, the last one shorter.
TensorTable make_long_tensors() {
  TensorTable tensors;
  tensors.add("weight", {37, 40}, true);
  tensors.add("bias", {37}, false);
  tensors.add("output.weight", {21, 37}, true);
  return tensors;
}

TYPED_TEST(Optim, momentum_in_buckets_is_its_reference) {
  for (const char* group : {"vector", "chunk", "tensor", "64"})
    for (const int bytes : {1, 8192, 1 << 20}) {
      config::Input input = make_input("onebit_adam");
      input.freeze.step = {"", 4};
      input.train.steps = 12;
      input.comm.compressed_bucket_bytes = bytes;
      input.compression.group =
          std::isdigit(group[0]) != 0 ? config::NumberOrWord{"", std::atoi(group)} : config::NumberOrWord{group, 0};
      input.optimizer.weight_decay = 0.1;
      input.optimizer.clip = 1.0;
      if (bytes == 1) input.optimizer.groups = {{"b?as", 3, 0.2, ""}, {"*.weight", 0.25, {}, ""}};
      if (bytes == 8192) {
        input.compression.scale_residual_by_lr = true;
        input.schedule.decay = Decay::linear;
      }
      compare<TypeParam>(input, make_long_tensors());
    }
}

// Buckets that have gone are undone on every rank, so the next step finds what it would have found without them.
TYPED_TEST(Optim, buckets_that_are_rolled_back_change_nothing) {
  const TensorTable tensors = make_long_tensors();
  const Communicator world;
  config::Input input = make_input("onebit_adam");
  input.freeze.step = {"", 3};
  input.comm.compressed_bucket_bytes = 4096;
  input.optimizer.on_nonfinite = OnNonfinite::skip;
  input.compression.scale_residual_by_lr = true;
  const auto train = [&](bool rolls_back) {
    const auto transport = comm::make_transport<TypeParam>(TransportKind::automatic, world);
    comm::DenseAverage<TypeParam> average(*transport);
    const auto buckets = make_buckets<TypeParam>(input, tensors, world);
    const auto algorithm =
        optim::make_algorithm<TypeParam>({input, tensors, *transport, average, nullptr, buckets.get()});
    const Vector<TypeParam, float> x = test::to_device<TypeParam>(test::random_values(tensors.size(), 5));
    PhaseTimes times;
    for (int t = 1; t <= 12; ++t) {
      const Values g = test::random_gradients(tensors.size(), world.size(), t, input.run.seed)[world.rank()];
      const auto own_g = test::to_device<TypeParam>(std::vector<float>(g.begin(), g.end()));
      optim::StepContext context{t, 0.01 / t, 1.0};
      if (rolls_back && t % 2 == 0) {
        std::vector<float> bad(g.begin(), g.end());
        if (world.rank() == 0) bad[1500] = std::numeric_limits<float>::quiet_NaN();
        optim::StepContext gone{t, 7.0, 1.0};
        if (begin_step(*algorithm, test::to_device<TypeParam>(bad), gone)) algorithm->roll_back();
      }
      context.averaged = begin_step(*algorithm, own_g, context);
      algorithm->step(TypeParam(), x, own_g, context, times);
    }
    return test::to_host(x);
  };
  EXPECT_TRUE(test::same_bits(train(true), train(false)));
}

TYPED_TEST(Optim, drifting_algorithms_are_their_references_with_any_interval) {
  for (const char* name : {"local_sgd", "local_momentum_sgd", "adam_lazy_variance", "diloco"})
    for (const int interval : {1, 3, 50, 100}) {
      config::Input input = make_input(name);
      input.optimizer.local_steps = interval;
      compare<TypeParam>(input);
    }
}

TYPED_TEST(Optim, votes_are_their_references) {
  for (const char* name : {"signum", "distributed_lion"})
    for (const Vote vote : {Vote::majority, Vote::average}) {
      config::Input input = make_input(name);
      input.optimizer.vote = vote;
      input.optimizer.weight_decay = 0.1;
      input.schedule.decay = Decay::cosine;
      compare<TypeParam>(input);
      input.optimizer.beta1 = 0;  // signSGD: many elements change their signs from step to step
      compare<TypeParam>(input);
    }
}

/// A table of ragged rows, one of a single row, stacked, wide and high matrices, and vectors.
TensorTable make_tensors_of_muon() {
  TensorTable tensors;
  tensors.add("table", {9, 11}, true, 0);
  tensors.add("norm", {11}, false);
  tensors.add("stacked", {3 * 5, 7}, true, 3);
  tensors.add("bias", {15}, false);
  tensors.add("high", {12, 4}, true);
  tensors.add("wide", {4, 13}, true);
  tensors.add("flat", {70}, true);
  return tensors;
}

TYPED_TEST(Optim, muon_is_its_reference_with_every_group_and_scale) {
  for (const char* name : {"muon", "onebit_muon"})
    for (const char* group : {"vector", "chunk", "tensor", "row", "32"}) {
      config::Input input = make_input(name);
      input.optimizer.lr = 0.002;
      input.compression.scale = std::string(group) == "row" ? Scale::l2 : Scale::l1;
      input.compression.group =
          std::isdigit(group[0]) != 0 ? config::NumberOrWord{"", std::atoi(group)} : config::NumberOrWord{group, 0};
      compare<TypeParam>(input, make_tensors_of_muon());
      input.optimizer.bias_correction = true;
      input.optimizer.weight_decay = 0.1;
      input.optimizer.clip = 1.0;
      input.optimizer.groups = {{"b?as", 3, 0.2, ""}, {"h*", 0.25, {}, ""}};
      input.muon = {2.0, 0.3, 2};
      compare<TypeParam>(input, make_tensors_of_muon());
      if (std::string(name) == "muon") break;  // it compresses nothing
    }
}

// 7 words: more fragments than words leave some empty, and with 3 fragments none has the length of another.
TYPED_TEST(Optim, diloco_is_its_reference_with_fragments_and_compressors) {
  for (const int fragments : {1, 2, 3, 7, 10})
    for (const CompressorKind compressor : {CompressorKind::none, CompressorKind::sign})
      for (const char* group : {"vector", "chunk"}) {
        config::Input input = make_input("diloco");
        input.diloco.fragments = fragments;
        input.compression.compressor = compressor;
        input.compression.group = {group, 0};
        input.optimizer.local_steps = 6;
        input.optimizer.weight_decay = 0.1;
        input.optimizer.bias_correction = fragments == 3;
        input.schedule.decay = Decay::cosine;
        compare<TypeParam>(input);
      }
}

// With H = 1, γ_o = 1 and μ = 0 the outer step is an average of the parameters.
TYPED_TEST(Optim, diloco_has_the_outer_rates_of_its_reference) {
  for (const double momentum : {0.0, 0.5})
    for (const int interval : {1, 5}) {
      config::Input input = make_input("diloco");
      input.compression.compressor = CompressorKind::none;
      input.diloco.outer_lr = 1;
      input.diloco.outer_momentum = momentum;
      input.optimizer.local_steps = interval;
      compare<TypeParam>(input);
    }
}

/// Tensors of which one has no gradient.
TensorTable with_unused_tensor() {
  TensorTable tensors = make_tensors();
  tensors.add("unused", {40}, true);
  return tensors;
}

// The compressor sends ±s for a momentum of 0, which a v of 0 must not turn into a step of γ s / η. The quotients of
// sharded state have a bound as well, so that ε keeps the size of an update.
TYPED_TEST(Optim, elements_without_a_variance_rest_as_in_the_reference) {
  for (const char* name : {"onebit_adam", "onebit_adam_32bit", "sharded_onebit_adam", "server_onebit_adam"}) {
    config::Input input = make_input(name);
    compare<TypeParam>(input, with_unused_tensor());
    input.optimizer.weight_decay = 0.1;
    input.optimizer.bias_correction = true;
    input.freeze.step = {"", 3};  // a v so young that many quotients exceed the bound
    compare<TypeParam>(input, with_unused_tensor());
  }
}

// Every algorithm that freezes a variance, those of other references too.
TYPED_TEST(Optim, a_tensor_without_a_gradient_keeps_its_bits_after_T_w) {
  const TensorTable tensors = with_unused_tensor();
  const Tensor& unused = tensors.tensors().back();
  for (const std::string& name : config::algorithm_names()) {
    const config::Variance variance = config::traits(name).variance;
    if (variance != config::Variance::frozen_at_T_w && variance != config::Variance::frozen_at_F) continue;
    if (name == "sharded_onebit_adam" || name == "server_onebit_adam") continue;  // the next test
    config::Input input = make_input(name);
    input.zero_one = {20, 4, 8, 4};
    const std::vector<float> initial(tensors.size(), 0.5f), x = trained<TypeParam>(input, tensors, initial);
    for (std::size_t i = unused.offset; i < tensors.size(); ++i) ASSERT_EQ(x[i], 0.5f) << name << " element " << i;
  }
}

// The test of 8 ranks takes these alone. With few elements most shards are empty.
TYPED_TEST(Optim, sharded_algorithms_are_their_references_with_few_elements) {
  TensorTable few;
  few.add("weight", {7, 5}, true);
  few.add("bias", {3}, false);
  for (const auto& reference : test::references()) {
    if (!config::traits(reference.first).has(config::shards_state)) continue;
    config::Input input = make_input(reference.first);
    input.optimizer.weight_decay = 0.1;
    compare<TypeParam>(input);
    compare<TypeParam>(input, few);
    input.optimizer.clip = 1.0;
    input.optimizer.bias_correction = true;
    compare<TypeParam>(input);
    input.compression.error_feedback = false;
    input.compression.group = {"tensor", 0};
    compare<TypeParam>(input);
  }
}

TYPED_TEST(Optim, quantized_variance_is_its_reference_with_any_number_of_bits) {
  TensorTable
      few;  // single precision's error is a part of the largest level: with many bits, few roundings are all clear
  few.add("weight", {4, 5}, true);
  for (const int bits : {1, 2, 3, 5, 8}) {
    config::Input input = make_input("adam_nbit_variance");
    input.optimizer.variance_bits = bits;
    compare<TypeParam>(input, bits > 3 ? few : make_tensors());
  }
}

/// m after two steps with gradients g1 and g2, of a rank that is alone; with a frozen variance in the second one.
template <class Exec>
std::vector<float> momentum_of(const std::string& name, const std::vector<float>& g1, const std::vector<float>& g2) {
  TensorTable tensors;
  tensors.add("weight", {g1.size()}, true);
  config::Input input = make_input(name);
  input.freeze.step = {"", 1};
  const Communicator self(MPI_COMM_SELF);
  const auto transport = comm::make_transport<Exec>(TransportKind::automatic, self);
  comm::DenseAverage<Exec> average(*transport);
  const auto algorithm = optim::make_algorithm<Exec>({input, tensors, *transport, average});
  const Vector<Exec, float> x = test::to_device<Exec>(g1);
  PhaseTimes times;
  algorithm->step(Exec(), x, test::to_device<Exec>(g1), {1, 0.01, 1.0}, times);
  algorithm->step(Exec(), x, test::to_device<Exec>(g2), {2, 0.01, 1.0}, times);
  return Vectors<Exec>(g1.size(), self).of(*algorithm).at("momentum");
}

// Where a step takes its old momentum from messages, the compressor makes the new one: after a restart it is one of
// these. So each operation rounds in all of them (unit.compress_test, moving_average_equals_reference).
TYPED_TEST(Optim, momentum_rounds_each_operation) {
  const std::vector<float> g1 = test::random_values(5000, 60), g2 = test::random_values(5000, 61);
  const float beta1 = 0.9f, one_minus_beta1 = 0.1f;
  std::vector<float> expected;
  std::size_t shown = 0;
  for (std::size_t i = 0; i < g1.size(); ++i) {
    const float m1 = test::rounded_sum_of_products(beta1, 0, one_minus_beta1, g1[i]);
    expected.push_back(test::rounded_sum_of_products(beta1, m1, one_minus_beta1, g2[i]));
    shown += test::fusing_shows(beta1, m1, one_minus_beta1, g2[i]);
  }
  ASSERT_GT(shown, g1.size() / 100);
  for (const char* name : {"adam", "onebit_adam_32bit", "momentum_sgd", "local_momentum_sgd"})
    EXPECT_TRUE(test::same_bits(momentum_of<TypeParam>(name, g1, g2), expected)) << name;
}

/// A file of this rank with a variance, and what an earlier run says about it. It is removed with this object.
class EarlierRun {
public:
  explicit EarlierRun(const std::vector<float>& variance)
      : m_path(std::filesystem::temp_directory_path() / ("onebit_optim_test_" + std::to_string(::getpid()) + ".h5")),
        m_alone(MPI_COMM_SELF),
        m_writer(std::make_unique<ArrayWriter>(m_alone, m_path.string())) {
    m_writer->dataset("variance", ArrayWriter::Type::real32, {variance.size()});
    m_writer->write({0}, {variance.size()}, std::vector<double>(variance.begin(), variance.end()).data());
  }
  ~EarlierRun() { std::filesystem::remove(m_path); }
  EarlierRun(const EarlierRun&) = delete;
  EarlierRun& operator=(const EarlierRun&) = delete;

  void number(const std::string& name, double value) {
    m_writer->dataset(name, ArrayWriter::Type::real64, {1});
    m_writer->write({0}, {1}, &value);
  }
  void input(const config::Input& input) { m_writer->text("input", config::resolved(input)); }
  /// Completes the file and returns its path.
  std::string finish() {
    m_writer->close();
    return m_path.string();
  }

private:
  std::filesystem::path m_path;
  Communicator m_alone;
  std::unique_ptr<ArrayWriter> m_writer;
};

std::vector<float> earlier_variance(const TensorTable& tensors) {
  std::vector<float> variance;
  for (std::size_t i = 0; i < tensors.size(); ++i) variance.push_back(0.01f * static_cast<float>(1 + i % 7));
  return variance;
}

TYPED_TEST(Optim, onebit_adam_starts_from_the_variance_of_a_file) {
  const TensorTable tensors = make_tensors();
  const std::vector<float> variance = earlier_variance(tensors);
  EarlierRun file(variance);
  const std::string path = file.finish();
  for (const char* name :
       {"onebit_adam", "onebit_adam_32bit", "sharded_adam", "sharded_onebit_adam", "server_onebit_adam"})
    for (const int t_w : {0, 5}) {
      config::Input input = make_input(name);
      input.freeze.from = path;
      input.freeze.step = {"", t_w};
      compare<TypeParam>(input, tensors, Values(variance.begin(), variance.end()));
    }
}

TYPED_TEST(Optim, a_variance_of_a_file_is_corrected_for_the_steps_it_is_of) {
  constexpr double unknown = std::numeric_limits<double>::infinity();
  const TensorTable tensors = make_tensors();
  const std::vector<float> variance = earlier_variance(tensors);
  const struct {
    std::vector<std::pair<const char*, double>> numbers;
    double beta2;  ///< of the earlier run
    bool says_input;
    double steps;  ///< that the variance is of
  } cases[] = {
      {{{"state/variance_updates", 30}}, 0.99, true, 30},
      {{{"state/variance_updates", 12}, {"state/earlier_steps", 8}}, 0.99, true, 20},
      {{{"state/variance_updates", 0}, {"state/earlier_steps", 8}}, 0.99, true, 8},
      {{{"state/variance_updates", 30}, {"state/earlier_steps", unknown}}, 0.99, true, unknown},
      {{{"state/variance_updates", 10}}, 0.9, true, 10 * std::log(0.9) / std::log(0.99)},
      {{{"state/variance_updates", 30}}, 0.99, false, unknown},
      {{{"step", 30}}, 0.99, true, unknown},
  };
  for (const auto& one : cases) {
    EarlierRun file(variance);
    for (const auto& [name, value] : one.numbers) file.number(name, value);
    config::Input earlier = make_input("adam");
    earlier.optimizer.beta2 = one.beta2;
    if (one.says_input) file.input(earlier);
    const std::string path = file.finish();
    for (const auto& [name, t_w] : {std::make_pair("adam", 5), {"onebit_adam", 0}, {"onebit_adam_32bit", 5}}) {
      config::Input input = make_input(name);
      input.optimizer.bias_correction = true;
      input.freeze.from = path;
      input.freeze.step = {"", t_w};
      compare<TypeParam>(input, tensors, Values(variance.begin(), variance.end()), one.steps);
    }
  }
}

/// Parameters after four updates. The first is step `first`, and `skipped` steps lie between the second and the third.
/// v is frozen after the second.
template <class Exec>
std::vector<float> after_four_updates(config::Input input, long first, long skipped) {
  const Communicator world;
  const TensorTable tensors = make_tensors();
  const auto transport = comm::make_transport<Exec>(TransportKind::automatic, world);
  comm::DenseAverage<Exec> average(*transport);
  input.freeze.step = {"", first + 1};
  input.zero_one.variance_freeze_step = first + 1;
  const auto algorithm = optim::make_algorithm<Exec>({input, tensors, *transport, average});
  const Values initial = test::initial_parameters(tensors.size());
  const auto x = test::to_device<Exec>(std::vector<float>(initial.begin(), initial.end()));
  PhaseTimes times;
  for (int update = 0; update < 4; ++update) {
    const Values g = test::random_gradients(tensors.size(), world.size(), update + 1, input.run.seed)[world.rank()];
    algorithm->step(Exec(), x, test::to_device<Exec>(std::vector<float>(g.begin(), g.end())),
                    {first + update + (update < 2 ? 0 : skipped), input.optimizer.lr, 0}, times);
  }
  return test::to_host(x);
}

TYPED_TEST(Optim, a_skipped_step_does_not_count_in_the_bias_corrections) {
  for (const auto& reference : test::references()) {
    config::Input input = make_input(reference.first);
    if (config::traits(reference.first).variance == config::Variance::none) continue;
    if (reference.first == "adam_nbit_variance") continue;  // the number of a step seeds its rounding
    input.optimizer.bias_correction = true;
    input.optimizer.local_steps = 1;
    input.zero_one.variance_update_scaler = input.zero_one.local_step_scaler = 1000;  // every step
    EXPECT_EQ(after_four_updates<TypeParam>(input, 1, 0), after_four_updates<TypeParam>(input, 4, 2))
        << reference.first;
  }
}

TYPED_TEST(Optim, sixteen_bits_are_nearly_the_whole_variance) {
  // With so many levels some rounding is always within the error, so no reference can follow it.
  const Communicator world;
  const TensorTable tensors = make_tensors();
  const auto transport = comm::make_transport<TypeParam>(TransportKind::automatic, world);
  config::Input input = make_input("adam_nbit_variance");
  input.optimizer.variance_bits = 16;
  comm::DenseAverage<TypeParam> average(*transport);
  const auto algorithm = optim::make_algorithm<TypeParam>({input, tensors, *transport, average});
  const Values initial = test::initial_parameters(tensors.size());
  const auto x = test::to_device<TypeParam>(std::vector<float>(initial.begin(), initial.end()));
  Values variance(tensors.size());
  PhaseTimes times;
  for (int t = 1; t <= steps; ++t) {
    const std::vector<Values> g = test::random_gradients(tensors.size(), world.size(), t, input.run.seed);
    const Values& mine = g[world.rank()];
    algorithm->step(TypeParam(), x, test::to_device<TypeParam>(std::vector<float>(mine.begin(), mine.end())),
                    {t, input.optimizer.lr, 0}, times);
    for (std::size_t i = 0; i < variance.size(); ++i) {
      variance[i] *= input.optimizer.beta2;
      for (const Values& one : g) variance[i] += (1 - input.optimizer.beta2) * one[i] * one[i] / world.size();
    }
  }
  const std::vector<float> quantized = Vectors<TypeParam>(tensors.size(), world).of(*algorithm).at("variance");
  EXPECT_LE(test::relative_difference(quantized, variance), 1e-3);
  EXPECT_GT(test::relative_difference(quantized, variance), 1e-6);
}

}  // namespace
