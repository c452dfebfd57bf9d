#pragma once
/// \file attention.hpp
/// Multi-head attention (Vaswani et al. 2017, section 3.2) on packed projections, forward and backward.
///
/// B samples, A heads, T positions, H = A · D channels. Queries, keys and values of head a of sample b are the (T, D)
/// matrices at row b*T, columns a*D, H + a*D and 2 H + a*D of qkv (B*T, 3 H).
///
/// Scores are computed for some queries at a time and used while they are in a cache. The forward pass keeps one number
/// of each row, from which the backward pass computes the scores again (Dao et al. 2022, "FlashAttention"; Dao 2023,
/// algorithms 1 and 2), so memory grows with T and not with T². On the host a thread takes a head; a device takes all
/// of them in one launch (flash_attention.hpp).

#include "base/choices.hpp"
#include "base/kokkos.hpp"
#include "nn/dropout.hpp"
#include "nn/rows.hpp"

namespace onebit::nn {

/// Instantiated for float and double on every backend.
template <class Exec, class Real>
struct Attention {
  using Matrix = MatrixRef<Exec, Real>;
  using ConstMatrix = MatrixRef<Exec, const Real>;
  using Scratch = VectorRef<Exec, Real>;

  int batch, heads, sequence, channels;  ///< B, A, T, H
  bool causal;                           ///< a query sees its own position and those before it
  /// On a device, tf32 and bf16 let tensor cores multiply factors in tf32. The host's are in Real.
  Precision precision = Precision::fp32;

  /// context (B*T, H) ← dropout(softmax(Q Kᵀ / √D)) V for each sample and head.
  /// \param log_sums (B*A*T) ← ln Σ exp(scores) of each row, for `backward`
  /// \param scratch  (scratch_size)
  void forward(const Exec& exec, ConstMatrix qkv, const Dropout<Real>& dropout, VectorRef<Exec, Real> log_sums,
               Scratch scratch, Matrix context) const;

  /// d_qkv (B*T, 3 H) ← its gradient at d_context (B*T, H).
  /// \param log_sums of the forward pass
  /// \param scratch  (scratch_size)
  void backward(const Exec& exec, ConstMatrix qkv, ConstMatrix context, ConstMatrix d_context,
                const Dropout<Real>& dropout, VectorRef<Exec, const Real> log_sums, Scratch scratch,
                Matrix d_qkv) const;

  /// Elements of scratch memory that forward and backward need.
  std::size_t scratch_size(const Exec& exec) const;
};

}  // namespace onebit::nn
