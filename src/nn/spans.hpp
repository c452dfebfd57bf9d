#pragma once
/// \file spans.hpp
/// The kernels of a head that points at an answer, a span of the second text's tokens (Devlin et al. 2019, section 4.2;
/// BertForQuestionAnswering in transformers).
///
/// A row of n_{2 L} has two scores: of being the span's first token, and its last one. Each is a choice among the
/// tokens of the second text, so there are 2 B predictions, those of sample b in the rows 2 b (start) and 2 b + 1 (end)
/// of the logits, with T logits each. Padding is no token of the text.

#include "nn/rows.hpp"

namespace onebit::nn {

/// What is measured of an answer, which is the span (s, e), s ≤ e, with the greatest sum of logits; its first one, if
/// there are several.
enum class SpanMeasure {
  exact,  ///< 1 if both ends are right, else 0: SQuAD's exact match
  f1      ///< 2 · common tokens / (tokens of the answer + tokens of the right one): SQuAD's F1
};

/// Instantiated for float and double on every backend.
template <class Exec, class Real>
struct Spans {
  using Matrix = MatrixRef<Exec, Real>;
  using ConstMatrix = MatrixRef<Exec, const Real>;
  using Indices = VectorRef<Exec, const int>;

  /// logits (2 B, T) ← scores (B*T, 2), and −∞ for tokens that are not of the second text.
  /// \param ends (2 B) rows of the scores: of the first and of the last token of each second text
  static void gather(const Exec& exec, Indices ends, ConstMatrix scores, Matrix logits);

  /// d_scores (B*T, 2) ← d_logits (2 B, T).
  static void gather_backward(const Exec& exec, ConstMatrix d_logits, Matrix d_scores);

  /// result(2 b), result(2 b + 1) ← the measure of sample b's answer; 0 if its logits are NaN.
  /// \param target (2 B) columns of the right answer's first and last token
  static void measure(const Exec& exec, SpanMeasure of, Indices ends, Indices target, ConstMatrix logits,
                      VectorRef<Exec, Real> result);
};

}  // namespace onebit::nn
