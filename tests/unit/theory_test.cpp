/// \file theory_test.cpp
/// What the paper's analysis says of error feedback (Tang et al., ICML 2021, Section 5 and the proof of Theorem 1), on the
/// workload `quadratic`. Up to 64 ranks are simulated in one process: every rank is a workload object with its own share
/// of the samples, and comm::CompressedAllreduceRef, which the collectives equal bit for bit (comm_test), is their
/// compressed allreduce. The variance is frozen at 1, as the proof does by a change of variables.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "../support.hpp"
#include "comm/reference.hpp"
#include "workload/quadratic.hpp"

namespace {

using namespace onebit;
using Exec = Kokkos::Serial;

template <class T>
double l2(const std::vector<T>& values) {
  double sum = 0;
  for (const T value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

/// What a test sees of a step: before x ← x − γ m, behind the average.
struct Seen {
  int step;
  double error;                                 ///< f(x_t)
  const Vector<Exec, float>& x;                 ///< x_t
  const std::vector<std::vector<float>>& m_i;   ///< (ranks) what was averaged
  const comm::CompressedAllreduceRef& average;  ///< with the residuals behind it
};

/// n ranks that minimise ½ Σ h_j (x_j − 1)² by m_i = β m + (1−β) g_i; m ← average of the m_i; x ← x − γ m, from the
/// optimum of f: 1-bit Adam behind T_w with v = 1, or without compression momentum SGD (SGD for β = 0).
struct Training {
  int ranks = 1;
  double lr = 0.02;
  double beta = 0.9;
  bool compressed = true;
  int dimension = 512;
  double condition = 1;

  /// Calls each(Seen) in steps 1 … steps.
  template <class Each>
  void run(int steps, const Each& each) const {
    config::Input input;
    input.quadratic = {dimension, condition, 1.0};
    input.train.batch = ranks;
    const Exec exec;
    std::vector<std::unique_ptr<workload::Quadratic<Exec>>> workloads;
    for (int rank = 0; rank < ranks; ++rank)
      workloads.push_back(std::make_unique<workload::Quadratic<Exec>>(input, workload::Share{rank, ranks}));
    const std::size_t d = dimension;
    std::vector<float> m(d);
    std::vector<std::vector<float>> local(ranks, std::vector<float>(d));
    comm::CompressedAllreduceRef average(compress::LayoutRef(d, ranks, compress::Grouping::vector),
                                         compress::Options());
    const Vector<Exec, float> x("x", d), g("g", d);
    Kokkos::deep_copy(x, 1.0f);
    PhaseTimes times;
    for (int t = 1; t <= steps; ++t) {
      double f = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        f = workloads[rank]->gradient(exec, x, t, g, times, {});
        for (std::size_t j = 0; j < d; ++j)
          local[rank][j] = static_cast<float>(beta * m[j] + (1 - beta) * static_cast<double>(g(j)));
      }
      if (compressed) {
        m = average(local);
      } else {
        for (std::size_t j = 0; j < d; ++j) {
          double sum = 0;
          for (const std::vector<float>& one : local) sum += one[j];
          m[j] = static_cast<float>(sum / ranks);
        }
      }
      each(Seen{t, f, x, local, average});
      for (std::size_t j = 0; j < d; ++j) x(j) -= static_cast<float>(lr * static_cast<double>(m[j]));
    }
  }

  double curvature(int j) const { return std::exp(-std::log(condition) * j / std::max(1, dimension - 1)); }
};

/// f(x) averaged over `steps` steps of the stationary state without compression, exactly: its expectation and its
/// standard deviation over runs.
struct Stationary {
  double mean = 0, deviation = 0;

  // z = x − 1 and m of a coordinate are (z, m)' = A (z, m) + b ν with noise ν of variance 1/n. The covariance P solves
  // P = A P Aᵀ + b bᵀ/n; C(k) = (Aᵏ P)₀₀ is z's autocovariance. z is normal, so that Cov(z_t², z_{t+k}²) = 2 C(k)², and
  // the average of ½ h z² over T steps has variance (h/2)² 2 Σ_k C(k)² / T, up to terms of order 1/T².
  Stationary(const Training& training, int steps) {
    for (int j = 0; j < training.dimension; ++j) {
      const double h = training.curvature(j), q = 1 - training.beta, lr = training.lr;
      double a[2][2] = {{1 - lr * q * h, -lr * training.beta}, {q * h, training.beta}};
      const double b[2] = {-lr * q, q};
      double p[2][2];
      for (int r = 0; r < 2; ++r)
        for (int c = 0; c < 2; ++c) p[r][c] = b[r] * b[c] / training.ranks;
      double power[2][2] = {{a[0][0], a[0][1]}, {a[1][0], a[1][1]}};
      for (int doubling = 0; doubling < 30; ++doubling) {  // P + A P Aᵀ + … + A^(2^30−1) …
        double product[2][2] = {}, next[2][2] = {}, squared[2][2] = {};
        for (int r = 0; r < 2; ++r)
          for (int c = 0; c < 2; ++c)
            for (int k = 0; k < 2; ++k) {
              product[r][c] += power[r][k] * p[k][c];
              squared[r][c] += power[r][k] * power[k][c];
            }
        for (int r = 0; r < 2; ++r)
          for (int c = 0; c < 2; ++c)
            for (int k = 0; k < 2; ++k) next[r][c] += product[r][k] * power[c][k];
        for (int r = 0; r < 2; ++r)
          for (int c = 0; c < 2; ++c) {
            p[r][c] += next[r][c];
            power[r][c] = squared[r][c];
          }
      }
      mean += 0.5 * h * p[0][0];
      double column[2] = {p[0][0], p[1][0]}, squares = column[0] * column[0];
      for (int k = 1; k < 4000; ++k) {
        const double z = a[0][0] * column[0] + a[0][1] * column[1];
        column[1] = a[1][0] * column[0] + a[1][1] * column[1];
        column[0] = z;
        squares += 2 * z * z;
      }
      deviation += h * h / 4 * 2 * squares / steps;
    }
    deviation = std::sqrt(deviation);
  }
};

/// f averaged over the steps behind `burn_in`.
double average_error(const Training& training, int burn_in, int steps) {
  double sum = 0;
  training.run(burn_in + steps, [&](const Seen& seen) {
    if (seen.step > burn_in) sum += seen.error / steps;
  });
  return sum;
}

// What was sent, and what is still owed, is what there was: over T steps Σ CA(x_t) + (1/n) Σ_i δ_i + δ̄ = Σ_t (1/n) Σ_i x_{t,i}.
// An element takes part in fewer than 2n + 4 roundings a step (n compensations, n residuals, n − 1 additions, a division,
// and those of the server), each of at most 2⁻²⁴ of the largest number that occurs.
TEST(Theory, nothing_is_lost_over_many_steps) {
  constexpr int ranks = 3, steps = 500;
  constexpr std::size_t d = 1000;
  for (const compress::Grouping grouping : {compress::Grouping::vector, compress::Grouping::chunk}) {
    const compress::LayoutRef layout(d, ranks, grouping);
    comm::CompressedAllreduceRef average(layout, compress::Options());
    std::vector<double> exact(d), sent(d);
    double largest = 0;
    for (int t = 0; t < steps; ++t) {
      std::vector<std::vector<float>> x;
      for (int rank = 0; rank < ranks; ++rank) {
        x.push_back(test::random_values(d, 1 + t * ranks + rank));
        for (std::size_t j = 0; j < d; ++j) {
          exact[j] += static_cast<double>(x[rank][j]) / ranks;
          largest = std::max(largest, std::fabs(static_cast<double>(x[rank][j]) + average.worker_residuals[rank][j]));
        }
      }
      const std::vector<float> averaged = average(x);
      for (std::size_t j = 0; j < d; ++j) sent[j] += averaged[j];
    }
    double owed_most = 0, wrong_most = 0;
    for (int chunk = 0; chunk < ranks; ++chunk)
      for (std::size_t j = layout.begins[chunk]; j < layout.begins[chunk + 1]; ++j) {
        double owed = average.server_residuals[chunk][j - layout.begins[chunk]];
        largest = std::max(largest, std::fabs(owed));
        for (int rank = 0; rank < ranks; ++rank) owed += static_cast<double>(average.worker_residuals[rank][j]) / ranks;
        owed_most = std::max(owed_most, std::fabs(owed));
        wrong_most = std::max(wrong_most, std::fabs(sent[j] + owed - exact[j]));
      }
    EXPECT_LE(wrong_most, steps * (2 * ranks + 4) * std::ldexp(largest, -24));
    EXPECT_GE(owed_most, 100 * wrong_most) << "the residuals are too small to be missed";
  }
}

// Stationary error of SGD: γ σ² / (2 n (2 − γ h)) for each coordinate, so 1/n. Four standard deviations are exceeded by
// chance in one of 16,000 runs; the seed is fixed.
TEST(Theory, error_of_sgd_falls_like_one_over_ranks) {
  for (const int ranks : {1, 4, 16, 64}) {
    Training training;
    training.ranks = ranks;
    training.compressed = false;
    training.beta = 0;
    training.condition = 4;
    constexpr int steps = 400;
    const Stationary expected(training, steps);
    EXPECT_NEAR(average_error(training, 400, steps), expected.mean, 4 * expected.deviation) << ranks << " ranks";
  }
}

// 1-bit Adam has the same stationary error, n times smaller with n ranks, as long as the residuals' part, which is of second
// order in γ, is below the noise of the measurement.
TEST(Theory, error_of_onebit_adam_falls_like_one_over_ranks) {
  for (const int ranks : {1, 4, 16, 64}) {
    Training training;
    training.ranks = ranks;
    constexpr int steps = 800;
    const Stationary expected(training, steps);
    EXPECT_LE(expected.deviation, 0.02 * expected.mean) << "the measurement is too short to say anything";
    EXPECT_NEAR(average_error(training, 200, steps), expected.mean, 4 * expected.deviation) << ranks << " ranks";
  }
}

// The compressor leaves a share of a vector: ‖c − C(c)‖ = ρ ‖c‖ with ρ² = 1 − ‖c‖₁² / (d ‖c‖₂²), 1 − 2/π for a normal vector.
// So ‖δ_t‖ ≤ ρ (‖m_i‖ + ‖δ_{t−1}‖), and no residual exceeds ρ/(1 − ρ) times the greatest vector: the constant ε of the
// paper's Assumption 1, which does not grow with the steps. The same holds for a server's chunk.
TEST(Theory, residuals_stay_bounded) {
  Training training;
  training.ranks = 4;
  const std::size_t d = training.dimension, chunk_length = d / training.ranks;
  std::vector<std::vector<double>> owed(training.ranks, std::vector<double>(d));
  std::vector<std::vector<double>> owed_by_server(training.ranks, std::vector<double>(chunk_length));
  const auto share_left = [](const std::vector<double>& c) {
    double l1 = 0;
    for (const double value : c) l1 += std::fabs(value);
    return std::sqrt(std::max(0.0, 1 - std::pow(l1 / l2(c), 2) / static_cast<double>(c.size())));
  };
  double rho = 0, largest_vector = 0, largest_residual = 0;
  double server_rho = 0, largest_mean = 0, largest_server_residual = 0;
  double early = 0, late = 0;
  constexpr int steps = 2000;
  training.run(steps, [&](const Seen& seen) {
    std::vector<std::vector<double>> mean(training.ranks, std::vector<double>(chunk_length));
    for (int rank = 0; rank < training.ranks; ++rank) {
      const std::vector<float>& residual = seen.average.worker_residuals[rank];
      std::vector<double>& c = owed[rank];
      for (std::size_t j = 0; j < d; ++j) {
        c[j] += seen.m_i[rank][j];
        mean[j / chunk_length][j % chunk_length] += (c[j] - residual[j]) / training.ranks;
      }
      const double left = share_left(c);
      EXPECT_NEAR(l2(residual), left * l2(c), 1e-5 * l2(c));
      rho = std::max(rho, left);
      largest_vector = std::max(largest_vector, l2(seen.m_i[rank]));
      largest_residual = std::max(largest_residual, l2(residual));
      (seen.step <= steps / 2 ? early : late) += l2(residual);
      c.assign(residual.begin(), residual.end());
    }
    for (int server = 0; server < training.ranks; ++server) {
      const std::vector<float>& residual = seen.average.server_residuals[server];
      largest_mean = std::max(largest_mean, l2(mean[server]));
      std::vector<double>& c = owed_by_server[server];
      for (std::size_t j = 0; j < chunk_length; ++j) c[j] += mean[server][j];
      server_rho = std::max(server_rho, share_left(c));
      largest_server_residual = std::max(largest_server_residual, l2(residual));
      c.assign(residual.begin(), residual.end());
    }
  });
  EXPECT_LT(rho, 0.8);
  EXPECT_LE(largest_residual, rho / (1 - rho) * largest_vector);
  EXPECT_LT(server_rho, 0.8);
  EXPECT_LE(largest_server_residual, server_rho / (1 - server_rho) * largest_mean);
  EXPECT_NEAR(late / early, 1, 0.05) << "the residuals grow with the steps";  // like √t, it would be 1.8
}

// The residuals' part of the error: how far x is from where the same noise takes it without compression. As everything but
// the residuals is linear here, this difference is itself a run of the method, without noise and from the optimum. So
// Theorem 1 with σ = 0, f(x_0) = f*, L = 1, v = 1 bounds it: Σ_t ‖∇f‖² (1 − γ − 2γ²/(1−β)²) ≤ 6 γ² ε² T/(1−β)², ε/2 being the
// greatest norm of the workers' average and of the server's residual. And it grows like γ², up to terms of relative order
// γ/(1−β), which the gradient takes back within the memory of the momentum.
TEST(Theory, effect_of_residuals_grows_like_lr_squared) {
  constexpr int burn_in = 1000, steps = 3000;
  double last = 0;
  for (const double lr : {0.005, 0.01, 0.02}) {
    Training training;
    training.ranks = 4;
    training.lr = lr;
    const std::size_t d = training.dimension;
    std::vector<float> dense;
    training.compressed = false;
    training.run(steps, [&](const Seen& seen) { dense.insert(dense.end(), seen.x.data(), seen.x.data() + d); });
    training.compressed = true;
    double all = 0, stationary = 0, epsilon = 0;
    training.run(steps, [&](const Seen& seen) {
      double difference = 0, server = 0;
      std::vector<double> worker(d);
      for (std::size_t j = 0; j < d; ++j) {
        difference += std::pow(seen.x(j) - dense[(seen.step - 1) * d + j], 2);
        for (const std::vector<float>& one : seen.average.worker_residuals) worker[j] += one[j] / 4.0;
      }
      for (const std::vector<float>& chunk : seen.average.server_residuals) server += std::pow(l2(chunk), 2);
      epsilon = std::max({epsilon, 2 * l2(worker), 2 * std::sqrt(server)});
      all += difference;
      if (seen.step > burn_in) stationary += difference / (steps - burn_in);
    });
    const double memory = lr / (1 - training.beta);
    EXPECT_LE((1 - lr - 2 * memory * memory) * all, 6 * memory * memory * epsilon * epsilon * steps);
    if (last > 0) {
      EXPECT_NEAR(std::log2(stationary / last), 2, memory + 0.05) << "learning rate " << lr;
    }
    last = stationary;
  }
}

}  // namespace
