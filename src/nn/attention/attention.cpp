#include "nn/attention/attention.hpp"

#include <algorithm>

#include "linalg/blas.hpp"
#include "linalg/gemm.hpp"
#include "nn/activation.hpp"
#include "nn/attention/flash_attention.hpp"

namespace onebit::nn {

using linalg::Rows;
using linalg::Transpose;

namespace {

/// Some queries of a head, by the keys that they see. One thread works on it.
struct Tile {
  int sample, head;
  int query, queries;
  int keys;
};

/// Most elements of a tile: they fit into a core's cache.
inline constexpr int tile_elements = 1 << 15;

int most_queries(int sequence) { return std::clamp(tile_elements / sequence, std::min(32, sequence), sequence); }

/// The (·, D) matrix of a tile's head in a (B*T, ·) matrix, from column `first` and the row of `position` on.
template <class View>
Rows<typename View::value_type> head_of(const View& matrix, int first, int sequence, int head_channels,
                                        const Tile& tile, int position) {
  const std::size_t columns = matrix.extent(1), row = static_cast<std::size_t>(tile.sample) * sequence + position;
  return {matrix.data() + row * columns + first + tile.head * head_channels, columns};
}

// These two are for the host. They are functions of a device, too, because nvcc lets no function of a device, as
// RowTeam has, call a lambda that a function of the host alone has made.

/// Row r of scores ← dropout(softmax of the visible ones); log_sums ← ln Σ exp of each row.
template <class Exec, class Real>
KOKKOS_FUNCTION void softmax(const Attention<Exec, Real>& attention, const Dropout<Real>& dropout,
                             VectorRef<Exec, Real> log_sums, const Tile& tile, int r, Real* scores) {
  const RowTeam<Exec> team;
  const int T = attention.sequence, query = tile.query + r, visible = attention.causal ? query + 1 : T;
  Real* const row = scores + static_cast<std::size_t>(r) * tile.keys;
  const Real largest = team.max(visible, [&](int j) -> Real { return row[j]; });
  const Real sum = team.sum(visible, [&](int j) {
    const Real power = exp(row[j] - largest);
    row[j] = power;
    return power;
  });
  log_sums((static_cast<std::size_t>(tile.sample) * attention.heads + tile.head) * T + query) =
      largest + math::log(sum);
  const Real reciprocal = Real(1) / sum;
  team.for_each(visible, dropout.row(tile.sample, query, tile.head, T),
                [&](int j, Real factor) { row[j] *= factor * reciprocal; });
  team.for_each(tile.keys - visible, [&](int j) { row[visible + j] = 0; });
}

/// Row r of scores ← dropout(softmax); of d_scores, gradients at that ← gradients at the scores.
template <class Exec, class Real>
KOKKOS_FUNCTION void softmax_backward(const Attention<Exec, Real>& attention, const Dropout<Real>& dropout,
                                      MatrixRef<Exec, const Real> context, MatrixRef<Exec, const Real> d_context,
                                      VectorRef<Exec, const Real> log_sums, const Tile& tile, int r, Real* scores,
                                      Real* d_scores) {
  const RowTeam<Exec> team;
  const int T = attention.sequence, D = attention.channels / attention.heads;
  const int query = tile.query + r, visible = attention.causal ? query + 1 : T;
  const int row = tile.sample * T + query, first = tile.head * D;
  Real* const p = scores + static_cast<std::size_t>(r) * tile.keys;
  Real* const d_p = d_scores + static_cast<std::size_t>(r) * tile.keys;
  const Real log_sum = log_sums((static_cast<std::size_t>(tile.sample) * attention.heads + tile.head) * T + query);
  // Σ_j (dropped probability)(its gradient) = Σ_d (context)(its gradient): Dao et al. 2022, appendix B.2.
  const Real product = team.sum(D, [&](int d) { return context(row, first + d) * d_context(row, first + d); });
  team.for_each(visible, dropout.row(tile.sample, query, tile.head, T), [&](int j, Real factor) {
    const Real probability = exp(p[j] - log_sum);
    d_p[j] = probability * (factor * d_p[j] - product);
    p[j] = factor * probability;
  });
  team.for_each(tile.keys - visible, [&](int j) { p[visible + j] = d_p[visible + j] = 0; });
}

/// f(tile, scratch) for all tiles; one thread takes a head. The last queries of a head come first.
template <class Exec, class Real, class F>
void for_each_tile(const Exec& exec, const char* label, const Attention<Exec, Real>& attention,
                   VectorRef<Exec, Real> scratch, const F& f) {
  const int T = attention.sequence, queries = most_queries(T);
  const linalg::SingleThreadedBlas single_threaded;
  const Kokkos::Experimental::UniqueToken<Exec> tokens;
  const std::size_t scratch_of_thread = std::size_t{2} * queries * T;
  Kokkos::parallel_for(
      label, Kokkos::RangePolicy<Exec, Kokkos::Schedule<Kokkos::Dynamic>>(exec, 0, attention.batch * attention.heads),
      [=](int index) {
        const int token = tokens.acquire();
        for (int end = T; end > 0; end -= std::min(queries, end)) {
          const int query = std::max(end - queries, 0);
          f(Tile{index / attention.heads, index % attention.heads, query, end - query, attention.causal ? end : T},
            scratch.data() + token * scratch_of_thread);
        }
        tokens.release(token);
      });
}

template <class Exec, class Real>
void forward_on_host(const Exec& exec, const Attention<Exec, Real>& attention, MatrixRef<Exec, const Real> qkv,
                     const Dropout<Real>& dropout, VectorRef<Exec, Real> log_sums, VectorRef<Exec, Real> scratch,
                     MatrixRef<Exec, Real> context) {
  for_each_tile(exec, "OneBit::nn::attention", attention, scratch, [=](const Tile& tile, Real* scores) {
    const int T = attention.sequence, H = attention.channels, D = H / attention.heads;
    const std::size_t keys = tile.keys;
    linalg::gemm_on_this_thread<Real>(Transpose::no, Transpose::yes, tile.queries, tile.keys, D,
                                      1 / math::sqrt(Real(D)), head_of(qkv, 0, T, D, tile, tile.query),
                                      head_of(qkv, H, T, D, tile, 0), Real(0), {scores, keys});
    for (int r = 0; r < tile.queries; ++r) softmax(attention, dropout, log_sums, tile, r, scores);
    linalg::gemm_on_this_thread<Real>(Transpose::no, Transpose::no, tile.queries, D, tile.keys, Real(1), {scores, keys},
                                      head_of(qkv, 2 * H, T, D, tile, 0), Real(0),
                                      head_of(context, 0, T, D, tile, tile.query));
  });
}

template <class Exec, class Real>
void backward_on_host(const Exec& exec, const Attention<Exec, Real>& attention, MatrixRef<Exec, const Real> qkv,
                      MatrixRef<Exec, const Real> context, MatrixRef<Exec, const Real> d_context,
                      const Dropout<Real>& dropout, VectorRef<Exec, const Real> log_sums, VectorRef<Exec, Real> scratch,
                      MatrixRef<Exec, Real> d_qkv) {
  for_each_tile(exec, "OneBit::nn::attention_backward", attention, scratch, [=](const Tile& tile, Real* scores) {
    const int T = attention.sequence, H = attention.channels, D = H / attention.heads;
    const std::size_t stride = tile.keys;
    const Real scale = 1 / math::sqrt(Real(D));
    // The last queries come first and see all keys, so they set the gradients of keys and values. The others add.
    const Real add = tile.query + tile.queries == T ? Real(0) : Real(1);
    Real* const d_scores = scores + tile.queries * stride;
    const auto queries = head_of(qkv, 0, T, D, tile, tile.query), keys = head_of(qkv, H, T, D, tile, 0),
               values = head_of(qkv, 2 * H, T, D, tile, 0), d_output = head_of(d_context, 0, T, D, tile, tile.query);
    const Rows<const Real> weights{scores, stride}, gradients{d_scores, stride};
    const auto product = linalg::gemm_on_this_thread<Real>;
    product(Transpose::no, Transpose::yes, tile.queries, tile.keys, D, scale, queries, keys, Real(0), {scores, stride});
    product(Transpose::no, Transpose::yes, tile.queries, tile.keys, D, Real(1), d_output, values, Real(0),
            {d_scores, stride});
    for (int r = 0; r < tile.queries; ++r)
      softmax_backward(attention, dropout, context, d_context, log_sums, tile, r, scores, d_scores);
    product(Transpose::yes, Transpose::no, tile.keys, D, tile.queries, Real(1), weights, d_output, add,
            head_of(d_qkv, 2 * H, T, D, tile, 0));
    product(Transpose::no, Transpose::no, tile.queries, D, tile.keys, scale, gradients, keys, Real(0),
            head_of(d_qkv, 0, T, D, tile, tile.query));
    product(Transpose::yes, Transpose::no, tile.keys, D, tile.queries, scale, gradients, queries, add,
            head_of(d_qkv, H, T, D, tile, 0));
  });
}

}  // namespace

template <class Exec, class Real>
std::size_t Attention<Exec, Real>::scratch_size(const Exec&) const {
  if constexpr (is_host<Exec>)
    return std::size_t{2} * Kokkos::Experimental::UniqueToken<Exec>().size() * most_queries(sequence) * sequence;
  else
    return flash::scratch_size(*this);
}

template <class Exec, class Real>
void Attention<Exec, Real>::forward(const Exec& exec, ConstMatrix qkv, const Dropout<Real>& dropout,
                                    VectorRef<Exec, Real> log_sums, Scratch scratch, Matrix context) const {
  const Region region("OneBit::nn::attention");
  if constexpr (is_host<Exec>)
    forward_on_host(exec, *this, qkv, dropout, log_sums, scratch, context);
  else
    flash::forward(exec, *this, qkv, dropout, log_sums, context);
}

template <class Exec, class Real>
void Attention<Exec, Real>::backward(const Exec& exec, ConstMatrix qkv, ConstMatrix context, ConstMatrix d_context,
                                     const Dropout<Real>& dropout, VectorRef<Exec, const Real> log_sums,
                                     Scratch scratch, Matrix d_qkv) const {
  const Region region("OneBit::nn::attention_backward");
  if constexpr (is_host<Exec>)
    backward_on_host(exec, *this, qkv, context, d_context, dropout, log_sums, scratch, d_qkv);
  else
    flash::backward(exec, *this, qkv, context, d_context, dropout, log_sums, scratch, d_qkv);
}

#define ONEBIT_INSTANTIATE(Exec, Real) template struct Attention<Exec, Real>;
ONEBIT_INSTANTIATE_FOR_EACH_BACKEND_AND_REAL

}  // namespace onebit::nn
