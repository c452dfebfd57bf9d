/// \file workload_test.cpp
/// Workloads that set time or volume without a model: the gradient of `synthetic`, and what `compute_time_ms` adds.

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "../support.hpp"
#include "workload/synthetic.hpp"
#include "workload/workload.hpp"

namespace onebit::workload {
namespace {

config::Input synthetic_input(int parameters, double compute_time_ms = 0) {
  config::Input input;
  input.workload.kind = WorkloadKind::synthetic;
  input.workload.parameters = {"", parameters};
  input.workload.compute_time_ms = compute_time_ms;
  return input;
}

template <class Exec>
class WorkloadTest : public ::testing::Test {};
TYPED_TEST_SUITE(WorkloadTest, test::Backends, test::BackendNames);

/// One gradient with what was said of it.
struct Computed {
  std::vector<float> gradient;
  std::vector<std::size_t> ready_from;
  std::vector<double> at;  ///< seconds after the begin
  PhaseTimes times;
  double seconds = 0;
};

template <class Exec>
Computed compute(Workload<Exec>& workload, long step) {
  const Exec exec;
  const std::size_t d = workload.tensors().size();
  const Vector<Exec, float> x("OneBit::test::x", d), g("OneBit::test::g", d);
  Kokkos::deep_copy(g, 7.0f);
  workload.initialize(exec, x);
  Computed computed;
  const Stopwatch watch;
  const auto is_complete = [&](std::size_t b) {
    computed.ready_from.push_back(b);
    computed.at.push_back(watch.seconds());
  };
  workload.gradient(exec, x, step, g, computed.times, is_complete);
  computed.seconds = watch.seconds();
  computed.gradient = test::to_host(g);
  return computed;
}

TYPED_TEST(WorkloadTest, synthetic_gradient_depends_on_seed_and_rank_alone) {
  const TypeParam exec;
  config::Input input = synthetic_input(20000);
  const auto workload = make_workload(exec, input, Share{1, 4});
  const Computed first = compute(*workload, 1);
  EXPECT_TRUE(test::same_bits(compute(*workload, 2).gradient, first.gradient));
  EXPECT_NE(compute(*make_workload(exec, input, Share{2, 4}), 1).gradient, first.gradient);
  input.run.seed = 2;
  EXPECT_NE(compute(*make_workload(exec, input, Share{1, 4}), 1).gradient, first.gradient);
  double sum = 0, squares = 0;
  for (const float g : first.gradient) sum += g, squares += double{g} * double{g};
  // Five standard deviations of each estimate for standard normal numbers.
  EXPECT_NEAR(sum / 20000, 0, 5 * std::sqrt(1.0 / 20000));
  EXPECT_NEAR(squares / 20000, 1, 5 * std::sqrt(2.0 / 20000));
}

TEST(PublishedModels, have_as_many_parameters_as_published) {
  const std::map<std::string, std::size_t> expected = {{"bert_large", 335141888}, {"gpt2", 124439808},
                                                       {"gpt2_xl", 1557611200},   {"vit_large", 304326632},
                                                       {"llama3_8b", 8030261248}, {"llama3_70b", 70553706496}};
  EXPECT_EQ(expected.size(), config::published_models.size());
  for (const auto& [name, parameters] : expected) {
    config::Input input = synthetic_input(0);
    input.workload.parameters = {name, 0};
    EXPECT_EQ(synthetic_footprint(input).tensors.size(), parameters) << name;
  }
}

TYPED_TEST(WorkloadTest, synthetic_tensors_are_complete_from_the_last_to_the_first) {
  for (const int parameters : {1, 26, 27, 100, 5000, 1234567}) {
    const auto workload = make_workload(TypeParam(), synthetic_input(parameters), Share{0, 1});
    EXPECT_EQ(workload->tensors().size(), static_cast<std::size_t>(parameters));
    const auto& tensors = workload->tensors().tensors();
    const Computed computed = compute(*workload, 1);
    ASSERT_EQ(computed.ready_from.size(), tensors.size());
    for (std::size_t k = 0; k < tensors.size(); ++k) {
      EXPECT_GT(tensors[k].size(), 0u) << tensors[k].name;
      EXPECT_EQ(computed.ready_from[tensors.size() - 1 - k], tensors[k].offset) << tensors[k].name;
    }
  }
}

TYPED_TEST(WorkloadTest, timed_gradient_takes_no_less_than_its_time_and_is_the_same) {
  const double seconds = 0.02;
  const TypeParam exec;
  const auto plain = make_workload(exec, synthetic_input(5000), Share{0, 1});
  const auto timed = make_workload(exec, synthetic_input(5000, 1e3 * seconds), Share{0, 1});
  const Computed computed = compute(*timed, 1);
  EXPECT_TRUE(test::same_bits(computed.gradient, compute(*plain, 1).gradient));
  EXPECT_GE(computed.seconds, seconds);
  EXPECT_GE(computed.times[Phase::forward], seconds / 3);
  EXPECT_NEAR(computed.times[Phase::backward], 2 * computed.times[Phase::forward], 1e-12);
  // Nothing is complete in the forward pass, and what is later in the flat gradient is said first.
  ASSERT_FALSE(computed.ready_from.empty());
  for (std::size_t k = 0; k < computed.ready_from.size(); ++k) {
    const double share = 1 - static_cast<double>(computed.ready_from[k]) / 5000;
    EXPECT_GE(computed.at[k], seconds * (1 + 2 * share) / 3);
  }
  EXPECT_EQ(plain->compute_overruns(), 0);
}

TYPED_TEST(WorkloadTest, computation_that_takes_longer_is_counted) {
  const auto workload = make_workload(TypeParam(), synthetic_input(1 << 20, 1e-3), Share{0, 1});
  for (int step = 1; step <= 3; ++step) compute(*workload, step);
  EXPECT_EQ(workload->compute_overruns(), 3);
  const auto slow = make_workload(TypeParam(), synthetic_input(10, 500), Share{0, 1});
  compute(*slow, 1);
  EXPECT_EQ(slow->compute_overruns(), 0);
}

TYPED_TEST(WorkloadTest, faults_are_of_one_rank_and_step) {
  const TypeParam exec;
  config::Input input = synthetic_input(5000);
  const Computed sound = compute(*make_workload(exec, input, Share{1, 2}), 1);
  input.faults = {Fault::nan, 1, 2};
  const auto faulty = make_workload(exec, input, Share{1, 2}), other = make_workload(exec, input, Share{0, 2});
  for (const long step : {1L, 2L, 3L}) {
    SCOPED_TRACE(step);
    for (const float g : compute(*other, step).gradient) ASSERT_TRUE(std::isfinite(g));
    const Computed computed = compute(*faulty, step);
    // What is not complete must not be said to be.
    EXPECT_EQ(computed.ready_from.empty(), step == 2);
    EXPECT_EQ(std::isnan(computed.gradient[0]), step == 2);
    if (step != 2) {
      EXPECT_TRUE(test::same_bits(computed.gradient, sound.gradient));
    }
  }
  input.faults.kind = Fault::desync;
  const auto desync = make_workload(exec, input, Share{1, 2});
  const Vector<TypeParam, float> x("OneBit::test::x", 5000), g("OneBit::test::g", 5000);
  desync->initialize(exec, x);
  const std::vector<float> before = test::to_host(x);
  PhaseTimes times;
  desync->gradient(exec, x, 1, g, times, {});
  EXPECT_TRUE(test::same_bits(test::to_host(x), before));
  desync->gradient(exec, x, 2, g, times, {});
  EXPECT_FALSE(test::same_bits(test::to_host(x), before));
  EXPECT_TRUE(test::same_bits(test::to_host(g), sound.gradient));
}

/// What a share of `memory` bytes says of a run that takes so many bytes for each parameter in its phases.
std::string refusal(const config::Input& input, double memory, double dense, double compressed) {
  const Footprint taken = footprint(input, 2);
  const auto run_bytes = [=](const TensorTable& tensors) {
    const double d = static_cast<double>(tensors.size());
    return PhaseBytes{dense * d, compressed * d};
  };
  try {
    check_memory(input, taken, {0, 2, memory, run_bytes});
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

// The workload's own copy of the gradient is 4 bytes more.
TEST(Memory, is_enough_for_both_phases_or_refused) {
  const config::Input input = synthetic_input(1000000);
  EXPECT_EQ(refusal(input, 24e6, 16, 20), "");
  EXPECT_EQ(refusal(input, 24e6, 20, 16), "");
  for (const auto& [dense, compressed] : {std::make_pair(16, 21), std::make_pair(21, 16)}) {
    const std::string text = refusal(input, 24e6, dense, compressed);
    for (const char* part : {"1000000 parameters takes 0.0233 GiB", "before compression begins", "may take 0.0224 GiB",
                             "workload.parameters", "optimizer.algorithm", "fewer ranks"})
      EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
  }
  EXPECT_EQ(refusal(input, 23e6, 20, 20).find("before compression"), std::string::npos) << "there is one phase";
}

TEST(Memory, of_a_model_too_large_for_any_machine_is_known_without_it) {
  config::Input input;
  input.workload.kind = WorkloadKind::quadratic;
  input.quadratic.dimension = 2000000000;
  EXPECT_EQ(footprint(input, 1).tensors.size(), 2000000000u);
  EXPECT_NE(refusal(input, 1e9, 16, 16), "");
}

}  // namespace
}  // namespace onebit::workload
