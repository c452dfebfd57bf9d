#pragma once
/// \file nn_reference.hpp
/// Definitions of kernels of nn, as plain loops, beside those of nn/reference.hpp.

#include "nn/dropout.hpp"
#include "nn/reference.hpp"

namespace onebit::nn {

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

/// output (N, C) of word (V, C), position (≥ T, C) and type (2, C), whose second row is that of positions ≥
/// second_text.
template <class Real>
Array<Real> embed_ref(int sequence, const std::vector<int>& tokens, const Array<Real>& word,
                      const Array<Real>& position, const Array<Real>& type, int second_text) {
  Array<Real> output(static_cast<int>(tokens.size()), word.columns);
  for (int r = 0; r < output.rows; ++r)
    for (int j = 0; j < output.columns; ++j)
      output(r, j) = word(tokens[r], j) + position(r % sequence, j) + type(r % sequence < second_text ? 0 : 1, j);
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

/// Whether the answer of each sample is exact, or its F1, twice: of logits (2 B, T) the pair s ≤ e with the greatest
/// sum, and of equal ones that with the least e, then the least s. \param ends (2 B) rows b T + t of the first and the
/// last token that may be chosen
template <class Real>
std::vector<Real> span_measure_ref(const Array<Real>& logits, const std::vector<int>& ends,
                                   const std::vector<int>& target, bool is_f1) {
  std::vector<Real> measured;
  for (int b = 0; b < logits.rows / 2; ++b) {
    int start = -1, end = -2;
    for (int e = ends[2 * b] % logits.columns; e <= ends[2 * b + 1] % logits.columns; ++e)
      for (int s = ends[2 * b] % logits.columns; s <= e; ++s) {
        const Real sum = logits(2 * b, s) + logits(2 * b + 1, e);
        if (std::isnan(sum) || (start >= 0 && sum <= logits(2 * b, start) + logits(2 * b + 1, end))) continue;
        start = s;
        end = e;
      }
    int common = 0;
    for (int t = start; t <= end; ++t) common += target[2 * b] <= t && t <= target[2 * b + 1];
    const Real f1 = Real(2 * common) / Real(end - start + 1 + target[2 * b + 1] - target[2 * b] + 1);
    const bool is_exact = start == target[2 * b] && end == target[2 * b + 1];
    measured.insert(measured.end(), 2, is_f1 ? f1 : Real(is_exact));
  }
  return measured;
}

}  // namespace onebit::nn
