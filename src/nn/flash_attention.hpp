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

#include "base/device/warps.hpp"
#include "base/error.hpp"
#include "base/float_bits.hpp"
#include "nn/activation.hpp"
#include "nn/attention.hpp"

namespace onebit::nn::flash {

/// The most channels of a head: two tiles must fit into 48 KiB of scratch memory, and sums into registers.
inline constexpr int most_channels = 128;
inline constexpr int warp_rows = 16;
template <class Exec>
inline constexpr int warps = is_host<Exec> ? 1 : 4;
/// Rows of a tile in scratch memory. They divide a block of dropout.
template <class Exec, class Real>
inline constexpr int tile_rows = (is_host<Exec> ? 64 : 128) / static_cast<int>(sizeof(Real));
/// Elements between rows of a tile. The four more let all lanes read different banks, in both kinds of product.
KOKKOS_INLINE_FUNCTION constexpr int row_stride(int channels) { return channels + 4; }

/// A factor of a product as it is multiplied: rounded to tf32 (10 bits of mantissa, to nearest) for tensor cores.
template <bool tensor, class Real>
KOKKOS_FORCEINLINE_FUNCTION Real as_factor(Real value) {
  if constexpr (tensor) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    std::uint32_t rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(value));
    return __uint_as_float(rounded);
#endif
    return value == value ? as_float((as_bits(value) + 0x1000u) & 0xFFFFE000u) : value;
  } else {
    return value;
  }
}

/// e^x by the device's own instruction in float: about 2 + |1.2 x| units in the last place (CUDA Programming Guide).
template <class Real>
KOKKOS_FORCEINLINE_FUNCTION Real power_of_e(Real x) {
#ifdef ONEBIT_DEVICE_CODE
  if constexpr (std::is_same_v<Real, float>) return __expf(x);
#endif
  return exp(x);
}

/// A lane of a warp and the elements of (16, columns) matrices that it holds: accumulators and factors as m16n8k8 wants
/// them (PTX ISA, "Matrix Fragments for mma.m16n8k8"). A slot is one of the rows of a lane; four lanes share each row.
template <class Exec>
struct Lane {
  static constexpr bool alone = is_host<Exec>;
  static constexpr int rows = alone ? warp_rows : 2;
  KOKKOS_FORCEINLINE_FUNCTION static constexpr int elements(int columns) {
    return warp_rows * columns / (alone ? 1 : 32);
  }

  int number;

  KOKKOS_FORCEINLINE_FUNCTION int group() const { return number / 4; }
  KOKKOS_FORCEINLINE_FUNCTION int member() const { return number % 4; }
  KOKKOS_FORCEINLINE_FUNCTION int row(int slot) const { return alone ? slot : group() + 8 * slot; }

  /// The lane's first column. Columns are written as this one and a constant, so that an address or a comparison takes
  /// one instruction.
  KOKKOS_FORCEINLINE_FUNCTION int first_column() const { return alone ? 0 : member() * 2; }

  /// Element e of sums is column first_column() + offset(e) of row slot(e).
  KOKKOS_FORCEINLINE_FUNCTION static constexpr int slot(int columns, int e) { return alone ? e / columns : e % 4 / 2; }
  KOKKOS_FORCEINLINE_FUNCTION static constexpr int offset(int columns, int e) {
    return alone ? e % columns : e / 4 * 8 + e % 2;
  }
  /// The same of factors. The eight terms of a product may come in any order that both factors share: here a lane has
  /// terms 2 member and 2 member + 1, two neighbouring words.
  KOKKOS_FORCEINLINE_FUNCTION static constexpr int factor_slot(int columns, int e) {
    return alone ? e / columns : e % 2;
  }
  KOKKOS_FORCEINLINE_FUNCTION static constexpr int factor_offset(int columns, int e) {
    return alone ? e % columns : e / 4 * 8 + e % 4 / 2;
  }

