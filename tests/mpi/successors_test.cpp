/// \file successors_test.cpp
/// 0/1 Adam, 1-bit LAMB and 1-bit Lion against independent plain references: double precision, n ranks simulated
/// serially, one function for each algorithm, on random gradients that every rank can make for itself. Also the steps
/// at which 0/1 Adam exchanges what, its kinship to 1-bit Adam, and sums over tensors.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "../rates_reference.hpp"
#include "../support.hpp"
#include "base/device/reference.hpp"
#include "base/random.hpp"
#include "optim/others/onebit_lamb.hpp"
#include "optim/others/zero_one_adam.hpp"

namespace {

using namespace onebit;
using Values = std::vector<double>;
using PerRank = std::vector<Values>;

constexpr int steps = 50;

/// Tensors of a small model; the second one does not decay and the sizes share no factor with 32.
TensorTable make_tensors() {
  TensorTable tensors;
  tensors.add("weight", {13, 7}, true);
  tensors.add("bias", {13}, false);
  tensors.add("output.weight", {5, 21}, true);
  return tensors;
}

/// Gradient of one rank: a mean that all ranks share and noise of its own, larger from tensor to tensor.
Values gradient(const TensorTable& tensors, int rank, int step) {
  Values g;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Philox4 own = philox(stream_key(7, Stream::noise), i, static_cast<std::uint64_t>(step) * 64 + rank);
    const Philox4 shared = philox(stream_key(8, Stream::noise), i, 0);
    g.push_back(static_cast<float>(0.1 * (1 + i / 100) *
                                   (normal(shared.word[0], shared.word[1]) + normal(own.word[0], own.word[1]))));
  }
  return g;
}

double initial(std::size_t i) { return static_cast<float>(0.01 * static_cast<double>(i % 17) - 0.05); }

double square(const Values& values) { return std::inner_product(values.begin(), values.end(), values.begin(), 0.0); }

Values mean_of(const PerRank& all) {
  Values sum(all.front().size());
  for (const Values& one : all)
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += one[i] / static_cast<double>(all.size());
  return sum;
}

/// All gradients of a step, each multiplied by the factor of clipping that goes by the root mean square of their norms.
PerRank local_gradients(const config::Input& input, const TensorTable& tensors, int ranks, int step) {
  PerRank g;
  double mean_square = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    g.push_back(gradient(tensors, rank, step));
    mean_square += square(g.back()) / ranks;
  }
  const double norm = std::sqrt(mean_square), clip = input.optimizer.clip;
  if (clip > 0 && norm > clip)
    for (Values& one : g)
      for (double& value : one) value *= clip / norm;
  return g;
}

/// The average gradient, clipped by its own norm.
Values dense_gradient(const config::Input& input, const TensorTable& tensors, int ranks, int step) {
  PerRank all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(gradient(tensors, rank, step));
  Values g = mean_of(all);
  const double norm = std::sqrt(square(g)), clip = input.optimizer.clip;
  if (clip > 0 && norm > clip)
    for (double& value : g) value *= clip / norm;
  return g;
}

double correction(const config::Input& input, double beta, int count) {
  return input.optimizer.bias_correction ? 1 / (1 - std::pow(beta, count)) : 1;
}

Values initial_parameters(const TensorTable& tensors) {
  Values x;
  for (std::size_t i = 0; i < tensors.size(); ++i) x.push_back(initial(i));
  return x;
}

