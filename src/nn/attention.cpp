#include "nn/attention.hpp"

#include <algorithm>

#include "linalg/blas.hpp"
#include "linalg/gemm.hpp"
#include "nn/activation.hpp"

namespace onebit::nn {

using linalg::MatrixGrid;
using linalg::Transpose;

namespace {

/// A tile of the scores: some queries of some heads of some samples, by the keys that they see. On the host it belongs
/// to one head of one sample and to one thread; on a device it is as large as the scratch memory allows.
struct Tile {
  int sample, samples;
  int head, heads;
  int query, queries;
  int keys;

  std::size_t rows() const { return static_cast<std::size_t>(samples) * heads * queries; }
};

/// Most elements of a tile: they fit into a core's cache on the host, and take a quarter of a GiB on a device (float).
template <class Exec>
inline constexpr std::size_t tile_elements = is_host<Exec> ? std::size_t{1} << 15 : std::size_t{1} << 26;

template <class Exec, class Real>
Tile largest_tile(const Attention<Exec, Real>& attention) {
  const std::size_t T = attention.sequence, heads = is_host<Exec> ? 1 : attention.heads;
  const std::size_t queries =
      std::clamp<std::size_t>(tile_elements<Exec> / (heads * T), std::min<std::size_t>(32, T), T);
  const std::size_t samples =
      is_host<Exec> ? 1 : std::clamp<std::size_t>(tile_elements<Exec> / (heads * queries * T), 1, attention.batch);
  return {0, static_cast<int>(samples), 0, static_cast<int>(heads), 0, static_cast<int>(queries), attention.sequence};
}

/// The (·, D) matrices of a tile's heads in a (B*T, ·) matrix, from column `first` and the row of `position` on.
template <class View>
MatrixGrid<typename View::value_type> heads_of(const View& matrix, int first, int sequence, int head_channels,
                                               const Tile& tile, int position) {
  const std::size_t columns = matrix.extent(1), row = static_cast<std::size_t>(tile.sample) * sequence + position;
  return {matrix.data() + row * columns + first + tile.head * head_channels, columns, sequence * columns,
          static_cast<std::size_t>(head_channels)};
}

/// The (queries, keys) matrices of a tile's heads.
template <class Real>
MatrixGrid<Real> scores_of(Real* scores, const Tile& tile) {
  const std::size_t keys = tile.keys, matrix = tile.queries * keys;
  return {scores, keys, tile.heads * matrix, matrix};
}

/// The sample, head and query of row r of a tile.
struct Place {
  int sample, head, query;
  KOKKOS_FORCEINLINE_FUNCTION Place(const Tile& tile, int r)
      : sample(tile.sample + r / tile.queries / tile.heads),
        head(tile.head + r / tile.queries % tile.heads),
        query(tile.query + r % tile.queries) {}
};

/// Rows of scores ← dropout(softmax of the visible ones); log_sums ← ln Σ exp of each row.
template <class Exec, class Real>
struct Softmax {
  Attention<Exec, Real> attention;
  Dropout<Real> dropout;
  VectorRef<Exec, Real> log_sums;
  Tile tile;
  Real* scores;

  KOKKOS_FORCEINLINE_FUNCTION void operator()(const RowTeam<Exec>& team, int r) const {
    const Place place(tile, r);
    const int T = attention.sequence, visible = attention.causal ? place.query + 1 : T;
    Real* const row = scores + static_cast<std::size_t>(r) * tile.keys;
    const Real largest = team.max(visible, [&](int j) -> Real { return row[j]; });
    const Real sum = team.sum(visible, [&](int j) {
      const Real power = exp(row[j] - largest);
      row[j] = power;
      return power;
    });
    team.once([&] {
      log_sums((static_cast<std::size_t>(place.sample) * attention.heads + place.head) * T + place.query) =
          largest + math::log(sum);
    });
    const Real reciprocal = Real(1) / sum;
    team.for_each(visible, dropout.row(place.sample, place.query, place.head, T),
                  [&](int j, Real factor) { row[j] *= factor * reciprocal; });
    team.for_each(tile.keys - visible, [&](int j) { row[visible + j] = 0; });
  }
};

/// Rows of scores ← dropout(softmax); rows of d_scores, gradients at that ← gradients at the scores.
template <class Exec, class Real>
struct SoftmaxBackward {
  using ConstMatrix = MatrixRef<Exec, const Real>;
  Attention<Exec, Real> attention;
  Dropout<Real> dropout;
  ConstMatrix context, d_context;
  VectorRef<Exec, const Real> log_sums;
  Tile tile;
  Real *scores, *d_scores;

