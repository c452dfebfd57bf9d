#pragma once
/// \file layers.hpp
/// The transformer's kernels except attention, forward and backward. Each kernel passes over its matrices once and does
/// everything between two matrix products.
///
/// Shapes: B samples of T positions make N = B*T rows; P rows are predicted; C channels, V words. Names: d_x is the
/// gradient of the loss with respect to x. Backward functions write the gradients of activations and add to the
/// gradients of parameters; products can also write these.
///
/// reference.hpp and tests/nn_reference.hpp define every function in plain loops.

#include "base/kokkos.hpp"
#include "linalg/matrix_product.hpp"
#include "nn/column_sums.hpp"
#include "nn/dropout.hpp"
#include "nn/rows.hpp"

namespace onebit::nn {

/// A layer normalisation (Ba et al. 2016): parameters, activations, and statistics for the backward pass.
/// output(r, j) = (input(r, j) − mean(r)) · reciprocal_std(r) · weight(j) + bias(j),
/// reciprocal_std(r) = 1 / √(variance of row r + epsilon).
template <class Exec, class Real>
struct LayerNorm {
  VectorRef<Exec, const Real> weight, bias;  ///< (C)
  Real epsilon;
  MatrixRef<Exec, Real> input, output;         ///< (N, C)
  VectorRef<Exec, Real> mean, reciprocal_std;  ///< (N)
};

/// Gradients of a layer normalisation's parameters, and of the bias before it; (C) each.
template <class Exec, class Real>
struct LayerNormGradient {
  VectorRef<Exec, Real> d_weight, d_bias;
  VectorRef<Exec, Real> d_branch_bias;  ///< empty without such a bias
};

/// Rows that are added up at each position of a sample of T tokens.
template <class Exec, class Real>
struct Embeddings {
  MatrixRef<Exec, const Real> word;      ///< (V, C), by token
  MatrixRef<Exec, const Real> position;  ///< (≥ T, C), by position
  MatrixRef<Exec, const Real> type;      ///< (2, C), of the first and of the second text; (0, 0) for none
  int sequence;                          ///< T
  int second_text;                       ///< first position of the second text; T where there is none
};

/// What cross_entropy writes over the logits.
enum class CrossEntropyOutput {
  logits,   ///< with their bias
  gradient  ///< softmax − one-hot target: P times the gradient of the mean loss
};

/// Instantiated for float and double on every backend.
template <class Exec, class Real>
struct Layers {
  using Matrix = MatrixRef<Exec, Real>;
  using ConstMatrix = MatrixRef<Exec, const Real>;
  using Vector = VectorRef<Exec, Real>;
  using ConstVector = VectorRef<Exec, const Real>;
  using Indices = VectorRef<Exec, const int>;
  using Norm = LayerNorm<Exec, Real>;
  using Product = linalg::MatrixProduct<Exec, Real>;
  using Factor = linalg::Factor<Exec, Real>;

  /// output (N, out) ← input (N, in) · weightᵀ, weight (out, in). The next kernel adds the bias.
  static void dense(const Exec& exec, Product& product, const Factor& input, const Factor& weight, Matrix output);

  /// d_input (N, in) ← scale · d_output (N, out) · weight; += if `add`.
  static void dense_backward_input(const Exec& exec, Product& product, const Factor& d_output, const Factor& weight,
                                   bool add, Matrix d_input, Real scale = 1);

  /// d_weight (out, in) ← scale · d_outputᵀ · input; += if `add`.
  static void dense_backward_weight(const Exec& exec, Product& product, const Factor& d_output, const Factor& input,
                                    bool add, Matrix d_weight, Real scale = 1);

  /// output (N, C) ← input (N, C) + bias (C) in each row + addend (N, C), if that is not empty.
  /// \param input may be output
  static void add_bias(const Exec& exec, ConstVector bias, ConstMatrix input, ConstMatrix addend, Matrix output);

  /// d_bias (C) += scale · the sum of the rows of d_output (N, C).
  /// \param scratch row_block_count(N) * C elements
  static void add_bias_backward(const Exec& exec, ConstMatrix d_output, Vector scratch, Vector d_bias, Real scale = 1);