/// CA of docs/reference/algorithms/averages.md with all ranks and servers in one place; sign compressor with ‖·‖₁
/// scales.
class CompressedAverage {
public:
  CompressedAverage(const config::Input& input, const TensorTable& tensors, int ranks)
      : m_worker(ranks, Values(tensors.size())), m_server(tensors.size()) {
    const std::size_t words = (tensors.size() + 31) / 32, chunk = (words + ranks - 1) / ranks * 32;
    const bool by_tensor = input.compression.group.word == "tensor";
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::size_t tensor = by_tensor ? tensors.at_element(i).offset : 0;
      m_server_groups.push_back(i / chunk * tensors.size() + tensor);
      m_worker_groups.push_back(by_tensor ? m_server_groups.back() : 0);
    }
  }

  Values operator()(const PerRank& x) {
    PerRank sent;
    for (std::size_t rank = 0; rank < x.size(); ++rank)
      sent.push_back(compress(x[rank], m_worker[rank], m_worker_groups));
    return compress(mean_of(sent), m_server, m_server_groups);
  }

private:
  static Values compress(const Values& x, Values& residual, const std::vector<std::size_t>& groups) {
    Values norm(groups.back() + x.size() + 1), count(norm.size()), sent;
    for (std::size_t i = 0; i < x.size(); ++i) {
      residual[i] += x[i];
      norm[groups[i]] += std::fabs(residual[i]);
      count[groups[i]] += 1;
    }
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double scale = norm[groups[i]] / count[groups[i]];
      sent.push_back(residual[i] >= 0 ? scale : -scale);
      residual[i] -= sent[i];
    }
    return sent;
  }

  PerRank m_worker;
  Values m_server;
  std::vector<std::size_t> m_worker_groups, m_server_groups;
};

/// x of every rank after every step.
using Trajectory = std::vector<PerRank>;
using Reference = Trajectory (*)(const config::Input&, const TensorTable&, int ranks);

Trajectory zero_one_adam_reference(const config::Input& input, const TensorTable& tensors, int ranks) {
  const auto& in = input.optimizer;
  const auto& policy = input.zero_one;
  const std::size_t d = tensors.size();
  CompressedAverage compressed_average(input, tensors, ranks);
  PerRank x(ranks, initial_parameters(tensors)), m(ranks, Values(d)), u(ranks, Values(d));
  Values v(d), x_last = x[0];
  int updates = 0, next_update = 1, t_last = 0;
  double lr_sum = 0, corrected_lr_sum = 0;
  Trajectory all;
  for (int t = 1; t <= steps; ++t) {
    const double lr = optim::learning_rate(input, t), corrected_lr = lr * correction(input, in.beta1, t);
    if (t <= policy.variance_freeze_step && t == next_update) {
      ++updates;
      next_update = t + (1 << updates / policy.variance_update_scaler);
      const Values g = dense_gradient(input, tensors, ranks, t);
      for (std::size_t i = 0; i < d; ++i) {
        v[i] = in.beta2 * v[i] + (1 - in.beta2) * g[i] * g[i];
        const double root = std::sqrt(v[i] * correction(input, in.beta2, updates)) + in.epsilon;
        for (int rank = 0; rank < ranks; ++rank) {
          m[rank][i] = in.beta1 * m[rank][i] + (1 - in.beta1) * g[i];
          const test::RateOf rate(input, tensors, i);
          x[rank][i] =
              x_last[i] - rate.lr_factor * (corrected_lr * m[rank][i] / root + lr * rate.weight_decay * x_last[i]);
        }
      }
      x_last = x[0];
      t_last = t;
    } else {
      const PerRank g = local_gradients(input, tensors, ranks, t);
      lr_sum += lr;
      corrected_lr_sum += corrected_lr;
      for (int rank = 0; rank < ranks; ++rank)
        for (std::size_t i = 0; i < d; ++i) {
          m[rank][i] = in.beta1 * m[rank][i] + (1 - in.beta1) * g[rank][i];
          u[rank][i] += corrected_lr * m[rank][i];
        }
      int interval = 1;
      if (t > policy.variance_freeze_step)
        interval =
            std::min(policy.local_step_clipper, 1 << (t - policy.variance_freeze_step - 1) / policy.local_step_scaler);
      const bool exchanges = t - t_last >= interval || t == steps;
      if (exchanges) u.assign(ranks, compressed_average(u));
      for (int rank = 0; rank < ranks; ++rank)
        for (std::size_t i = 0; i < d; ++i) {
          const double root = std::sqrt(v[i] * correction(input, in.beta2, updates)) + in.epsilon;
          const test::RateOf rate(input, tensors, i);
          x[rank][i] = x_last[i] - rate.lr_factor * (u[rank][i] / root + lr_sum * rate.weight_decay * x_last[i]);
        }
      if (exchanges) {
        if (corrected_lr_sum > 0)
          for (int rank = 0; rank < ranks; ++rank)
            for (std::size_t i = 0; i < d; ++i) m[rank][i] = u[rank][i] / corrected_lr_sum;
        u.assign(ranks, Values(d));
        x_last = x[0];
        t_last = t;
        lr_sum = corrected_lr_sum = 0;
      }
    }
    all.push_back(x);
  }
  return all;
}

