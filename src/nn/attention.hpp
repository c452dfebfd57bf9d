#pragma once
/// \file attention.hpp
/// Multi-head attention (Vaswani et al. 2017, section 3.2) on packed projections, forward and backward.
///
/// B samples, A heads, T positions, H = A · D channels. Queries, keys and values of head a of sample b are the (T, D)
/// matrices at row b*T, columns a*D, H + a*D and 2 H + a*D of qkv (B*T, 3 H): the matrix products read them where they
/// are, and nothing is transposed or copied.

#include "base/kokkos.hpp"
#include "nn/dropout.hpp"
#include "nn/rows.hpp"

namespace onebit::nn {

/// Instantiated for float and double on every backend.
template <class Exec, class Real>
struct Attention {
  using Matrix = MatrixRef<Exec, Real>;
  using ConstMatrix = MatrixRef<Exec, const Real>;

  int batch, heads, sequence, channels;  ///< B, A, T, H
  bool causal;                           ///< a position sees itself and those before it

  /// context (B*T, H) ← dropout(softmax(Q Kᵀ / √D)) V for each sample and head.
  /// \param probabilities (B*A*T, T) ← the softmax before dropout, for backward
  /// \param dropped       (B*A*T, T) scratch; may be probabilities where nothing is dropped
  void forward(const Exec& exec, ConstMatrix qkv, const Dropout<Real>& dropout, Matrix probabilities, Matrix dropped,
               Matrix context) const;

  /// d_qkv (B*T, 3 H) ← its gradient at d_context (B*T, H).
  /// \param probabilities of the forward pass; destroyed
  /// \param d_scores      (B*A*T, T) scratch
  void backward(const Exec& exec, ConstMatrix qkv, ConstMatrix context, ConstMatrix d_context,
                const Dropout<Real>& dropout, Matrix probabilities, Matrix d_scores, Matrix d_qkv) const;

  /// probabilities (B*A*T, T) ← softmax of its rows, over the visible positions; dropped ← dropout(probabilities).
  void softmax(const Exec& exec, const Dropout<Real>& dropout, Matrix probabilities, Matrix dropped) const;

  /// d_scores (B*A*T, T), the gradient at the dropped probabilities, ← the gradient at the scores; probabilities ← the
  /// dropped ones, again.
  void softmax_backward(const Exec& exec, ConstMatrix context, ConstMatrix d_context, const Dropout<Real>& dropout,
                        Matrix probabilities, Matrix d_scores) const;
};

}  // namespace onebit::nn