  /// The value of lane `member` of this lane's row.
  template <class Real>
  KOKKOS_FORCEINLINE_FUNCTION Real from(Real value, int member) const {
    return value_of_lane(value, group() * 4 + member);
  }
  /// join of the values of the four lanes of a row, the same in all of them.
  template <class Real, class Join>
  KOKKOS_FORCEINLINE_FUNCTION Real over_row(Real value, [[maybe_unused]] const Join& join) const {
    if constexpr (!alone) {
      value = join(value, value_across(value, 1));
      value = join(value, value_across(value, 2));
    }
    return value;
  }
  template <class Real>
  KOKKOS_FORCEINLINE_FUNCTION Real sum_over_row(Real value) const {
    return over_row(value, [](Real a, Real b) { return a + b; });
  }
};

/// Two neighbouring elements, one load.
template <class Real>
struct alignas(2 * sizeof(Real)) Two {
  Real values[2];
  KOKKOS_FORCEINLINE_FUNCTION static const Two& at(const Real* address) {
    return *reinterpret_cast<const Two*>(address);
  }
};

/// c (16, 8) += a (16, 8) · b (8, 8) by a tensor core. A build for GPUs before sm_80 has none for tf32.
KOKKOS_FORCEINLINE_FUNCTION void tensor_product([[maybe_unused]] float* c, [[maybe_unused]] const float (&a)[4],
                                                [[maybe_unused]] float b0, [[maybe_unused]] float b1) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
        "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
#elif defined(ONEBIT_SIMT)
  simt::tf32_product(c, a, b0, b1);
#endif
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
inline constexpr bool has_tensor_cores = false;
#else
inline constexpr bool has_tensor_cores = true;
#endif

/// scores (16, N) ← a (16, K) · bᵀ, b (N, K) in scratch memory.
template <bool tensor, int N, int K, class Exec, class Real>
KOKKOS_FORCEINLINE_FUNCTION void multiply_rows(Lane<Exec> lane, const Real* a, const Real* b, Real* scores) {
  constexpr int stride = row_stride(K);
  ONEBIT_UNROLL
  for (int e = 0; e < lane.elements(N); ++e) scores[e] = 0;
  if constexpr (lane.alone) {
    for (int e = 0; e < lane.elements(N); ++e)
      for (int k = 0; k < K; ++k) scores[e] += a[e / N * K + k] * b[e % N * stride + k];
  } else if constexpr (tensor && has_tensor_cores) {
    ONEBIT_UNROLL
    for (int k = 0; k < K / 8; ++k) {
      const Real factor[4] = {a[4 * k], a[4 * k + 1], a[4 * k + 2], a[4 * k + 3]};
      ONEBIT_UNROLL
      for (int n = 0; n < N / 8; ++n) {
        const Two<Real> two = Two<Real>::at(b + (8 * n + lane.group()) * stride + 8 * k + lane.first_column());
        tensor_product(scores + 4 * n, factor, two.values[0], two.values[1]);
      }
    }
  } else {
    ONEBIT_UNROLL
    for (int k = 0; k < K; ++k) {
      const int e = k / 8 * 4 + k % 2 * 2;
      const Real upper = lane.from(a[e], k % 8 / 2), lower = lane.from(a[e + 1], k % 8 / 2);
      ONEBIT_UNROLL
      for (int c = 0; c < N / 4; ++c) {
        const Real value = b[(c / 2 * 8 + lane.member() * 2 + c % 2) * stride + k];
        scores[c / 2 * 4 + c % 2] += upper * value;
        scores[c / 2 * 4 + 2 + c % 2] += lower * value;
      }
    }
  }
}