Trajectory onebit_lamb_reference(const config::Input& input, const TensorTable& tensors, int ranks) {
  const auto& in = input.optimizer;
  const auto& lamb = input.lamb;
  const std::size_t d = tensors.size();
  const int t_w = static_cast<int>(input.freeze.step.number);
  CompressedAverage compressed_average(input, tensors, ranks);
  Values x = initial_parameters(tensors), m(d), v(d), fresh, scale(d, 1.0);
  Values average(tensors.tensors().size()), factor(average.size(), 1.0);
  Trajectory all;
  for (int t = 1; t <= steps; ++t) {
    const double c1 = correction(input, in.beta1, std::min(t, t_w)), c2 = correction(input, in.beta2, std::min(t, t_w));
    const auto root = [&](double variance) { return std::sqrt(c2 * variance) + in.epsilon; };
    if (t <= t_w) {
      const Values g = dense_gradient(input, tensors, ranks, t);
      for (std::size_t i = 0; i < d; ++i) {
        m[i] = in.beta1 * m[i] + (1 - in.beta1) * g[i];
        v[i] = in.beta2 * v[i] + (1 - in.beta2) * g[i] * g[i];
      }
    } else {
      const PerRank g = local_gradients(input, tensors, ranks, t);
      PerRank local(ranks, Values(d));
      for (int rank = 0; rank < ranks; ++rank)
        for (std::size_t i = 0; i < d; ++i) local[rank][i] = scale[i] * (in.beta1 * m[i] + (1 - in.beta1) * g[rank][i]);
      const Values averaged = compressed_average(local);
      for (std::size_t i = 0; i < d; ++i) {
        const double now = averaged[i] / scale[i], reconstructed = (now - in.beta1 * m[i]) / (1 - in.beta1);
        fresh[i] = in.beta2 * fresh[i] + (1 - in.beta2) * reconstructed * reconstructed;
        m[i] = now;
      }
    }
    Values mean_scale;
    for (std::size_t l = 0; l < tensors.tensors().size(); ++l) {
      const Tensor& tensor = tensors.tensors()[l];
      double norm = 0, update_norm = 0, preconditioned_norm = 0, ratio = 0, momentum_norm = 0;
      for (std::size_t i = tensor.offset; i < tensor.offset + tensor.size(); ++i) {
        const double preconditioned = c1 * m[i] / root(v[i]);
        norm += x[i] * x[i];
        preconditioned_norm += preconditioned * preconditioned;
        update_norm += std::pow(preconditioned + test::RateOf(input, tensors, i).weight_decay * x[i], 2);
        momentum_norm += m[i] * m[i];
        if (t > t_w) ratio = std::max(ratio, root(v[i]) / root(fresh[i]));
      }
      double coefficient = 1;
      if (t <= t_w) {
        if (norm > 0 && update_norm > 0) {
          coefficient = std::min(lamb.max_coefficient, std::max(lamb.min_coefficient, std::sqrt(norm / update_norm)));
          average[l] = 0.9 * average[l] + 0.1 * coefficient;
        }
      } else {
        if (in.weight_decay > 0 || !in.groups.empty()) {
          const double share = std::min(1.0, std::sqrt(preconditioned_norm / update_norm));
          ratio = ratio * share + 1 - share;
        }
        ratio = std::min(4.0, std::max(0.5, ratio));
        ratio = std::min(ratio, factor[l] * 1.1);
        ratio = std::max(ratio, factor[l] * 0.9);
        factor[l] = ratio;
        coefficient = ratio * average[l];
      }
      for (std::size_t i = tensor.offset; i < tensor.offset + tensor.size(); ++i)
        x[i] -= test::RateOf(input, tensors, i).lr_factor * optim::learning_rate(input, t) * coefficient *
                (c1 * m[i] / root(v[i]) + test::RateOf(input, tensors, i).weight_decay * x[i]);
      mean_scale.push_back(std::sqrt(momentum_norm / static_cast<double>(tensor.size())));
    }
    if (t == t_w) {
      fresh = v;
      const double mean = std::accumulate(mean_scale.begin(), mean_scale.end(), 0.0) / mean_scale.size();
      for (std::size_t l = 0; l < mean_scale.size(); ++l)
        for (std::size_t i = tensors.tensors()[l].offset; i < tensors.tensors()[l].offset + tensors.tensors()[l].size();
             ++i)
          scale[i] = mean / mean_scale[l];
    }
    all.push_back(PerRank(ranks, x));
  }
  return all;
}

