#pragma once
/// \file flash_pass.hpp
/// What the three passes of attention on a device share: the part of a team, its scratch memory, tiles and dropout.

#include <cstdint>
#include <type_traits>

#include "base/device/warps.hpp"
#include "base/kokkos.hpp"
#include "nn/activation.hpp"
#include "nn/attention/warp_products.hpp"
#include "nn/dropout.hpp"

namespace onebit::nn::flash {

/// The most channels of a head: two tiles must fit into 48 KiB of scratch memory, and sums into registers.
inline constexpr int most_channels = 128;
template <class Exec>
inline constexpr int warps = is_host<Exec> ? 1 : 4;
/// Rows of a tile in scratch memory. They divide a block of dropout.
template <class Exec, class Real>
inline constexpr int tile_rows = (is_host<Exec> ? 64 : 128) / static_cast<int>(sizeof(Real));

/// e^x by the device's own instruction in float: about 2 + |1.2 x| units in the last place (CUDA Programming Guide).
template <class Real>
KOKKOS_FORCEINLINE_FUNCTION Real power_of_e(Real x) {
#ifdef ONEBIT_DEVICE_CODE
  if constexpr (std::is_same_v<Real, float>) return __expf(x);
#endif
  return exp(x);
}

/// A head's (T, D) matrix in a (B*T, ·) matrix.
template <class Real>
struct HeadMatrix {
  Real* data;
  std::size_t stride;

  KOKKOS_FORCEINLINE_FUNCTION Real& operator()(int row, int column) const { return data[row * stride + column]; }
};

/// What the three passes share. `channels` is D, filled up with zeros.
template <class Exec, class Real, bool tensor, int channels>
struct Pass {
  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  static constexpr int columns = tile_rows<Exec, Real>, team_rows = warp_rows * warps<Exec>;
  static constexpr int mask_rows = team_rows > columns ? team_rows : columns;

  int heads, sequence, head_channels;
  bool causal;
  Dropout<Real> dropout;
  const Real* qkv;

  /// The part of a team: the head, its sample, and the first row of the 64.
  struct Place {
    int sample, head, first;
  };
  /// Scratch memory of a team: two tiles, two numbers for each row of a tile, the mask.
  struct Scratch {
    Real *first, *second, *log_sums, *products;
    std::uint8_t* mask;
  };
  KOKKOS_FORCEINLINE_FUNCTION static constexpr std::size_t scratch_bytes() {
    return sizeof(Real) * (2 * columns * row_stride(channels) + 2 * columns) + mask_rows * dropout_calls + 64;
  }

  int tiles() const { return (sequence + team_rows - 1) / team_rows; }
  KOKKOS_FORCEINLINE_FUNCTION Place place(const Member& member) const {
    const int tile_count = (sequence + team_rows - 1) / team_rows, head = member.league_rank() / tile_count;
    return {head / heads, head % heads, member.league_rank() % tile_count * team_rows};
  }
  KOKKOS_FORCEINLINE_FUNCTION Lane<Exec> lane() const { return {number_of_lane()}; }
  /// The number of this thread in its team.
  KOKKOS_FORCEINLINE_FUNCTION static int thread(const Member& member) {
    return member.team_rank() * (is_host<Exec> ? 1 : lane_count) + number_of_lane();
  }
  KOKKOS_FORCEINLINE_FUNCTION Scratch scratch(const Member& member) const {
    constexpr std::size_t tile = columns * row_stride(channels) * sizeof(Real), row = columns * sizeof(Real);
    char* const memory = static_cast<char*>(member.team_scratch(0).get_shmem_aligned(scratch_bytes() - 64, 16));
    return {reinterpret_cast<Real*>(memory), reinterpret_cast<Real*>(memory + tile),
            reinterpret_cast<Real*>(memory + 2 * tile), reinterpret_cast<Real*>(memory + 2 * tile + row),
            reinterpret_cast<std::uint8_t*>(memory + 2 * tile + 2 * row)};
  }
  KOKKOS_FORCEINLINE_FUNCTION Real scale() const { return 1 / math::sqrt(Real(head_channels)); }
  /// Queries, keys or values (0, 1, 2) of a head in a matrix of three.
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION HeadMatrix<T> third(T* matrix, int number, const Place& place) const {
    const std::size_t H = static_cast<std::size_t>(heads) * head_channels;
    return {matrix + place.sample * sequence * 3 * H + number * H + place.head * head_channels, 3 * H};
  }
  /// A head in a matrix (B*T, H).
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION HeadMatrix<T> head(T* matrix, const Place& place) const {
    const std::size_t H = static_cast<std::size_t>(heads) * head_channels;
    return {matrix + place.sample * sequence * H + place.head * head_channels, H};
  }
  /// Numbers of the rows of a head, (T) of (B*A*T).
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T* rows(T* numbers, const Place& place) const {
    return numbers + (static_cast<std::size_t>(place.sample) * heads + place.head) * sequence;
  }
  /// How many keys a query sees: 0, 1, …
  KOKKOS_FORCEINLINE_FUNCTION int keys_seen(int query) const {
    return query >= sequence ? 0 : causal ? query + 1 : sequence;
  }
  /// The first query that sees a key. All after it do, too.
  KOKKOS_FORCEINLINE_FUNCTION int first_query(int key) const { return causal ? key : 0; }

