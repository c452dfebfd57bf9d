#pragma once
/// \file batch_norm.hpp
/// Batch normalisation (Ioffe and Szegedy, ICML 2015), with statistics of groups of consecutive samples and not of a
/// rank's whole batch. So one rank with 64 samples and four ranks with 16 each compute the same numbers.

#include "nn/layers.hpp"

namespace onebit::nn {

/// Shapes: N rows, a row for each pixel, are G groups of R rows; C channels.
///
/// output(r, j) = (input(r, j) − mean(g, j)) · reciprocal_std(g, j) · weight(j) + bias(j) + addend(r, j), g = r / R,
/// and with `relu` the greater of that and 0; reciprocal_std = 1 / √(variance of the group's column + epsilon).
template <class Exec, class Real>
struct BatchNorm {
  VectorRef<Exec, const Real> weight, bias;  ///< (C)
  Real epsilon;
  bool relu;                                   ///< whether a ReLU follows
  MatrixRef<Exec, const Real> input;           ///< (N, C)
  MatrixRef<Exec, const Real> addend;          ///< (N, C); empty if nothing is added
  MatrixRef<Exec, Real> output;                ///< (N, C)
  MatrixRef<Exec, Real> mean, reciprocal_std;  ///< (G, C)

  int groups() const { return mean.extent_int(0); }
  int rows_of_group() const { return groups() > 0 ? input.extent_int(0) / groups() : 0; }
};

/// Gradients of the parameters of a batch normalisation, (C) each; empty where they are not wanted.
template <class Exec, class Real>
struct BatchNormGradient {
  VectorRef<Exec, Real> d_weight, d_bias;
};

/// Instantiated for float and double on every backend.
template <class Exec, class Real>
struct BatchNorms {
  using Matrix = MatrixRef<Exec, Real>;
  using ConstMatrix = MatrixRef<Exec, const Real>;
  using Vector = VectorRef<Exec, Real>;
  using Norm = BatchNorm<Exec, Real>;

  /// norm.mean, norm.reciprocal_std ← the statistics of the groups of norm.input.
  /// \param scratch as long as `scratch` says, and so for all of these
  static void take_statistics(const Exec& exec, const Norm& norm, Vector scratch);

  /// norm.output ← the formula above.
  static void normalize(const Exec& exec, const Norm& norm);

  /// d_output (N, C) ← the gradient before the ReLU, which is that of the addend, too. d_input (N, C) ← the gradient of
  /// norm.input there; it may be d_output. The gradients of weight and bias are added to theirs. The
  /// statistics are those of norm.input, and pass gradients on.
  static void backward(const Exec& exec, const Norm& norm, Matrix d_output, Matrix d_input, Vector scratch,
                       const BatchNormGradient<Exec, Real>& gradient);

  /// Elements of the greatest scratch memory of these.
  static std::size_t scratch(int groups, int rows_of_group, int channels) {
    return (static_cast<std::size_t>(row_block_count<Exec, false>(rows_of_group)) + 1) * 2 * groups * channels;
  }
};

}  // namespace onebit::nn