Trajectory onebit_lion_reference(const config::Input& input, const TensorTable& tensors, int ranks) {
  const auto& in = input.optimizer;
  const std::size_t d = tensors.size();
  CompressedAverage compressed_average(input, tensors, ranks);
  Values x = initial_parameters(tensors), m(d);
  Trajectory all;
  for (int t = 1; t <= steps; ++t) {
    PerRank local = local_gradients(input, tensors, ranks, t);
    for (Values& one : local)
      for (std::size_t i = 0; i < d; ++i) one[i] = in.beta2 * m[i] + (1 - in.beta2) * one[i];
    const Values averaged = compressed_average(local);
    for (std::size_t i = 0; i < d; ++i) {
      const double g = (averaged[i] - in.beta2 * m[i]) / (1 - in.beta2);
      const double c = in.beta1 * m[i] + (1 - in.beta1) * g;
      const double sign = c > 0 ? 1 : c < 0 ? -1 : 0;
      const test::RateOf rate(input, tensors, i);
      x[i] -= rate.lr_factor * optim::learning_rate(input, t) * (sign + rate.weight_decay * x[i]);
      m[i] = averaged[i];
    }
    all.push_back(PerRank(ranks, x));
  }
  return all;
}

config::Input make_input(const std::string& algorithm) {
  config::Input input;
  input.optimizer.algorithm = algorithm;
  input.optimizer.lr = 0.01;
  input.optimizer.beta2 = 0.99;
  input.train.steps = steps;
  input.freeze.step = {"", 20};
  input.zero_one = {20, 4, 8, 4};
  return input;
}

/// What a run of an algorithm on this rank leaves after each step.
struct Run {
  std::vector<std::vector<float>> x;
  std::vector<optim::StepState> states;
  std::vector<std::uint64_t> bytes;
};

template <class Exec>
Run run(const config::Input& input, const TensorTable& tensors,
        const std::function<Values(const TensorTable&, int rank, int step)>& gradient_of = gradient) {
  const Communicator world;
  const Exec exec;
  const auto transport = comm::make_transport<Exec>(TransportKind::automatic, world);
  comm::DenseAverage<Exec> average(*transport);
  const auto algorithm = optim::make_algorithm<Exec>({input, tensors, *transport, average});
  const Values start = initial_parameters(tensors);
  const Vector<Exec, float> x = test::to_device<Exec>(std::vector<float>(start.begin(), start.end()));
  PhaseTimes times;
  Run run;
  for (int t = 1; t <= steps; ++t) {
    const Values mine = gradient_of(tensors, world.rank(), t);
    const Vector<Exec, float> g = test::to_device<Exec>(std::vector<float>(mine.begin(), mine.end()));
    double mean_square = square(mine) / world.size();
    world.sum(&mean_square, 1);
    const std::uint64_t before = transport->traffic().total();
    run.states.push_back(algorithm->step(exec, x, g, {t, optim::learning_rate(input, t), mean_square}, times));
    run.bytes.push_back(transport->traffic().total() - before);
    run.x.push_back(test::to_host(x));
  }
  return run;
}

