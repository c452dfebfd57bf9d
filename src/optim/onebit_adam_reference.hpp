#pragma once
/// \file onebit_adam_reference.hpp
/// Algorithm 1 of Tang et al., ICML 2021, as the paper writes it: in plain loops and in double precision, with all
/// ranks in one process. Read it first. onebit_adam.hpp is the same algorithm on many ranks, and a test holds it
/// against this one (tests/mpi/optim_test.cpp).

#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

namespace onebit::optim {

struct OnebitAdamReference {
  using Values = std::vector<double>;  // (d)

  int n;                            // workers; worker k is the server of chunk k, too
  std::vector<std::size_t> chunks;  // (n + 1) first elements
  double beta1, beta2, epsilon;
  Values x, m, v;
  std::vector<Values> delta;  // (n) δ_i, the residuals of the workers
  Values server_delta;        // δ̄, of which server k has chunk k

  OnebitAdamReference(std::vector<std::size_t> chunk_begins, double beta1, double beta2, double epsilon, Values initial)
      : n(static_cast<int>(chunk_begins.size()) - 1),
        chunks(std::move(chunk_begins)),
        beta1(beta1),
        beta2(beta2),
        epsilon(epsilon),
        x(std::move(initial)),
        m(x.size()),
        v(x.size()),
        delta(n, m),
        server_delta(m) {}

  /// Line 2: Adam, for the first T_w steps. \param g (n) of (d) gradients \param lr γ_t
  void warm_up(const std::vector<Values>& g, double lr) {
    for (std::size_t j = 0; j < x.size(); ++j) {
      double average = 0;
      for (int i = 0; i < n; ++i) average += g[i][j] / n;
      m[j] = beta1 * m[j] + (1 - beta1) * average;
      v[j] = beta2 * v[j] + (1 - beta2) * average * average;
      x[j] -= lr * m[j] / (std::sqrt(v[j]) + epsilon);
    }
  }

  /// Lines 5 to 13: v stays as it is, and what travels is a sign for each element and a scale.
  void compressed(const std::vector<Values>& g, double lr) {
    std::vector<Values> sent(n, Values(x.size()));
    for (int i = 0; i < n; ++i) {  // worker i
      Values c(x.size());
      for (std::size_t j = 0; j < x.size(); ++j)
        c[j] = beta1 * m[j] + (1 - beta1) * g[i][j] + delta[i][j];  // line 6: m_i, and line 7: + δ_i
      compress(c, 0, x.size(), sent[i], delta[i]);                  // lines 7, 8
    }
    for (int k = 0; k < n; ++k) {  // the server of chunk k
      Values c(x.size());
      for (std::size_t j = chunks[k]; j < chunks[k + 1]; ++j) {
        for (int i = 0; i < n; ++i) c[j] += sent[i][j] / n;
        c[j] += server_delta[j];  // line 10: the average of what was sent, + δ̄
      }
      compress(c, chunks[k], chunks[k + 1], m, server_delta);  // lines 10, 11: m goes to all workers
    }
    for (std::size_t j = 0; j < x.size(); ++j) x[j] -= lr * m[j] / (std::sqrt(v[j]) + epsilon);  // line 13
  }

  /// C: the signs of a range and the mean of its magnitudes. to ← C(c); residual ← c − C(c).
  static void compress(const Values& c, std::size_t begin, std::size_t end, Values& to, Values& residual) {
    double scale = 0;
    for (std::size_t j = begin; j < end; ++j) scale += std::abs(c[j]) / static_cast<double>(end - begin);
    for (std::size_t j = begin; j < end; ++j) {
      to[j] = c[j] < 0 ? -scale : scale;
      residual[j] = c[j] - to[j];
    }
  }
};

}  // namespace onebit::optim