/// sums (16, K) += weights (16, N) · b, b (N, K) in scratch memory. The weights are accumulators of `multiply_rows`: a
/// tensor core takes them as they lie, because its eight terms may come in any order that both factors share.
template <bool tensor, int N, int K, class Exec, class Real>
KOKKOS_FORCEINLINE_FUNCTION void multiply_add(Lane<Exec> lane, const Real* weights, const Real* b, Real* sums) {
  constexpr int stride = row_stride(K);
  if constexpr (lane.alone) {
    for (int r = 0; r < warp_rows; ++r)
      for (int n = 0; n < N; ++n)
        for (int k = 0; k < K; ++k) sums[r * K + k] += as_factor<tensor>(weights[r * N + n]) * b[n * stride + k];
  } else if constexpr (tensor && has_tensor_cores) {
    ONEBIT_UNROLL
    for (int n = 0; n < N / 8; ++n) {
      const Real factor[4] = {as_factor<true>(weights[4 * n]), as_factor<true>(weights[4 * n + 2]),
                              as_factor<true>(weights[4 * n + 1]), as_factor<true>(weights[4 * n + 3])};
      ONEBIT_UNROLL
      for (int k = 0; k < K / 8; ++k) {
        const Real* const row = b + (8 * n + 2 * lane.member()) * stride + 8 * k + lane.group();
        tensor_product(sums + 4 * k, factor, row[0], row[stride]);
      }
    }
  } else {
    ONEBIT_UNROLL
    for (int n = 0; n < N; ++n) {
      const int e = n / 8 * 4 + n % 2;
      const Real upper = lane.from(weights[e], n % 8 / 2), lower = lane.from(weights[e + 2], n % 8 / 2);
      ONEBIT_UNROLL
      for (int c = 0; c < K / 4; ++c) {
        const Real value = b[n * stride + c / 2 * 8 + lane.member() * 2 + c % 2];
        sums[c / 2 * 4 + c % 2] += upper * value;
        sums[c / 2 * 4 + 2 + c % 2] += lower * value;
      }
    }
  }
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

/// context and log_sums of 64 queries (Dao 2023, algorithm 1).
template <class Exec, class Real, bool tensor, int channels>
struct Forward : Pass<Exec, Real, tensor, channels> {
  using Base = Pass<Exec, Real, tensor, channels>;
  using Base::columns;
  static constexpr int teams_of_multiprocessor = tensor && channels <= 64 ? 3 : 2;  // of three: 168 registers
  Real *context, *log_sums;

  KOKKOS_FUNCTION void operator()(const typename Base::Member& member) const {
    const auto place = this->place(member);
    const auto memory = this->scratch(member);
    const Lane<Exec> lane = this->lane();
    const int T = this->sequence, warp_first = member.team_rank() * warp_rows, first = place.first + warp_first;
    const int team_end = place.first + Base::team_rows, end = this->causal && team_end < T ? team_end : T;
    const Real scale = this->scale(), kept = this->dropout.row(0, 0, 0, T).scale;

    Real queries[lane.elements(channels)], sums[lane.elements(channels)], scores[lane.elements(columns)];
    Real largest[lane.rows], total[lane.rows];
    int seen[lane.rows];
    this->load_factor(lane, this->third(this->qkv, 0, place), first, queries);
    ONEBIT_UNROLL
    for (int e = 0; e < lane.elements(channels); ++e) sums[e] = 0;
    ONEBIT_UNROLL
    for (int s = 0; s < lane.rows; ++s) {
      largest[s] = lowest_number<Real>;
      total[s] = 0;
      seen[s] = this->keys_seen(first + lane.row(s)) - lane.first_column();
    }
    const auto draw = [&](int key) {
      if (this->dropout.active() && key % dropout_block == 0)
        this->draw(member, place, place.first, Base::team_rows, key, memory.mask);
    };
    const HeadMatrix<const Real> keys = this->third(this->qkv, 1, place), values = this->third(this->qkv, 2, place);
    this->for_each_tile(member, memory, keys, values, 0, end, draw, [&](int key) {
      multiply_rows<tensor, columns, channels>(lane, queries, memory.first, scores);
      rescale(lane, key, scale, scores, seen, largest, total, sums);
      ONEBIT_UNROLL
      for (int e = 0; e < lane.elements(columns); ++e) {
        const int slot = lane.slot(columns, e), row = lane.row(slot), offset = lane.offset(columns, e);
        const Real power = offset < seen[slot] - key ? power_of_e(scale * scores[e] - largest[slot]) : Real(0);
        total[slot] += power;
        scores[e] = power * this->factor(memory.mask, warp_first + row, key + lane.first_column() + offset, kept);
      }
      multiply_add<tensor, columns, channels>(lane, scores, memory.second, sums);
    });
    ONEBIT_UNROLL
    for (int s = 0; s < lane.rows; ++s) {
      total[s] = lane.sum_over_row(total[s]);
      const int row = first + lane.row(s);
      if (lane.member() == 0 && row < T) this->rows(log_sums, place)[row] = largest[s] + math::log(total[s]);
      total[s] = 1 / total[s];
    }
    this->store(lane, sums, this->head(context, place), first, [&](int slot) { return total[slot]; });
  }

private:
  /// largest ← the largest score so far; what was summed follows it.
  KOKKOS_FORCEINLINE_FUNCTION void rescale(Lane<Exec> lane, int key, Real scale, const Real* scores, const int* seen,
                                           Real* largest, Real* total, Real* sums) const {
    Real change[lane.rows];
    ONEBIT_UNROLL
    for (int s = 0; s < lane.rows; ++s) change[s] = largest[s];
    ONEBIT_UNROLL
    for (int e = 0; e < lane.elements(columns); ++e) {
      const int slot = lane.slot(columns, e);
      const Real score = scale * scores[e];
      if (lane.offset(columns, e) < seen[slot] - key && largest[slot] < score) largest[slot] = score;
    }
    ONEBIT_UNROLL
    for (int s = 0; s < lane.rows; ++s) {
      largest[s] = lane.over_row(largest[s], [](Real a, Real b) { return a < b ? b : a; });
      change[s] = power_of_e(change[s] - largest[s]);
      total[s] *= change[s];
    }
    ONEBIT_UNROLL
    for (int e = 0; e < lane.elements(channels); ++e) sums[e] *= change[lane.slot(channels, e)];
  }
};

/// dQ of 64 queries, and products ← rowsum(dO ∘ O) (Dao 2023, algorithm 2, lines 4 and 15).
template <class Exec, class Real, bool tensor, int channels>
struct QueryGradient : Pass<Exec, Real, tensor, channels> {
  using Base = Pass<Exec, Real, tensor, channels>;
  using Base::columns;
  const Real *context, *d_context, *log_sums;
  Real *products, *d_qkv;

  KOKKOS_FUNCTION void operator()(const typename Base::Member& member) const {
    const auto place = this->place(member);
    const auto memory = this->scratch(member);
    const Lane<Exec> lane = this->lane();
    const int T = this->sequence, warp_first = member.team_rank() * warp_rows, first = place.first + warp_first;
    const int team_end = place.first + Base::team_rows, end = this->causal && team_end < T ? team_end : T;
    const Real scale = this->scale(), kept = this->dropout.row(0, 0, 0, T).scale;

    Real queries[lane.elements(channels)], d_output[lane.elements(channels)], sums[lane.elements(channels)];
    Real scores[lane.elements(columns)], gradients[lane.elements(columns)], log_sum[lane.rows], product[lane.rows];
    int seen[lane.rows];
    this->load_factor(lane, this->third(this->qkv, 0, place), first, queries);
    this->load_rows(lane, this->head(d_context, place), first, d_output);
    row_products(lane, place, first, d_output, product);
    this->round_factor(lane, d_output);
    ONEBIT_UNROLL
    for (int s = 0; s < lane.rows; ++s) {
      const int row = first + lane.row(s);
      log_sum[s] = row < T ? this->rows(log_sums, place)[row] : Real(0);
      seen[s] = this->keys_seen(row) - lane.first_column();
      if (lane.member() == 0 && row < T) this->rows(products, place)[row] = product[s];
    }
    ONEBIT_UNROLL
    for (int e = 0; e < lane.elements(channels); ++e) sums[e] = 0;
    const auto draw = [&](int key) {
      if (this->dropout.active() && key % dropout_block == 0)
        this->draw(member, place, place.first, Base::team_rows, key, memory.mask);
    };
    const HeadMatrix<const Real> keys = this->third(this->qkv, 1, place), values = this->third(this->qkv, 2, place);
    this->for_each_tile(member, memory, keys, values, 0, end, draw, [&](int key) {
      multiply_rows<tensor, columns, channels>(lane, queries, memory.first, scores);
      multiply_rows<tensor, columns, channels>(lane, d_output, memory.second, gradients);
      ONEBIT_UNROLL
      for (int e = 0; e < lane.elements(columns); ++e) {
        const int slot = lane.slot(columns, e), offset = lane.offset(columns, e);
        const Real p = offset < seen[slot] - key ? power_of_e(scale * scores[e] - log_sum[slot]) : Real(0);
        const Real factor =
            this->factor(memory.mask, warp_first + lane.row(slot), key + lane.first_column() + offset, kept);
        scores[e] = p * (factor * gradients[e] - product[slot]);
      }
      multiply_add<tensor, columns, channels>(lane, scores, memory.first, sums);
    });
    this->store(lane, sums, this->third(d_qkv, 0, place), first, [&](int) { return scale; });
  }

private:
  KOKKOS_FORCEINLINE_FUNCTION void row_products(Lane<Exec> lane, const typename Base::Place& place, int first,
                                                const Real* d_output, Real* product) const {
    Real output[lane.elements(channels)];
    this->load_rows(lane, this->head(context, place), first, output);
    ONEBIT_UNROLL
    for (int s = 0; s < lane.rows; ++s) product[s] = 0;
    ONEBIT_UNROLL
    for (int e = 0; e < lane.elements(channels); ++e) product[lane.factor_slot(channels, e)] += output[e] * d_output[e];
    ONEBIT_UNROLL
    for (int s = 0; s < lane.rows; ++s) product[s] = lane.sum_over_row(product[s]);
  }
};

/// dK and dV of 64 keys, from transposed scores: a row belongs to a key (Dao 2023, algorithm 2).
template <class Exec, class Real, bool tensor, int channels>
struct KeyGradient : Pass<Exec, Real, tensor, channels> {
  using Base = Pass<Exec, Real, tensor, channels>;
  using Base::columns;
  const Real *d_context, *log_sums, *products;
  Real* d_qkv;

  KOKKOS_FUNCTION void operator()(const typename Base::Member& member) const {
    const auto place = this->place(member);
    const auto memory = this->scratch(member);
    const Lane<Exec> lane = this->lane();
    const int T = this->sequence, first = place.first + member.team_rank() * warp_rows;
    const int begin = this->causal ? place.first / columns * columns : 0;
    const Real scale = this->scale(), kept = this->dropout.row(0, 0, 0, T).scale;

    Real keys[lane.elements(channels)], values[lane.elements(channels)];
    Real d_keys[lane.elements(channels)], d_values[lane.elements(channels)];
    Real scores[lane.elements(columns)], gradients[lane.elements(columns)];
    int first_query[lane.rows];
    ONEBIT_UNROLL
    for (int s = 0; s < lane.rows; ++s) first_query[s] = this->first_query(first + lane.row(s)) - lane.first_column();
    this->load_factor(lane, this->third(this->qkv, 1, place), first, keys);
    this->load_factor(lane, this->third(this->qkv, 2, place), first, values);
    ONEBIT_UNROLL
    for (int e = 0; e < lane.elements(channels); ++e) d_keys[e] = d_values[e] = 0;
    const auto beside = [&](int query) {
      Kokkos::parallel_for(Kokkos::TeamVectorRange(member, +columns), [&](int i) {
        memory.log_sums[i] = query + i < T ? this->rows(log_sums, place)[query + i] : Real(0);
        memory.products[i] = query + i < T ? this->rows(products, place)[query + i] : Real(0);
      });
      if (this->dropout.active()) this->draw(member, place, query, columns, place.first, memory.mask);
    };
    const HeadMatrix<const Real> queries = this->third(this->qkv, 0, place), d_outputs = this->head(d_context, place);
    this->for_each_tile(member, memory, queries, d_outputs, begin, T, beside, [&](int query) {
      multiply_rows<tensor, columns, channels>(lane, keys, memory.first, scores);
      multiply_rows<tensor, columns, channels>(lane, values, memory.second, gradients);
      ONEBIT_UNROLL
      for (int e = 0; e < lane.elements(columns); ++e) {
        const int slot = lane.slot(columns, e), offset = lane.offset(columns, e), i = lane.first_column() + offset;
        const Real p =
            offset >= first_query[slot] - query ? power_of_e(scale * scores[e] - memory.log_sums[i]) : Real(0);
        const Real factor = this->factor(memory.mask, i, first + lane.row(slot), kept);
        scores[e] = p * factor;
        gradients[e] = p * (factor * gradients[e] - memory.products[i]);
      }
      multiply_add<tensor, columns, channels>(lane, scores, memory.second, d_values);
      multiply_add<tensor, columns, channels>(lane, gradients, memory.first, d_keys);
    });
    this->store(lane, d_keys, this->third(d_qkv, 1, place), first, [&](int) { return scale; });
    this->store(lane, d_values, this->third(d_qkv, 2, place), first, [](int) { return Real(1); });
  }
};

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