/// The algorithm is its reference on every rank after every step, and its replicas hold the same bits where it says so.
template <class Exec>
void compare(const config::Input& input, Reference reference) {
  const Communicator world;
  const TensorTable tensors = make_tensors();
  const Run one = run<Exec>(input, tensors);
  const Trajectory expected = reference(input, tensors, world.size());
  for (int t = 1; t <= steps; ++t) {
    const std::vector<float>& x = one.x[t - 1];
    const Values& other = expected[t - 1][world.rank()];
    double difference = 0;
    for (std::size_t i = 0; i < x.size(); ++i) difference += (x[i] - other[i]) * (x[i] - other[i]);
    ASSERT_LE(std::sqrt(difference / square(other)), 1e-6) << input.optimizer.algorithm << " at step " << t;
    const Values bits(x.begin(), x.end());
    const Values all = world.gather(bits.data(), static_cast<int>(bits.size()));
    for (int rank = 0; rank < world.size(); ++rank) {
      if (rank == world.rank()) continue;
      const bool same = std::equal(bits.begin(), bits.end(), all.begin() + rank * bits.size());
      ASSERT_EQ(same, one.states[t - 1].synchronised) << "step " << t << ", ranks " << world.rank() << ", " << rank;
    }
  }
  EXPECT_TRUE(one.states.back().synchronised);
}

template <class Exec>
class Successors : public ::testing::Test {};
TYPED_TEST_SUITE(Successors, test::Backends, test::BackendNames);

/// Inputs that differ in what every algorithm has: groups of elements and of tensors, weight decay, clipping, bias
/// correction, decay of γ to 0.
std::vector<config::Input> variants(const std::string& algorithm) {
  std::vector<config::Input> all(6, make_input(algorithm));
  all[1].compression.group = {"tensor", 0};
  all[1].optimizer.weight_decay = 0.1;
  all[2].optimizer.clip = 1.0;
  all[3].optimizer.bias_correction = true;
  all[3].optimizer.weight_decay = 0.01;
  all[4].schedule.warmup_steps = 5;
  all[4].schedule.decay = Decay::cosine;
  all[5].optimizer.groups = {{"bias", 3, 0.2, ""}, {"*.weight", 0.25, {}, ""}};
  all[5].optimizer.weight_decay = 0.1;
  all[5].optimizer.bias_correction = algorithm == "zero_one_adam";
  return all;
}

TYPED_TEST(Successors, zero_one_adam_is_its_reference) {
  for (config::Input& input : variants("zero_one_adam")) {
    compare<TypeParam>(input, zero_one_adam_reference);
    input.zero_one.local_step_clipper = 1;
    compare<TypeParam>(input, zero_one_adam_reference);
  }
}

TYPED_TEST(Successors, onebit_lamb_is_its_reference) {
  for (config::Input& input : variants("onebit_lamb")) {
    compare<TypeParam>(input, onebit_lamb_reference);
    input.lamb.max_coefficient = 0.05;  // the bound acts
    compare<TypeParam>(input, onebit_lamb_reference);
    input.optimizer.beta2 = 0.05;  // the factor's bounds act: a variance that forgets is soon far from the frozen one
    compare<TypeParam>(input, onebit_lamb_reference);
  }
}