  KOKKOS_FORCEINLINE_FUNCTION void operator()(const RowTeam<Exec>& team, int r) const {
    const Place place(tile, r);
    const int T = attention.sequence, D = attention.channels / attention.heads;
    const int visible = attention.causal ? place.query + 1 : T;
    const int row = place.sample * T + place.query, first = place.head * D;
    Real* const p = scores + static_cast<std::size_t>(r) * tile.keys;
    Real* const d_p = d_scores + static_cast<std::size_t>(r) * tile.keys;
    const Real log_sum =
        log_sums((static_cast<std::size_t>(place.sample) * attention.heads + place.head) * T + place.query);
    // Σ_j (dropped probability)(its gradient) = Σ_d (context)(its gradient): Dao et al. 2022, appendix B.2.
    const Real product = team.sum(D, [&](int d) { return context(row, first + d) * d_context(row, first + d); });
    team.for_each(visible, dropout.row(place.sample, place.query, place.head, T), [&](int j, Real factor) {
      const Real probability = exp(p[j] - log_sum);
      d_p[j] = probability * (factor * d_p[j] - product);
      p[j] = factor * probability;
    });
    team.for_each(tile.keys - visible, [&](int j) { p[visible + j] = d_p[visible + j] = 0; });
  }
};

/// Products and loops over the rows of a tile: by the calling thread on the host, by the whole device else.
template <class Exec, class Real>
struct TileWork {
  Exec exec;
  Tile tile;

  void product(Transpose op_a, Transpose op_b, int m, int n, int k, Real alpha, MatrixGrid<const Real> a,
               MatrixGrid<const Real> b, Real beta, MatrixGrid<Real> c) const {
    if constexpr (is_host<Exec>)
      linalg::gemm_on_this_thread<Real>(op_a, op_b, m, n, k, alpha, {a.data, a.row_stride}, {b.data, b.row_stride},
                                        beta, {c.data, c.row_stride});
    else
      linalg::gemm_grid<Exec, Real>(exec, tile.samples, tile.heads, op_a, op_b, m, n, k, alpha, a, b, beta, c);
  }

