/// \file optim_test.cpp
/// Learning-rate schedules, the mean that replaces one, the rates of groups of tensors, the decision when the variance
/// is stable, and when drifting replicas are averaged.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "../rates_reference.hpp"
#include "../support.hpp"
#include "base/error.hpp"
#include "config/input.hpp"
#include "optim/algorithm.hpp"
#include "optim/others/averaging_steps.hpp"
#include "optim/rates/parameter_mean.hpp"
#include "optim/rates/rates.hpp"
#include "optim/rates/residual_factor.hpp"
#include "optim/variance_monitor.hpp"

namespace {

using namespace onebit;

config::Input make_input(Decay decay) {
  config::Input input;
  input.optimizer.lr = 2;
  input.train.steps = 110;
  input.schedule.warmup_steps = 10;
  input.schedule.decay = decay;
  input.schedule.rate = 0.5;
  input.schedule.every = 20;
  return input;
}

TEST(Schedule, rises_linearly_to_the_peak) {
  const config::Input input = make_input(Decay::constant);
  EXPECT_DOUBLE_EQ(optim::learning_rate(input, 1), 0.2);
  EXPECT_DOUBLE_EQ(optim::learning_rate(input, 5), 1.0);
  EXPECT_DOUBLE_EQ(optim::learning_rate(input, 10), 2.0);
  EXPECT_DOUBLE_EQ(optim::learning_rate(input, 11), 2.0);
  EXPECT_DOUBLE_EQ(optim::learning_rate(input, 110), 2.0);
}

TEST(Schedule, decays_as_documented) {
  const auto at = [](Decay decay, long step) { return optim::learning_rate(make_input(decay), step); };
  EXPECT_DOUBLE_EQ(at(Decay::exponential, 29), 2.0);
  EXPECT_DOUBLE_EQ(at(Decay::exponential, 30), 1.0);
  EXPECT_DOUBLE_EQ(at(Decay::exponential, 50), 0.5);
  EXPECT_DOUBLE_EQ(at(Decay::step, 19), 2.0);
  EXPECT_DOUBLE_EQ(at(Decay::step, 20), 1.0);
  EXPECT_DOUBLE_EQ(at(Decay::linear, 35), 1.5);
  EXPECT_DOUBLE_EQ(at(Decay::linear, 110), 0);
  EXPECT_DOUBLE_EQ(at(Decay::cosine, 60), 1);
  EXPECT_DOUBLE_EQ(at(Decay::cosine, 35), 1 + std::sqrt(0.5));
  EXPECT_NEAR(at(Decay::cosine, 110), 0, 1e-12);
  EXPECT_DOUBLE_EQ(at(Decay::averaging, 110), 2);
}

template <class Exec>
class ParameterMeanOf : public ::testing::Test {};
TYPED_TEST_SUITE(ParameterMeanOf, test::Backends, );

// The weight of step s after t of them is (η + 1) Γ(s + η) Γ(t) / (Γ(s) Γ(t + η + 1)), which is unrolled from the
// paper's recurrence.
TYPED_TEST(ParameterMeanOf, steps_has_the_weights_of_polynomial_decay) {
  constexpr int steps = 60, length = 2500;
  const TypeParam exec;
  const double eta = optim::ParameterMean<TypeParam>::eta;
  optim::ParameterMean<TypeParam> mean(length);
  const auto x_of = [](int step, int i) { return std::cos(0.1f * static_cast<float>(step * (i % 7) + i)); };
  for (int t = 1; t <= steps; ++t) {
    std::vector<float> x(length);
    for (int i = 0; i < length; ++i) x[i] = x_of(t, i);
    const auto values = test::to_device<TypeParam>(x);
    if (t == 1) {
      EXPECT_EQ(mean.or_else(values).data(), values.data()) << "no step yet";
    }
    mean.add(exec, values);
    if (t != 1 && t != 2 && t != steps) continue;
    double sum = 0;
    std::vector<double> expected(length, 0.0);
    for (int s = 1; s <= t; ++s) {
      const double weight =
          (eta + 1) * std::exp(std::lgamma(s + eta) + std::lgamma(t) - std::lgamma(s) - std::lgamma(t + eta + 1));
      sum += weight;
      for (int i = 0; i < length; ++i) expected[i] += weight * static_cast<double>(x_of(s, i));
    }
    EXPECT_NEAR(sum, 1, 1e-12);
    const std::vector<float> result = test::to_host(mean.or_else(values));
    for (int i = 0; i < length; ++i) ASSERT_NEAR(result[i], expected[i], 2e-6) << "step " << t << ", element " << i;
  }
  const auto x = test::to_device<TypeParam>(std::vector<float>(3, 1.0f));
  optim::ParameterMean<TypeParam> none;
  none.add(exec, x);
  EXPECT_EQ(none.or_else(x).data(), x.data());
}

TEST(Schedule, paper_bert_rate) {
  config::Input input;
  input.optimizer.lr = 4e-4;
  input.schedule = {12500, Decay::exponential, 0.99, 520};
  input.train.steps = 152000;
  EXPECT_DOUBLE_EQ(optim::learning_rate(input, 12500), 4e-4);
  EXPECT_DOUBLE_EQ(optim::learning_rate(input, 12500 + 519), 4e-4);
  EXPECT_DOUBLE_EQ(optim::learning_rate(input, 12500 + 520), 4e-4 * 0.99);
  EXPECT_DOUBLE_EQ(optim::learning_rate(input, 12500 + 5200), 4e-4 * std::pow(0.99, 10));
}

/// First step at which the monitor freezes ‖v_t‖₁ = norm(t), or 0.
template <class Norm>
long freezes_at(const config::Input& input, Norm norm) {
  optim::VarianceMonitor monitor(input);
  for (long step = 1; step <= 500; ++step)
    if (monitor.record(step, norm(step)).frozen_at == step) return step;
  return 0;
}

config::Input make_monitored(int warmup) {
  config::Input input;
  input.optimizer.beta2 = 0.9;  // Δ = 10
  input.schedule.warmup_steps = warmup;
  return input;
}

TEST(VarianceMonitor, delta_is_the_horizon_of_beta2) {
  config::Input input;
  input.optimizer.beta2 = 0.999;
  EXPECT_EQ(optim::VarianceMonitor(input).delta(), 1000);
}

TEST(VarianceMonitor, waits_until_a_growing_variance_has_settled) {
  // v grows from zero as 1 − β2ᵗ: r_t ≥ 0.96 holds at once, at t = Δ + 1.
  const auto norm = [](long t) { return 1 - std::pow(0.9, t); };
  const long frozen = freezes_at(make_monitored(0), norm);
  EXPECT_GT(frozen, 25);
  EXPECT_GE(norm(frozen - 10) / norm(frozen), 0.96);
  EXPECT_LT(norm(frozen - 11) / norm(frozen - 1), 0.96);
}

TEST(VarianceMonitor, waits_for_a_falling_variance_and_for_the_warmup_of_the_rate) {
  const auto falling = [](long t) { return 1 + std::exp(-0.02 * static_cast<double>(t)); };
  const long frozen = freezes_at(make_monitored(0), falling);
  EXPECT_GT(frozen, 20);
  EXPECT_GE(falling(frozen) / falling(frozen - 10), 0.96);
  EXPECT_EQ(freezes_at(make_monitored(300), falling), 300);
}

TEST(VarianceMonitor, fixed_steps) {
  config::Input input = make_monitored(0);
  input.freeze.step = {"", 37};
  EXPECT_EQ(freezes_at(input, [](long) { return 1.0; }), 37);
  input.freeze.step = {"", 501};
  EXPECT_EQ(freezes_at(input, [](long) { return 1.0; }), 0);
}

TEST(VarianceMonitor, freezes_at_the_next_step_where_t_w_was_skipped) {
  config::Input fixed = make_monitored(0), automatic = fixed;
  fixed.freeze.step = {"", 37};
  automatic.train.steps = 185;  // 20 % are 37
  const auto growing = [](long t) { return std::pow(1.1, t); };
  for (const config::Input& input : {fixed, automatic}) {
    optim::VarianceMonitor monitor(input);
    for (long step = 1; step <= 36; ++step) {
      EXPECT_STREQ(monitor.record(step, growing(step)).frozen_by, "") << step;
      EXPECT_FALSE(monitor.is_frozen()) << step;
    }
    const optim::StepState state = monitor.record(39, growing(39));
    EXPECT_TRUE(monitor.is_frozen());
    EXPECT_EQ(state.frozen_at, 39);
    EXPECT_STREQ(state.frozen_by, input.freeze.step.word.empty() ? "freeze.step" : "freeze.at_most");
  }
}

TEST(VarianceMonitor, auto_freezes_at_most_at_its_share_of_the_run) {
  const auto growing = [](long t) { return std::pow(1.1, t); };
  const auto stable = [](long) { return 1.0; };
  const auto nan = [](long) { return std::nan(""); };
  config::Input input = make_monitored(0);
  input.train.steps = 400;
  EXPECT_EQ(freezes_at(input, stable), 11) << "by r_t";
  EXPECT_EQ(freezes_at(input, nan), 80);
  input.freeze.at_most = 0.5;
  EXPECT_EQ(freezes_at(input, nan), 200);
  input.schedule.warmup_steps = 300;
  EXPECT_EQ(freezes_at(input, nan), 300) << "not before the learning rate's warm-up has ended";
  input.freeze.step = {"", 7};
  EXPECT_EQ(freezes_at(input, nan), 7) << "a fixed T_w knows no share";
  EXPECT_EQ(freezes_at(make_monitored(0), growing), 200) << "of 1000 steps";
}

/// Steps of a run of 10 that average, where those of `skipped` are left out.
std::vector<long> averaging_steps(int interval, const std::vector<long>& skipped) {
  config::Input input;
  input.train.steps = 10;
  input.optimizer.local_steps = interval;
  optim::AveragingSteps averaging(input);
  std::vector<long> steps;
  for (long step = 1; step <= 10; ++step)
    if (std::find(skipped.begin(), skipped.end(), step) == skipped.end() && averaging.due(step)) steps.push_back(step);
  return steps;
}

TEST(AveragingSteps, are_every_interval_and_the_last_one) {
  EXPECT_EQ(averaging_steps(1, {}), (std::vector<long>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(averaging_steps(4, {}), (std::vector<long>{4, 8, 10}));
  EXPECT_EQ(averaging_steps(5, {}), (std::vector<long>{5, 10}));
  EXPECT_EQ(averaging_steps(100, {}), (std::vector<long>{10}));
}

TEST(AveragingSteps, take_the_next_one_for_a_step_that_is_left_out) {
  EXPECT_EQ(averaging_steps(4, {4}), (std::vector<long>{5, 8, 10}));
  EXPECT_EQ(averaging_steps(4, {3, 4, 5, 6, 7, 8}), (std::vector<long>{9, 10}));
}

// γ_{t−1}/γ_t, where γ_{t−1} is that of the last step that compressed; 1 where there is no quotient.
TEST(ResidualFactor, is_the_quotient_of_two_learning_rates) {
  config::Input input;
  input.compression.scale_residual_by_lr = true;
  optim::ResidualFactor factor(input);
  EXPECT_EQ(factor(0.5), 1.0f) << "the first compression has no residual";
  EXPECT_EQ(factor(0.25), 2.0f);
  EXPECT_EQ(factor(1.0), 0.25f);
  EXPECT_EQ(factor(1.0), 1.0f);
  EXPECT_EQ(factor(0.0), 1.0f) << "the end of a decay";
  EXPECT_EQ(factor(1.0), 1.0f);
  EXPECT_EQ(factor(1e-44), 1.0f) << "the quotient is beyond single precision";
  input.compression.scale_residual_by_lr = false;
  optim::ResidualFactor unscaled(input);
  for (const double lr : {0.5, 0.25, 1.0}) EXPECT_EQ(unscaled(lr), 1.0f);
}

/// Tensors that begin and end anywhere in a word; some have no element, and several share a word.
TensorTable tensors_of_any_length() {
  TensorTable tensors;
  int number = 0;
  for (const std::size_t length : {5, 0, 91, 1, 2, 3, 32, 30, 64, 1000, 33, 31, 7}) {
    tensors.add("layer." + std::to_string(number % 3) + "." + std::to_string(number), {length}, number % 2 == 0);
    ++number;
  }
  return tensors;
}

template <class Exec>
class RatesOf : public ::testing::Test {};
TYPED_TEST_SUITE(RatesOf, test::Backends, test::BackendNames);

/// The rates in both ways to read them are those of the reference implementation. \param factor of the weight decays
template <class Exec>
void expect_rates(const config::Input& input, const TensorTable& tensors, double factor) {
  const std::size_t d = tensors.size();
  const optim::Rates<Exec> rates = optim::Rates<Exec>(input, tensors).with_decay_times(factor);
  const Vector<Exec, float> lr_factor("lr_factor", d), decay("decay", d), one_lr_factor("one", d), one_decay("one", d);
  const Exec exec;
  optim::for_each_with_rate(
      exec, "OneBit::test::rates", d, rates, KOKKOS_LAMBDA(std::size_t i, const optim::Rate& rate) {
        lr_factor(i) += rate.lr_factor;  // each element once
        decay(i) += rate.weight_decay;
      });
  for_each(
      exec, "OneBit::test::rates", d, KOKKOS_LAMBDA(std::size_t i) {
        one_lr_factor(i) = rates(i).lr_factor;
        one_decay(i) = rates(i).weight_decay;
      });
  fence(exec, "OneBit::test::rates");
  std::vector<float> expected_lr_factor, expected_decay;
  bool decays = false;
  for (std::size_t i = 0; i < d; ++i) {
    const test::RateOf rate(input, tensors, i);
    expected_lr_factor.push_back(static_cast<float>(rate.lr_factor));
    expected_decay.push_back(static_cast<float>(rate.weight_decay * factor));
    decays = decays || rate.weight_decay > 0;
  }
  EXPECT_TRUE(test::same_bits(test::to_host(lr_factor), expected_lr_factor));
  EXPECT_TRUE(test::same_bits(test::to_host(decay), expected_decay));
  EXPECT_TRUE(test::same_bits(test::to_host(one_lr_factor), expected_lr_factor));
  EXPECT_TRUE(test::same_bits(test::to_host(one_decay), expected_decay));
  EXPECT_EQ(rates.decays(), decays);
}

TYPED_TEST(RatesOf, each_element_are_those_of_its_tensor) {
  const TensorTable tensors = tensors_of_any_length();
  const std::vector<std::vector<config::TensorGroup>> all = {
      {},
      {{"*", 0, {}, ""}},
      {{"layer.1.*", 100, {}, ""}, {"*.1?", 0.5, 0.25, ""}, {"layer.0.*", 1, 0.0, ""}},
      {{"layer.?.9", 3, 0.125, ""}, {"*", 2, 0.5, ""}},
  };
  for (const auto& groups : all)
    for (const double weight_decay : {0.0, 0.1})
      for (const double factor : {1.0, 0.3}) {
        config::Input input;
        input.optimizer.groups = groups;
        input.optimizer.weight_decay = weight_decay;
        SCOPED_TRACE(std::to_string(groups.size()) + " groups, weight decay " + std::to_string(weight_decay));
        expect_rates<TypeParam>(input, tensors, factor);
      }
}

TEST(Rates, a_group_without_tensors_is_refused) {
  const auto refusal = [](const std::vector<config::TensorGroup>& groups) {
    config::Input input;
    input.optimizer.groups = groups;
    try {
      optim::rate_ranges(input, tensors_of_any_length());
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal({{"*.12", 1, {}, "a.yaml:1:1"}, {"layr.0.*", 1, {}, "a.yaml:3:7"}}),
            "a.yaml:3:7: pattern 'layr.0.*' of optimizer.groups matches the name of no tensor\n"
            "  remedy: did you mean 'layer.0.0'?");
  EXPECT_EQ(refusal({{"layer*", 1, {}, "a.yaml:1:1"}, {"*.12", 1, {}, "a.yaml:2:7"}}),
            "a.yaml:2:7: pattern '*.12' of optimizer.groups matches tensors of earlier groups alone\n"
            "  remedy: put this group before those, or leave it out");
  EXPECT_NE(refusal({{"", 1, {}, "a.yaml:1:1"}}), "");
  EXPECT_EQ(refusal({{"*", 1, {}, "a.yaml:1:1"}}), "");
}

}  // namespace