// The momentum of one tensor is so small beside the others' that float does not hold their quotient.
TYPED_TEST(Successors, onebit_lamb_leaves_a_tensor_of_hardly_any_momentum_unscaled) {
  const TensorTable tensors = make_tensors();
  const Tensor& still = tensors.tensors()[1];
  const auto with = [&](float gradient_of_still) {
    return [&, gradient_of_still](const TensorTable&, int rank, int step) {
      Values g = gradient(tensors, rank, step);
      for (double& value : g) value *= 1024;
      std::fill_n(g.begin() + still.offset, still.size(), 0);
      g[still.offset + 3] = gradient_of_still;
      return g;
    };
  };
  for (const char* group : {"vector", "tensor"}) {
    config::Input input = make_input("onebit_lamb");
    input.compression.group = {group, 0};
    const Run tiny = run<TypeParam>(input, tensors, with(2e-37f)), none = run<TypeParam>(input, tensors, with(0));
    for (int t = 0; t < steps; ++t) {
      std::vector<float> x = tiny.x[t], expected = none.x[t];
      ASSERT_TRUE(std::all_of(x.begin(), x.end(), [](float value) { return std::isfinite(value); }))
          << "step " << t + 1 << ", group " << group;
      for (std::vector<float>* of_others : {&x, &expected})
        of_others->erase(of_others->begin() + still.offset, of_others->begin() + still.offset + still.size());
      ASSERT_TRUE(test::same_bits(x, expected)) << "step " << t + 1 << ", group " << group;
    }
  }
}

TYPED_TEST(Successors, onebit_lion_is_its_reference) {
  for (config::Input& input : variants("onebit_lion")) {
    input.optimizer.lr = 1e-3;
    compare<TypeParam>(input, onebit_lion_reference);
    input.optimizer.beta1 = 0.95;  // c in the middle between m⁻ and m, so that its sign follows from neither alone
    input.optimizer.beta2 = 0.9;
    compare<TypeParam>(input, onebit_lion_reference);
  }
}

// F = 20, κ = 4: variance updates at 1–4, then every 2nd, then every 4th step. α = 8, H = 4: exchanges at every step up
// to 28, every 2nd up to 36, every 4th from then on, and at the last step.
TYPED_TEST(Successors, zero_one_adam_sends_when_it_says) {
  const Communicator world;
  const Run one = run<TypeParam>(make_input("zero_one_adam"), make_tensors());
  std::vector<int> dense, exchanges;
  for (int t = 1; t <= steps; ++t) {
    const optim::StepState& state = one.states[t - 1];
    EXPECT_EQ(state.frozen_at, t < 20 ? 0 : 20);
    if (!state.compressed) dense.push_back(t);
    if (state.compressed && state.synchronised) exchanges.push_back(t);
    EXPECT_EQ(state.synchronised && world.size() > 1, one.bytes[t - 1] > 0);
  }
  EXPECT_EQ(dense, (std::vector<int>{1, 2, 3, 4, 6, 8, 10, 12, 16, 20}));
  EXPECT_EQ(exchanges, (std::vector<int>{5,  7,  9,  11, 13, 14, 15, 17, 18, 19, 21, 22, 23,
                                         24, 25, 26, 27, 28, 30, 32, 34, 36, 40, 44, 48, 50}));
}

// Without local steps and with a variance update in every step up to F, it is 1-bit Adam with T_w = F, bit for bit
// where multiplying by γ is exact.
TYPED_TEST(Successors, zero_one_adam_without_local_steps_is_onebit_adam) {
  config::Input input = make_input("zero_one_adam");
  input.optimizer.lr = 1.0 / 128;
  input.zero_one = {20, 100, 8, 1};
  const Run zero_one = run<TypeParam>(input, make_tensors());
  input.optimizer.algorithm = "onebit_adam";
  const Run onebit = run<TypeParam>(input, make_tensors());
  for (int t = 1; t <= steps; ++t) {
    ASSERT_TRUE(test::same_bits(zero_one.x[t - 1], onebit.x[t - 1])) << "step " << t;
    EXPECT_EQ(zero_one.bytes[t - 1], onebit.bytes[t - 1]);
  }
}