  template <class F>
  void rows(const char* label, const F& f) const {
    const int count = static_cast<int>(tile.rows());
    if constexpr (is_host<Exec>)
      for (int r = 0; r < count; ++r) f(RowTeam<Exec>(), r);
    else
      for_each_row(exec, label, count, f);
  }
};

/// f(tile, scratch) for all tiles. The last queries of a head come first.
template <class Exec, class Real, class F>
void for_each_tile(const Exec& exec, const char* label, const Attention<Exec, Real>& attention,
                   VectorRef<Exec, Real> scratch, const F& f) {
  const Tile largest = largest_tile(attention);
  const int T = attention.sequence;
  const auto for_each_query_range = [=](Tile tile, Real* memory) {
    for (int end = T; end > 0; end -= tile.queries) {
      tile.queries = std::min(largest.queries, end);
      tile.query = end - tile.queries;
      tile.keys = attention.causal ? end : T;
      f(tile, memory);
    }
  };
  if constexpr (is_host<Exec>) {
    const linalg::SingleThreadedBlas single_threaded;
    const Kokkos::Experimental::UniqueToken<Exec> tokens;
    const std::size_t scratch_of_thread = 2 * largest.rows() * T;
    Kokkos::parallel_for(
        label, Kokkos::RangePolicy<Exec, Kokkos::Schedule<Kokkos::Dynamic>>(exec, 0, attention.batch * attention.heads),
        [=](int index) {
          Tile tile = largest;
          tile.sample = index / attention.heads;
          tile.head = index % attention.heads;
          const int token = tokens.acquire();
          for_each_query_range(tile, scratch.data() + token * scratch_of_thread);
          tokens.release(token);
        });
  } else {
    for (int sample = 0; sample < attention.batch; sample += largest.samples) {
      Tile tile = largest;
      tile.sample = sample;
      tile.samples = std::min(largest.samples, attention.batch - sample);
      for_each_query_range(tile, scratch.data());
    }
  }
}

}  // namespace

template <class Exec, class Real>
std::size_t Attention<Exec, Real>::scratch_size(const Exec&) const {
  const std::size_t tiles = is_host<Exec> ? Kokkos::Experimental::UniqueToken<Exec>().size() : 1;
  return tiles * 2 * largest_tile(*this).rows() * sequence;
}

template <class Exec, class Real>
void Attention<Exec, Real>::forward(const Exec& exec, ConstMatrix qkv, const Dropout<Real>& dropout,
                                    VectorRef<Exec, Real> log_sums, Scratch scratch, Matrix context) const {
  const Region region("OneBit::nn::attention");
  const Attention attention = *this;
  for_each_tile(exec, "OneBit::nn::attention", attention, scratch, [=](const Tile& tile, Real* scores) {
    const int T = attention.sequence, H = attention.channels, D = H / attention.heads;
    const TileWork<Exec, Real> work{exec, tile};
    work.product(Transpose::no, Transpose::yes, tile.queries, tile.keys, D, 1 / math::sqrt(Real(D)),
                 heads_of(qkv, 0, T, D, tile, tile.query), heads_of(qkv, H, T, D, tile, 0), Real(0),
                 scores_of(scores, tile));
    work.rows("OneBit::nn::softmax", Softmax<Exec, Real>{attention, dropout, log_sums, tile, scores});
    work.product(Transpose::no, Transpose::no, tile.queries, D, tile.keys, Real(1), scores_of<const Real>(scores, tile),
                 heads_of(qkv, 2 * H, T, D, tile, 0), Real(0), heads_of(context, 0, T, D, tile, tile.query));
  });
}

template <class Exec, class Real>
void Attention<Exec, Real>::backward(const Exec& exec, ConstMatrix qkv, ConstMatrix context, ConstMatrix d_context,
                                     const Dropout<Real>& dropout, VectorRef<Exec, const Real> log_sums,
                                     Scratch scratch, Matrix d_qkv) const {
  const Region region("OneBit::nn::attention_backward");
  const Attention attention = *this;
  for_each_tile(exec, "OneBit::nn::attention_backward", attention, scratch, [=](const Tile& tile, Real* scores) {
    const int T = attention.sequence, H = attention.channels, D = H / attention.heads;
    const Real scale = 1 / math::sqrt(Real(D));
    // The last queries come first and see all keys, so they set the gradients of keys and values. The others add.
    const Real add = tile.query + tile.queries == T ? Real(0) : Real(1);
    Real* const d_scores = scores + tile.rows() * tile.keys;
    const auto queries = heads_of(qkv, 0, T, D, tile, tile.query), keys = heads_of(qkv, H, T, D, tile, 0),
               values = heads_of(qkv, 2 * H, T, D, tile, 0), d_output = heads_of(d_context, 0, T, D, tile, tile.query);
    const auto weights = scores_of<const Real>(scores, tile), gradients = scores_of<const Real>(d_scores, tile);
    const TileWork<Exec, Real> work{exec, tile};
    work.product(Transpose::no, Transpose::yes, tile.queries, tile.keys, D, scale, queries, keys, Real(0),
                 scores_of(scores, tile));
    work.product(Transpose::no, Transpose::yes, tile.queries, tile.keys, D, Real(1), d_output, values, Real(0),
                 scores_of(d_scores, tile));
    work.rows("OneBit::nn::softmax_backward",
              SoftmaxBackward<Exec, Real>{attention, dropout, context, d_context, log_sums, tile, scores, d_scores});
    work.product(Transpose::yes, Transpose::no, tile.keys, D, tile.queries, Real(1), weights, d_output, add,
                 heads_of(d_qkv, 2 * H, T, D, tile, 0));
    work.product(Transpose::no, Transpose::no, tile.queries, D, tile.keys, scale, gradients, keys, Real(0),
                 heads_of(d_qkv, 0, T, D, tile, tile.query));
    work.product(Transpose::yes, Transpose::no, tile.keys, D, tile.queries, scale, gradients, queries, add,
                 heads_of(d_qkv, H, T, D, tile, 0));
  });
}

#define ONEBIT_INSTANTIATE(Exec)          \
  template struct Attention<Exec, float>; \
  template struct Attention<Exec, double>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::nn
