#pragma once
/// \file reference.hpp
/// The definitions of nn's kernels, as plain loops over row-major arrays. Tests and benchmarks compare the kernels with
/// them.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "nn/dropout.hpp"

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

/// What dropout multiplies element j of a row by. Philox has the seed's key and the counter
///   words 0: call, 1: site << 16 | position, 2: global sample, 3: step.
/// The call is 16 (j / 128) + j % 16, after all calls of earlier heads of `length` elements. With h = (j / 16) % 8,
/// word h % 4 of the result decides, by its low half if h < 4 and else by its high half: the element is dropped if that
/// is below 2^16 · probability.
template <class Real>
Real dropout_factor_ref(Real probability, const DropoutKey& key, int site, int sample, int position, int head,
                        int length, int j) {
  const auto threshold = static_cast<std::uint32_t>(std::lround(probability * 65536));
  const std::uint32_t calls_per_head = (length + 127) / 128 * 16;
  const std::uint32_t call = head * calls_per_head + j / 128 * 16 + j % 16;
  const std::uint32_t place = static_cast<std::uint32_t>(site << 16 | position);
  const std::uint32_t global_sample = static_cast<std::uint32_t>(key.first_sample + sample);
  const Philox4 random =
      philox(stream_key(key.seed, Stream::dropout), std::uint64_t{place} << 32 | call, key.step << 32 | global_sample);
  const int h = j / 16 % 8;
  const std::uint32_t decision = h < 4 ? random.word[h] & 0xFFFFu : random.word[h - 4] >> 16;
  return decision < threshold ? Real(0) : Real(65536) / Real(65536 - threshold);
}

/// The factors of a (B*T, C) activation.
template <class Real>
Array<Real> dropout_factors_ref(Real probability, const DropoutKey& key, int site, int batch, int sequence,
                                int channels) {
  Array<Real> factors(batch * sequence, channels);
  for (int b = 0; b < batch; ++b)
    for (int t = 0; t < sequence; ++t)
      for (int j = 0; j < channels; ++j)
        factors(b * sequence + t, j) = dropout_factor_ref(probability, key, site, b, t, 0, 0, j);
  return factors;
}

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

/// d_bias += the sum of the rows.
template <class Real>
void add_bias_backward_ref(const Array<Real>& d_output, Array<Real>& d_bias) {
  for (int r = 0; r < d_output.rows; ++r)
    for (int j = 0; j < d_output.columns; ++j) d_bias(j) += d_output(r, j);
}

/// output = tanh(input + bias).
template <class Real>
Array<Real> bias_tanh_ref(const Array<Real>& bias, const Array<Real>& input) {
  Array<Real> output(input.rows, input.columns);
  for (int r = 0; r < input.rows; ++r)
    for (int j = 0; j < input.columns; ++j) output(r, j) = std::tanh(input(r, j) + bias(j));
  return output;
}

/// The gradient at input, and d_bias += the sum of its rows.
template <class Real>
Array<Real> bias_tanh_backward_ref(const Array<Real>& bias, const Array<Real>& input, const Array<Real>& d_output,
                                   Array<Real>& d_bias) {
  Array<Real> d_input(input.rows, input.columns);
  for (int r = 0; r < input.rows; ++r)
    for (int j = 0; j < input.columns; ++j) {
      const Real cosh = std::cosh(input(r, j) + bias(j));
      d_input(r, j) = d_output(r, j) / (cosh * cosh);
    }
  add_bias_backward_ref(d_input, d_bias);
  return d_input;
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

/// output (N, C) of word (V, C), position (≥ T, C) and type (C).
template <class Real>
Array<Real> embed_ref(int sequence, const std::vector<int>& tokens, const Array<Real>& word,
                      const Array<Real>& position, const Array<Real>& type) {
  Array<Real> output(static_cast<int>(tokens.size()), word.columns);
  for (int r = 0; r < output.rows; ++r)
    for (int j = 0; j < output.columns; ++j) output(r, j) = word(tokens[r], j) + position(r % sequence, j) + type(j);
  return output;
}

/// d_word and d_position += their gradients.
template <class Real>
void embed_backward_ref(int sequence, const std::vector<int>& tokens, const Array<Real>& d_output, Array<Real>& d_word,
                        Array<Real>& d_position) {
  for (int r = 0; r < d_output.rows; ++r)
    for (int j = 0; j < d_output.columns; ++j) {
      d_word(tokens[r], j) += d_output(r, j);
      d_position(r % sequence, j) += d_output(r, j);
    }
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

/// Whether each target is the first greatest logit (P, V) of its row.
template <class Real>
std::vector<Real> is_right_ref(const Array<Real>& logits, const std::vector<int>& target) {
  std::vector<Real> right(logits.rows);
  for (int p = 0; p < logits.rows; ++p) {
    int greatest = 0;
    bool is_number = true;
    for (int j = 0; j < logits.columns; ++j) {
      is_number = is_number && !std::isnan(logits(p, j));
      if (logits(p, j) > logits(p, greatest)) greatest = j;
    }
    right[p] = is_number && greatest == target[p];
  }
  return right;
}

}  // namespace onebit::nn