// While the interval is at most κ, a power of two, the published rule, t mod interval = 0, names the same steps.
TEST(ZeroOnePolicy, updates_the_variance_when_deepspeed_does) {
  for (const int scaler : {4, 16, 64}) {
    config::Input input;
    input.zero_one.variance_update_scaler = scaler;
    input.zero_one.variance_freeze_step = scaler * (2 * scaler - 1);
    optim::ZeroOnePolicy policy(input);
    long interval = 1, counter = 0;
    for (long t = 1; t <= 2 * input.zero_one.variance_freeze_step; ++t) {
      const bool expected = t <= input.zero_one.variance_freeze_step && t % interval == 0;
      if (expected && ++counter == scaler) {
        counter = 0;
        interval *= 2;
      }
      EXPECT_EQ(policy.updates_variance(t), expected) << "step " << t << ", scaler " << scaler;
      if (policy.updates_variance(t)) policy.variance_updated(t);
    }
    EXPECT_EQ(interval, 2 * scaler);
  }
}

struct TensorSums {
  std::vector<double> sums, maxima;   // per tensor: Σ x and max x²
  std::vector<std::uint32_t> owners;  // per element: its tensor
};

// A free function: nvcc refuses extended lambdas in TestBody(), which is private.
template <class Exec>
TensorSums tensor_sums(const TensorTable& tensors, const std::vector<float>& values) {
  const std::size_t count = tensors.tensors().size();
  const auto x = test::to_device<Exec>(values);
  const Exec exec;
  const optim::TensorReduction<Exec> reduction(tensors);
  const Vector<Exec, double> sums("sums", count), maxima("maxima", count);
  reduction.sums(
      exec, "OneBit::test::sums", sums, KOKKOS_LAMBDA(std::size_t i) { return static_cast<double>(x(i)); });
  reduction.maxima(
      exec, "OneBit::test::maxima", maxima,
      KOKKOS_LAMBDA(std::size_t i) { return static_cast<double>(x(i)) * static_cast<double>(x(i)); });
  const optim::TensorOf<Exec> tensor_of(tensors);
  const Vector<Exec, std::uint32_t> owners("owners", tensors.size());
  for_each(
      exec, "OneBit::test::owners", tensors.size(),
      KOKKOS_LAMBDA(std::size_t i) { owners(i) = static_cast<std::uint32_t>(tensor_of(i)); });
  return {test::to_host(sums), test::to_host(maxima), test::to_host(owners)};
}

// Tensors longer than a block, of one element, and many in one block of the look-up.
TYPED_TEST(Successors, tensor_sums_maxima_and_look_up) {
  TensorTable tensors;
  for (const std::size_t size : {3000u, 1u, 1u, 1023u, 1024u, 1025u, 7u, 5u, 1u, 4100u, 1u})
    tensors.add("t", {size}, true);
  const std::vector<float> values = test::random_values(tensors.size(), 3);
  const TensorSums found = tensor_sums<TypeParam>(tensors, values);
  std::vector<double> expected_sums, expected_maxima;
  for (std::size_t l = 0; l < tensors.tensors().size(); ++l) {
    const Tensor& tensor = tensors.tensors()[l];
    std::vector<double> terms;
    double greatest = 0;
    for (std::size_t i = tensor.offset; i < tensor.offset + tensor.size(); ++i) {
      ASSERT_EQ(found.owners[i], l) << "element " << i;
      terms.push_back(values[i]);
      greatest = std::max(greatest, static_cast<double>(values[i]) * values[i]);
    }
    expected_sums.push_back(ordered_sum_ref(terms));
    expected_maxima.push_back(greatest);
  }
  EXPECT_TRUE(test::same_bits(found.sums, expected_sums));
  EXPECT_TRUE(test::same_bits(found.maxima, expected_maxima));
}

}  // namespace