  /// Drops elements of matrix (N, C) in place; also its own backward function.
  static void drop_out(const Exec& exec, const Dropout<Real>& dropout, Matrix matrix);

  /// input (N, C) ← input + bias (C); output ← GELU(input).
  static void bias_gelu(const Exec& exec, ConstVector bias, Matrix input, Matrix output);

  /// gradient (N, C) ← gradient · GELU'(input), and d_bias (C) += the sum of its rows. Also input ← GELU(input), which
  /// the forward pass has not kept.
  /// \param scratch row_block_count(N) * C elements
  static void bias_gelu_backward(const Exec& exec, Matrix input, Matrix gradient, Vector scratch, Vector d_bias);

  /// matrix (N, C) ← tanh(matrix + bias (C)).
  static void bias_tanh(const Exec& exec, ConstVector bias, Matrix matrix);

  /// gradient (N, C) ← gradient · (1 − output²), and d_bias (C) += the sum of its rows.
  /// \param output  of bias_tanh
  /// \param scratch row_block_count(N) * C elements
  static void bias_tanh_backward(const Exec& exec, ConstMatrix output, Matrix gradient, Vector scratch, Vector d_bias);

  static void layer_norm(const Exec& exec, const Norm& norm);

  /// The end of each half of a layer: norm.input ← residual + dropout(norm.input + bias), then layer_norm. Before,
  /// norm.input is the output of the dense layer that the bias belongs to.
  static void residual_layer_norm(const Exec& exec, ConstMatrix residual, ConstVector bias,
                                  const Dropout<Real>& dropout, const Norm& norm);

  /// Backward of layer_norm and of residual_layer_norm.
  ///
  /// d_input ← (add ? d_input : 0) + the normalisation's gradient at d_output, which is the gradient at the residual.
  /// d_branch ← dropout(d_input), which is the gradient at the dense layer's output; its rows add up to the bias's.
  /// \param d_branch may be d_input without dropout
  /// \param scratch  3 * row_block_count(N) * C elements
  static void layer_norm_backward(const Exec& exec, const Norm& norm, ConstMatrix d_output, bool add, Matrix d_input,
                                  const Dropout<Real>& dropout, Matrix d_branch, Vector scratch,
                                  const LayerNormGradient<Exec, Real>& gradient);

  /// output (N, C) ← word of the row's token + position + type, where there are types.
  static void embed(const Exec& exec, const Embeddings<Exec, Real>& embeddings, Indices tokens, Matrix output);

  /// d_word and d_position += their gradients at d_output (N, C). Rows of the same token are added in their order,
  /// without atomics. \param links (2 N) scratch
  static void embed_backward(const Exec& exec, int sequence, Indices tokens, ConstMatrix d_output,
                             VectorRef<Exec, int> links, Matrix d_word, Matrix d_position);

  /// output (P, C) ← rows (P) of input (N, C).
  static void gather_rows(const Exec& exec, Indices rows, ConstMatrix input, Matrix output);

  /// d_input (N, C) ← d_output (P, C) in rows (P, all different), and 0 in all others.
  static void gather_rows_backward(const Exec& exec, Indices rows, ConstMatrix d_output, Matrix d_input);

  /// output (B, C) ← mean of the T rows of each sample of input (B*T, C), summed in their order.
  static void mean_rows(const Exec& exec, ConstMatrix input, Matrix output);

  /// d_input (B*T, C) ← d_output (B, C) / T in all rows of a sample.
  static void mean_rows_backward(const Exec& exec, ConstMatrix d_output, Matrix d_input);

  /// losses(p) = −ln softmax(logits(p, ·) + bias) at target(p): logits (P, V), bias (V) or empty, target (P).
  static void cross_entropy(const Exec& exec, ConstVector bias, Indices target, CrossEntropyOutput output,
                            Matrix logits, Vector losses);

  /// right(p) ← 1 if logits(p, target(p)) is the first greatest logit of row p, else 0; 0 if a logit is NaN.
  /// \param logits (P, V), with their bias
  static void is_right(const Exec& exec, Indices target, ConstMatrix logits, Vector right);
};

}  // namespace onebit::nn
