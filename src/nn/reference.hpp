#pragma once
/// \file reference.hpp
/// The definitions of nn's greater kernels, as plain loops over row-major arrays. Benchmarks and tests compare the
/// kernels with them; tests/nn_reference.hpp has the others.

#include <algorithm>
#include <cmath>
#include <vector>

namespace onebit::nn {

/// A row-major matrix; a vector is a matrix of one row.
template <class Real>
struct Array {
  int rows = 0, columns = 0;
  std::vector<Real> values;

  Array() = default;
  Array(int rows_, int columns_) : rows(rows_), columns(columns_), values(std::size_t(rows_) * columns_, Real(0)) {}
  Real& operator()(int r, int j) { return values[std::size_t(r) * columns + j]; }
  const Real& operator()(int r, int j) const { return values[std::size_t(r) * columns + j]; }
  Real& operator()(int j) { return values[j]; }
  const Real& operator()(int j) const { return values[j]; }
};

/// output (N, out) = input (N, in) · weightᵀ.
template <class Real>
Array<Real> dense_ref(const Array<Real>& input, const Array<Real>& weight) {
  Array<Real> output(input.rows, weight.rows);
  for (int r = 0; r < input.rows; ++r)
    for (int o = 0; o < weight.rows; ++o)
      for (int i = 0; i < weight.columns; ++i) output(r, o) += input(r, i) * weight(o, i);
  return output;
}

/// d_input = d_output · weight; d_weight += d_outputᵀ · input.
template <class Real>
void dense_backward_ref(const Array<Real>& input, const Array<Real>& weight, const Array<Real>& d_output,
                        Array<Real>& d_input, Array<Real>& d_weight) {
  d_input = Array<Real>(input.rows, input.columns);
  for (int r = 0; r < input.rows; ++r)
    for (int o = 0; o < weight.rows; ++o)
      for (int i = 0; i < weight.columns; ++i) {
        d_input(r, i) += d_output(r, o) * weight(o, i);
        d_weight(o, i) += d_output(r, o) * input(r, i);
      }
}

/// GELU in its tanh form.
template <class Real>
Real gelu_ref(Real u) {
  const Real root = Real(0.7978845608028654);  // √(2/π)
  return u / 2 * (1 + std::tanh(root * (u + Real(0.044715) * u * u * u)));
}

/// Its derivative.
template <class Real>
Real gelu_derivative_ref(Real u) {
  const Real root = Real(0.7978845608028654);  // √(2/π)
  const Real t = std::tanh(root * (u + Real(0.044715) * u * u * u));
  return (1 + t) / 2 + u / 2 * (1 - t * t) * root * (1 + 3 * Real(0.044715) * u * u);
}

/// LayerNorm of each row. \param weight, bias (1, columns)
template <class Real>
Array<Real> layer_norm_ref(const Array<Real>& input, const Array<Real>& weight, const Array<Real>& bias, Real epsilon) {
  Array<Real> output(input.rows, input.columns);
  const int C = input.columns;
  for (int r = 0; r < input.rows; ++r) {
    Real mean = 0, variance = 0;
    for (int j = 0; j < C; ++j) mean += input(r, j) / C;
    for (int j = 0; j < C; ++j) variance += (input(r, j) - mean) * (input(r, j) - mean) / C;
    for (int j = 0; j < C; ++j)
      output(r, j) = (input(r, j) - mean) / std::sqrt(variance + epsilon) * weight(j) + bias(j);
  }
  return output;
}

/// d_input = its gradient; d_weight, d_bias += theirs.
template <class Real>
void layer_norm_backward_ref(const Array<Real>& input, const Array<Real>& weight, Real epsilon,
                             const Array<Real>& d_output, Array<Real>& d_input, Array<Real>& d_weight,
                             Array<Real>& d_bias) {
  d_input = Array<Real>(input.rows, input.columns);
  const int C = input.columns;
  for (int r = 0; r < input.rows; ++r) {
    Real mean = 0, variance = 0, mean_a = 0, mean_ax = 0;
    for (int j = 0; j < C; ++j) mean += input(r, j) / C;
    for (int j = 0; j < C; ++j) variance += (input(r, j) - mean) * (input(r, j) - mean) / C;
    const Real std = std::sqrt(variance + epsilon);
    for (int j = 0; j < C; ++j) {
      const Real normalized = (input(r, j) - mean) / std, a = d_output(r, j) * weight(j);
      mean_a += a / C;
      mean_ax += a * normalized / C;
      d_weight(j) += d_output(r, j) * normalized;
      d_bias(j) += d_output(r, j);
    }
    for (int j = 0; j < C; ++j)
      d_input(r, j) = (d_output(r, j) * weight(j) - mean_a - (input(r, j) - mean) / std * mean_ax) / std;
  }
}

/// Probabilities (B*A*T, T) of A heads from qkv (B*T, 3 H), before dropout.
template <class Real>
Array<Real> attention_probabilities_ref(const Array<Real>& qkv, int batch, int heads, int sequence, bool causal) {
  const int H = qkv.columns / 3, D = H / heads, T = sequence;
  Array<Real> probabilities(batch * heads * T, T);
  for (int b = 0; b < batch; ++b)
    for (int a = 0; a < heads; ++a)
      for (int i = 0; i < T; ++i) {
        const int visible = causal ? i + 1 : T, r = (b * heads + a) * T + i;
        Real largest = -INFINITY, sum = 0;
        for (int j = 0; j < visible; ++j) {
          Real score = 0;
          for (int d = 0; d < D; ++d) score += qkv(b * T + i, a * D + d) * qkv(b * T + j, H + a * D + d);
          probabilities(r, j) = score / std::sqrt(Real(D));
          largest = std::max(largest, probabilities(r, j));
        }
        for (int j = 0; j < visible; ++j) sum += probabilities(r, j) = std::exp(probabilities(r, j) - largest);
        for (int j = 0; j < visible; ++j) probabilities(r, j) /= sum;
      }
  return probabilities;
}

/// context (B*T, H). \param factors (B*A*T, T) of dropout
template <class Real>
Array<Real> attention_ref(const Array<Real>& qkv, int batch, int heads, int sequence, bool causal,
                          const Array<Real>& factors) {
  const int H = qkv.columns / 3, D = H / heads, T = sequence;
  const Array<Real> probabilities = attention_probabilities_ref(qkv, batch, heads, sequence, causal);
  Array<Real> context(batch * T, H);
  for (int b = 0; b < batch; ++b)
    for (int a = 0; a < heads; ++a)
      for (int i = 0; i < T; ++i)
        for (int j = 0; j < T; ++j) {
          const int r = (b * heads + a) * T + i;
          for (int d = 0; d < D; ++d)
            context(b * T + i, a * D + d) += factors(r, j) * probabilities(r, j) * qkv(b * T + j, 2 * H + a * D + d);
        }
  return context;
}

/// The gradient at qkv (B*T, 3 H).
template <class Real>
Array<Real> attention_backward_ref(const Array<Real>& qkv, int batch, int heads, int sequence, bool causal,
                                   const Array<Real>& factors, const Array<Real>& d_context) {
  const int H = qkv.columns / 3, D = H / heads, T = sequence;
  const Array<Real> probabilities = attention_probabilities_ref(qkv, batch, heads, sequence, causal);
  Array<Real> d_qkv(batch * T, 3 * H);
  for (int b = 0; b < batch; ++b)
    for (int a = 0; a < heads; ++a)
      for (int i = 0; i < T; ++i) {
        const int r = (b * heads + a) * T + i, query = b * T + i;
        std::vector<Real> d_probability(T);
        Real product = 0;
        for (int j = 0; j < T; ++j) {
          const int key = b * T + j;
          for (int d = 0; d < D; ++d) {
            d_probability[j] += factors(r, j) * d_context(query, a * D + d) * qkv(key, 2 * H + a * D + d);
            d_qkv(key, 2 * H + a * D + d) += factors(r, j) * probabilities(r, j) * d_context(query, a * D + d);
          }
          product += probabilities(r, j) * d_probability[j];
        }
        for (int j = 0; j < T; ++j) {
          const int key = b * T + j;
          const Real d_score = probabilities(r, j) * (d_probability[j] - product) / std::sqrt(Real(D));
          for (int d = 0; d < D; ++d) {
            d_qkv(query, a * D + d) += d_score * qkv(key, H + a * D + d);
            d_qkv(key, H + a * D + d) += d_score * qkv(query, a * D + d);
          }
        }
      }
  return d_qkv;
}

/// losses (P). \param gradient (P, V) ← gradient of their sum
template <class Real>
std::vector<Real> cross_entropy_ref(const Array<Real>& logits, const Array<Real>& bias, const std::vector<int>& target,
                                    Array<Real>& gradient) {
  std::vector<Real> losses(logits.rows);
  gradient = Array<Real>(logits.rows, logits.columns);
  for (int p = 0; p < logits.rows; ++p) {
    Real largest = -INFINITY, sum = 0;
    for (int j = 0; j < logits.columns; ++j) largest = std::max(largest, logits(p, j) + bias(j));
    for (int j = 0; j < logits.columns; ++j) sum += std::exp(logits(p, j) + bias(j) - largest);
    for (int j = 0; j < logits.columns; ++j)
      gradient(p, j) = std::exp(logits(p, j) + bias(j) - largest) / sum - (j == target[p] ? 1 : 0);
    losses[p] = std::log(sum) + largest - logits(p, target[p]) - bias(target[p]);
  }
  return losses;
}

}  // namespace onebit::nn
