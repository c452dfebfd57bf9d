/// \file attention.cpp
/// See attention.hpp.

#include "nn/attention.hpp"

#include "linalg/gemm.hpp"
#include "nn/activation.hpp"

namespace onebit::nn {

using linalg::gemm_grid;
using linalg::MatrixGrid;
using linalg::Transpose;

namespace {

/// The (B, A) grid of the heads' (T, D) matrices in the columns from `first` of a (B*T, ·) matrix.
template <class View>
MatrixGrid<typename View::value_type> heads_of(const View& matrix, int first, int sequence, int head_channels) {
  return {matrix.data() + first, matrix.extent(1), sequence * matrix.extent(1),
          static_cast<std::size_t>(head_channels)};
}

/// The (B, A) grid of (T, T) matrices in a (B*A*T, T) matrix.
template <class View>
MatrixGrid<typename View::value_type> scores_of(const View& matrix, int heads) {
  const std::size_t sequence = matrix.extent(1);
  return {matrix.data(), sequence, heads * sequence * sequence, sequence * sequence};
}

}  // namespace

template <class Exec, class Real>
void Attention<Exec, Real>::softmax(const Exec& exec, const Dropout<Real>& dropout, Matrix probabilities,
                                    Matrix dropped) const {
  const int T = sequence, A = heads;
  const bool is_causal = causal;
  for_each_row(
      exec, "OneBit::nn::softmax", probabilities.extent_int(0), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int r) {
        const int query = r % T, head = r / T % A, sample = r / T / A;
        const int visible = is_causal ? query + 1 : T;
        const Real largest = team.max(visible, [&](int j) -> Real { return probabilities(r, j); });
        const Real sum = team.sum(visible, [&](int j) {
          const Real power = exp(probabilities(r, j) - largest);
          probabilities(r, j) = power;
          return power;
        });
        const Real reciprocal = Real(1) / sum;
        team.for_each(visible, [&](int j) { probabilities(r, j) *= reciprocal; });
        team.for_each(T - visible, [&](int j) { probabilities(r, visible + j) = 0; });
        if (dropout.active())
          team.for_each(T, dropout.row(sample, query, head, T),
                        [&](int j, Real factor) { dropped(r, j) = factor * probabilities(r, j); });
      });
}

template <class Exec, class Real>
void Attention<Exec, Real>::softmax_backward(const Exec& exec, ConstMatrix context, ConstMatrix d_context,
                                             const Dropout<Real>& dropout, Matrix probabilities,
                                             Matrix d_scores) const {
  const int T = sequence, A = heads, D = channels / heads;
  for_each_row(
      exec, "OneBit::nn::softmax_backward", probabilities.extent_int(0),
      KOKKOS_LAMBDA(const RowTeam<Exec>& team, int r) {
        const int query = r % T, head = r / T % A, sample = r / T / A;
        const int row = sample * T + query, first = head * D;
        // Σ_j (dropped probability)(gradient at it), which equals Σ_d (context)(gradient at it): Dao et al. 2022,
        // "FlashAttention", appendix B.2.
        const Real product = team.sum(D, [&](int d) { return context(row, first + d) * d_context(row, first + d); });
        team.for_each(T, dropout.row(sample, query, head, T), [&](int j, Real factor) {
          const Real probability = probabilities(r, j);
          d_scores(r, j) = probability * (factor * d_scores(r, j) - product);
          probabilities(r, j) = factor * probability;
        });
      });
}

template <class Exec, class Real>
void Attention<Exec, Real>::forward(const Exec& exec, ConstMatrix qkv, const Dropout<Real>& dropout,
                                    Matrix probabilities, Matrix dropped, Matrix context) const {
  const Region region("OneBit::nn::attention");
  const int T = sequence, H = channels, D = channels / heads;
  const auto queries = heads_of(qkv, 0, T, D), keys = heads_of(qkv, H, T, D), values = heads_of(qkv, 2 * H, T, D);
  gemm_grid<Exec, Real>(exec, batch, heads, Transpose::no, Transpose::yes, T, T, D, 1 / math::sqrt(Real(D)), queries,
                        keys, Real(0), scores_of(probabilities, heads));
  softmax(exec, dropout, probabilities, dropped);
  const ConstMatrix weights = dropout.active() ? dropped : probabilities;
  gemm_grid<Exec, Real>(exec, batch, heads, Transpose::no, Transpose::no, T, D, T, Real(1), scores_of(weights, heads),
                        values, Real(0), heads_of(context, 0, T, D));
}

template <class Exec, class Real>
void Attention<Exec, Real>::backward(const Exec& exec, ConstMatrix qkv, ConstMatrix context, ConstMatrix d_context,
                                     const Dropout<Real>& dropout, Matrix probabilities, Matrix d_scores,
                                     Matrix d_qkv) const {
  const Region region("OneBit::nn::attention_backward");
  const int T = sequence, H = channels, D = channels / heads;
  const Real scale = 1 / math::sqrt(Real(D));
  const auto queries = heads_of(qkv, 0, T, D), keys = heads_of(qkv, H, T, D), values = heads_of(qkv, 2 * H, T, D);
  const auto d_output = heads_of(d_context, 0, T, D);
  gemm_grid<Exec, Real>(exec, batch, heads, Transpose::no, Transpose::yes, T, T, D, Real(1), d_output, values, Real(0),
                        scores_of(d_scores, heads));
  softmax_backward(exec, context, d_context, dropout, probabilities, d_scores);
  const auto weights = scores_of(ConstMatrix(probabilities), heads);
  const auto gradients = scores_of(ConstMatrix(d_scores), heads);
  gemm_grid<Exec, Real>(exec, batch, heads, Transpose::yes, Transpose::no, T, D, T, Real(1), weights, d_output, Real(0),
                        heads_of(d_qkv, 2 * H, T, D));
  gemm_grid<Exec, Real>(exec, batch, heads, Transpose::no, Transpose::no, T, D, T, scale, gradients, keys, Real(0),
                        heads_of(d_qkv, 0, T, D));
  gemm_grid<Exec, Real>(exec, batch, heads, Transpose::yes, Transpose::no, T, D, T, scale, gradients, queries, Real(0),
                        heads_of(d_qkv, H, T, D));
}

#define ONEBIT_INSTANTIATE(Exec)          \
  template struct Attention<Exec, float>; \
  template struct Attention<Exec, double>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::nn