  /// What a thread moves of a tile, 16 bytes at a time: in registers between `fetch` and `keep`, so that the loads of
  /// two tiles are under way together.
  struct alignas(16) Piece {
    static constexpr int width = 16 / static_cast<int>(sizeof(Real));
    Real value[width];
  };
  static constexpr int row_pieces = channels / Piece::width, threads = warps<Exec> * (is_host<Exec> ? 1 : lane_count);
  struct Part {
    static constexpr int count = columns * row_pieces / threads;
    Piece pieces[count];
  };
  static constexpr bool ahead = channels <= 64;  ///< the loads of the next tile beside the products of this one
  /// 128 threads with up to 255 registers.
  static constexpr int teams_of_multiprocessor = 2;

  /// part ← this thread's share of the rows [first, first + columns) of a matrix, 0 outside.
  KOKKOS_FORCEINLINE_FUNCTION void fetch(const Member& member, HeadMatrix<const Real> matrix, int first,
                                         Part& part) const {
    const bool whole = head_channels % Piece::width == 0;
    ONEBIT_UNROLL
    for (int k = 0; k < Part::count; ++k) {
      const int i = thread(member) + k * threads, row = first + i / row_pieces, column = i % row_pieces * Piece::width;
      part.pieces[k] = {};
      if (whole && row < sequence && column < head_channels)
        part.pieces[k] = reinterpret_cast<const Piece&>(matrix(row, column));
    }
    if (whole) return;
    for (int k = 0; k < Part::count; ++k) {
      const int i = thread(member) + k * threads, row = first + i / row_pieces, column = i % row_pieces * Piece::width;
      for (int j = 0; j < Piece::width; ++j)
        if (row < sequence && column + j < head_channels) part.pieces[k].value[j] = matrix(row, column + j);
    }
  }
  /// tile ← what the threads of the team have fetched, as factors.
  KOKKOS_FORCEINLINE_FUNCTION void keep(const Member& member, Part part, Real* tile) const {
    ONEBIT_UNROLL
    for (int k = 0; k < Part::count; ++k) {
      const int i = thread(member) + k * threads;
      for (int j = 0; j < Piece::width; ++j) part.pieces[k].value[j] = as_factor<tensor>(part.pieces[k].value[j]);
      reinterpret_cast<Piece&>(tile[i / row_pieces * row_stride(channels) + i % row_pieces * Piece::width]) =
          part.pieces[k];
    }
  }
  /// f(position) for the tiles [begin, end) of two matrices, which lie in scratch memory then. Before each tile is
  /// kept, all threads of the team have left the one before, and `beside(position)` fills what else they share.
  template <class Beside, class F>
  KOKKOS_FORCEINLINE_FUNCTION void for_each_tile(const Member& member, const Scratch& memory,
                                                 HeadMatrix<const Real> first, HeadMatrix<const Real> second, int begin,
                                                 int end, const Beside& beside, const F& f) const {
    Part of_first, of_second;
    const auto fetch_both = [&](int position) {
      fetch(member, first, position, of_first);
      fetch(member, second, position, of_second);
    };
    if (ahead) fetch_both(begin);
    for (int position = begin; position < end; position += columns) {
      member.team_barrier();
      if (!ahead) fetch_both(position);
      keep(member, of_first, memory.first);
      keep(member, of_second, memory.second);
      beside(position);
      member.team_barrier();
      if (ahead && position + columns < end) fetch_both(position + columns);
      f(position);
    }
  }
  /// values ← the 16 rows of a matrix from `first` on, in the places of factors; 0 outside.
  KOKKOS_FORCEINLINE_FUNCTION void load_rows(Lane<Exec> lane, HeadMatrix<const Real> matrix, int first,
                                             Real* values) const {
    const Real* rows[lane.rows];
    ONEBIT_UNROLL
    for (int s = 0; s < lane.rows; ++s) rows[s] = &matrix(first + lane.row(s), lane.first_column());
    const bool all_channels = head_channels == channels;
    ONEBIT_UNROLL
    for (int e = 0; e < lane.elements(channels); ++e) {
      const int s = lane.factor_slot(channels, e), offset = lane.factor_offset(channels, e);
      values[e] = all_channels && first + lane.row(s) < sequence ? rows[s][offset] : Real(0);
    }
    if (all_channels) return;
    ONEBIT_UNROLL
    for (int e = 0; e < lane.elements(channels); ++e) {
      const int s = lane.factor_slot(channels, e), offset = lane.factor_offset(channels, e);
      if (first + lane.row(s) < sequence && lane.first_column() + offset < head_channels) values[e] = rows[s][offset];
    }
  }
  KOKKOS_FORCEINLINE_FUNCTION static void round_factor(Lane<Exec> lane, Real* factor) {
    ONEBIT_UNROLL
    for (int e = 0; e < lane.elements(channels); ++e) factor[e] = as_factor<tensor>(factor[e]);
  }
  KOKKOS_FORCEINLINE_FUNCTION void load_factor(Lane<Exec> lane, HeadMatrix<const Real> matrix, int first,
                                               Real* factor) const {
    load_rows(lane, matrix, first, factor);
    round_factor(lane, factor);
  }
  /// The 16 rows of a matrix from `first` on ← by_row(slot) · sums.
  template <class F>
  KOKKOS_FORCEINLINE_FUNCTION void store(Lane<Exec> lane, const Real* sums, HeadMatrix<Real> matrix, int first,
                                         const F& by_row) const {
    Real* rows[lane.rows];
    ONEBIT_UNROLL
    for (int s = 0; s < lane.rows; ++s) rows[s] = &matrix(first + lane.row(s), lane.first_column());
    const int channels_left = head_channels - lane.first_column();
    ONEBIT_UNROLL
    for (int e = 0; e < lane.elements(channels); ++e) {
      const int s = lane.slot(channels, e), offset = lane.offset(channels, e);
      if (first + lane.row(s) < sequence && offset < channels_left) rows[s][offset] = by_row(s) * sums[e];
    }
  }

