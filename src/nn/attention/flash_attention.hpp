#pragma once
/// \file flash_attention.hpp
/// Attention on a device: one launch forward and two backward for all samples, heads and tiles (Dao 2023,
/// "FlashAttention-2", algorithms 1 and 2). Scores exist only in registers.
///
/// A team of four warps owns 64 rows of a head, 16 a warp: queries in the forward pass and for dQ, keys for dK and dV.
/// It goes over the other side in tiles that lie in scratch memory. Every sum has one owner and a fixed order, so there
/// are no atomics: dQ has a pass of its own, which computes the scores once more.
///
/// The products are the instruction m16n8k8 of the tensor cores with factors in tf32 if `model.precision` is tf32 or
/// bf16, and fused multiply-adds in float else.
///
/// Why not batched products of cuBLAS with a softmax between them: they would write and read scores and probabilities,
/// 16 T² bytes a head, beside 16 T D for q, k, v and the context. For D = 64 this adds 2 times (T = 128) and 8 times
/// (T = 512) the traffic of the fused pass. Why tf32 for bf16 too: a factor from scratch memory is one word a lane, so
/// no transposed copy is needed, and tf32 is more exact. Reading the words bounds an H200 at about 240 TFLOP/s (two
/// words a lane for 2048 FLOP).
///
/// The functors also run on the host, where one thread is a warp of one lane: so their tests need no GPU.

#include <string>
#include <type_traits>

#include "base/error.hpp"
#include "nn/attention/attention.hpp"
#include "nn/attention/flash_passes.hpp"

namespace onebit::nn::flash {

/// One launch of a pass for all teams.
template <class Exec, class F>
void launch(const Exec& exec, const char* label, int batch, const F& f) {
  constexpr int lanes = is_host<Exec> ? 1 : 32;
  // Compiled for sm_90 by CUDA 13.0, tensor passes spill 36 bytes or less up to D = 64.
  using Policy = Kokkos::TeamPolicy<Exec, Kokkos::LaunchBounds<128, F::teams_of_multiprocessor>>;
  Policy policy(exec, batch * f.heads * f.tiles(), warps<Exec>, lanes);
  policy.set_scratch_size(0, Kokkos::PerTeam(static_cast<int>(F::scratch_bytes())));
  Kokkos::parallel_for(label, policy, f);
}

/// f(tensor, channels) with compile-time constants: whether tensor cores multiply, and D filled up. HIP has no
/// instruction for tf32.
template <class Real, class F>
void choose([[maybe_unused]] Precision precision, int head_channels, const F& f) {
  const auto with = [&](auto tensor) {
    if constexpr (std::is_same_v<Real, double>)
      f(tensor, std::integral_constant<int, most_channels>());  // for tests alone
    else if (head_channels <= 32)
      f(tensor, std::integral_constant<int, 32>());
    else if (head_channels <= 64)
      f(tensor, std::integral_constant<int, 64>());
    else
      f(tensor, std::integral_constant<int, most_channels>());
  };
#ifndef KOKKOS_ENABLE_HIP
  if constexpr (std::is_same_v<Real, float>)
    if (precision != Precision::fp32) return with(std::true_type());
#endif
  with(std::false_type());
}

/// Elements of scratch memory in global memory: a number for each row.
/// \throws InputError if the heads are too wide
template <class Exec, class Real>
std::size_t scratch_size(const Attention<Exec, Real>& attention) {
  const int head_channels = attention.channels / attention.heads;
  if (head_channels > most_channels)
    throw InputError(
        "model.heads",
        "a head of " + std::to_string(head_channels) + " channels; attention on a GPU takes at most " +
            std::to_string(most_channels),
        "set model.heads to at least " + std::to_string((attention.channels + most_channels - 1) / most_channels));
  return static_cast<std::size_t>(attention.batch) * attention.heads * attention.sequence;
}

template <class Exec, class Real>
void forward(const Exec& exec, const Attention<Exec, Real>& attention, MatrixRef<Exec, const Real> qkv,
             const Dropout<Real>& dropout, VectorRef<Exec, Real> log_sums, MatrixRef<Exec, Real> context) {
  const int A = attention.heads, T = attention.sequence, D = attention.channels / A;
  choose<Real>(attention.precision, D, [&](auto tensor, auto channels) {
    launch(exec, "OneBit::nn::attention", attention.batch,
           Forward<Exec, Real, tensor(), channels()>{
               {A, T, D, attention.causal, dropout, qkv.data()}, context.data(), log_sums.data()});
  });
}

/// \param products (scratch_size)
template <class Exec, class Real>
void backward(const Exec& exec, const Attention<Exec, Real>& attention, MatrixRef<Exec, const Real> qkv,
              MatrixRef<Exec, const Real> context, MatrixRef<Exec, const Real> d_context, const Dropout<Real>& dropout,
              VectorRef<Exec, const Real> log_sums, VectorRef<Exec, Real> products, MatrixRef<Exec, Real> d_qkv) {
  const int A = attention.heads, T = attention.sequence, D = attention.channels / A;
  choose<Real>(attention.precision, D, [&](auto tensor, auto channels) {
    using Common = Pass<Exec, Real, tensor(), channels()>;
    const Common common{A, T, D, attention.causal, dropout, qkv.data()};
    launch(exec, "OneBit::nn::attention_d_queries", attention.batch,
           QueryGradient<Exec, Real, tensor(), channels()>{common, context.data(), d_context.data(), log_sums.data(),
                                                           products.data(), d_qkv.data()});
    launch(exec, "OneBit::nn::attention_d_keys", attention.batch,
           KeyGradient<Exec, Real, tensor(), channels()>{common, d_context.data(), log_sums.data(), products.data(),
                                                         d_qkv.data()});
  });
}

}  // namespace onebit::nn::flash