  /// Bit i of mask(r, l) ← whether key l + 16 i of the block of dropout with `key` is kept for query first + r.
  KOKKOS_FORCEINLINE_FUNCTION void draw(const Member& member, const Place& place, int first, int count, int key,
                                        std::uint8_t* mask) const {
    const int first_call = key / dropout_block * dropout_calls;
    Kokkos::parallel_for(Kokkos::TeamVectorRange(member, count * dropout_calls), [&](int i) {
      Real factors[dropout_decisions];
      dropout.row(place.sample, first + i / dropout_calls, place.head, sequence)
          .call_factors(first_call + i % dropout_calls, factors);
      std::uint32_t kept = 0;
      for (int j = 0; j < dropout_decisions; ++j) kept |= std::uint32_t{factors[j] != 0} << j;
      mask[i] = static_cast<std::uint8_t>(kept);
    });
  }
  /// The factor of dropout of a key for row r of the mask; `kept` is the factor of what is not dropped.
  KOKKOS_FORCEINLINE_FUNCTION Real factor(const std::uint8_t* mask, int r, int key, Real kept) const {
    if (!dropout.active()) return Real(1);
    const int bit = key % dropout_block / dropout_calls;
    return mask[r * dropout_calls + key % dropout_calls] >> bit & 1 ? kept : Real(0);
  }
};

}  // namespace onebit::nn::flash
