#pragma once
/// \file packing.hpp
/// Matrices of bits from numbers. A product sums along the rows of a matrix of bits, so a matrix is packed along its
/// rows, along its columns, or both, in one pass.
///
/// The host works on blocks whose rows and columns are multiples of 64, so that each block gives whole 64-bit numbers
/// in both directions.

#ifdef __SSE2__
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/device/parallel.hpp"
#include "base/device/warps.hpp"
#include "base/error.hpp"
#include "linalg/bits/bits.hpp"
#include "linalg/differences.hpp"

namespace onebit::linalg {

/// The words of the planes that a packing writes, as kernels see them.
struct PackedPlanes {
  std::uint32_t* data[most_planes] = {};
  std::size_t stride = 0;  ///< words between rows
  int count = 0;

  /// \throws RunError unless there are at most 8 planes of this shape
  template <class Exec>
  PackedPlanes(const std::vector<BitMatrix<Exec>>& planes, int rows, int columns)
      : stride(planes.empty() ? 0 : planes[0].words.extent(1)), count(static_cast<int>(planes.size())) {
    bool good = count <= most_planes;
    for (int p = 0; good && p < count; ++p) {
      data[p] = planes[p].words.data();
      good = planes[p].rows == rows && planes[p].columns == columns && planes[p].words.extent(1) == stride;
    }
    if (!good) throw RunError("packing", "a matrix of bits has another shape than the numbers", "report it");
  }

  KOKKOS_FORCEINLINE_FUNCTION std::uint32_t* word(int plane, std::size_t row, int number) const {
    return data[plane] + row * stride + number;
  }
};

/// Rows of a block on the host, and columns whose bits make a 64-bit number.
inline constexpr int pack_height = 64, pack_columns = 64;
/// Most columns of a block. A processor fetches ahead best where a block has whole rows.
inline constexpr int pack_width = 8192;
/// Most columns of a block if blocks of whole rows are fewer than threads.
inline constexpr int narrow_pack_width = 1024;

/// Bit p of each of 32 bytes.
inline std::uint32_t bits_of_bytes(const std::uint8_t* bytes, int p) {
  std::uint32_t bits = 0;
#ifdef __SSE2__
  for (int k = 0; k < 2; ++k) {
    const __m128i some = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + 16 * k));
    bits |= static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_slli_epi16(some, 7 - p))) << 16 * k;
  }
#else
  for (int k = 0; k < 4; ++k) {
    std::uint64_t eight = 0;
    for (int i = 0; i < 8; ++i) eight |= std::uint64_t{bytes[8 * k + i]} << 8 * i;
    // Bit 8 i of the first factor becomes bit 56 + i of the product.
    bits |= static_cast<std::uint32_t>((eight >> p & 0x0101010101010101u) * 0x0102040810204080u >> 56) << 8 * k;
  }
#endif
  return bits;
}

/// Bit p of each of 64 bytes.
inline std::uint64_t bits_of_64_bytes(const std::uint8_t* bytes, int p) {
#ifdef __AVX512BW__
  return _mm512_test_epi8_mask(_mm512_loadu_si512(bytes), _mm512_set1_epi8(static_cast<char>(1 << p)));
#else
  return bits_of_bytes(bytes, p) | std::uint64_t{bits_of_bytes(bytes + word_bits, p)} << word_bits;
#endif
}

/// Transposes 64 rows of 64 bits. It swaps the two off-diagonal quarters of ever smaller squares.
inline void transpose_bits(std::uint64_t (&rows)[64]) {
  std::uint64_t low = 0x00000000FFFFFFFFu;  // the lower half of the columns of each square
  for (int half = 32; half > 0; half /= 2, low ^= low << half)
    for (int square = 0; square < 64; square += 2 * half) {
      std::uint64_t *const upper = rows + square, *const lower = upper + half;
      ONEBIT_IVDEP
      for (int r = 0; r < half; ++r) {
        const std::uint64_t swapped = (upper[r] >> half ^ lower[r]) & low;
        lower[r] ^= swapped;
        upper[r] ^= swapped << half;
      }
    }
}

/// Whether a code gives the bits of 64 columns at once on the host: code.bits(row, column, planes) sets planes[p] to
/// bit p of each.
template <class Code, class = void>
inline constexpr bool gives_bits = false;
template <class Code>
inline constexpr bool gives_bits<Code, std::void_t<decltype(std::declval<const Code&>().bits(0, 0, nullptr))>> = true;

/// The bits of the codes of up to 64 columns, 0 after the last one. \param planes (count)
template <class Code>
void bits_of_codes(const Code& code, int row, int column, int width, int count, std::uint64_t* planes) {
  if constexpr (gives_bits<Code>) {
    if (width == pack_columns) return code.bits(row, column, planes);
  }
  // Compilers vectorise a loop over an array of bytes only if it is local.
  std::uint8_t codes[pack_columns];
  if (width < pack_columns) std::memset(codes, 0, sizeof codes);
  ONEBIT_IVDEP
  for (int c = 0; c < width; ++c) codes[c] = static_cast<std::uint8_t>(code(row, column + c));
  for (int p = 0; p < count; ++p) planes[p] = bits_of_64_bytes(codes, p);
}

/// A block on the host: the bits of each plane, of each 64 columns, of each row.
struct PackBlock {
  int row, column;    ///< the first ones
  int height, width;  ///< of the part in the matrix
  std::uint64_t bits[most_planes][pack_width / pack_columns][pack_height];

  template <class Code>
  void pack_rows(const Code& code, const PackedPlanes& along_rows, int count) {
    for (int r = 0; r < height; ++r)
      for (int first = 0; first < width; first += pack_columns) {
        std::uint64_t planes[most_planes];
        bits_of_codes(code, row + r, column + first, std::min(pack_columns, width - first), count, planes);
        for (int p = 0; p < count; ++p) bits[p][first / pack_columns][r] = planes[p];
        for (int p = 0; p < along_rows.count; ++p)
          std::memcpy(along_rows.word(p, row + r, (column + first) / word_bits), planes + p, sizeof *planes);
      }
  }
  void pack_columns_of(const PackedPlanes& along_columns) {
    for (int p = 0; p < along_columns.count; ++p)
      for (int first = 0; first < width; first += pack_columns) {
        std::uint64_t(&square)[pack_height] = bits[p][first / pack_columns];
        for (int r = height; r < pack_height; ++r) square[r] = 0;
        transpose_bits(square);
        for (int c = 0; c < pack_columns && first + c < width; ++c)
          std::memcpy(along_columns.word(p, column + first + c, row / word_bits), square + c, sizeof *square);
      }
  }
};

/// pack on the host.
template <class Exec, class Code>
void pack_on_host(const Exec& exec, const char* label, int rows, int columns, const Code& code,
                  const PackedPlanes& along_rows, const PackedPlanes& along_columns) {
  const int down = (rows + pack_height - 1) / pack_height;
  const int most = down < concurrency(exec) ? narrow_pack_width : pack_width;
  const int across = (columns + most - 1) / most;
  Kokkos::parallel_for(label, Kokkos::RangePolicy<Exec>(exec, 0, across * down), [=](int number) {
    static thread_local std::unique_ptr<PackBlock> memory;
    if (!memory) memory.reset(new PackBlock);  // without a value, so that only what is used is touched
    PackBlock& block = *memory;
    block.row = number / across * pack_height;
    block.column = number % across * most;
    block.height = std::min(pack_height, rows - block.row);
    block.width = std::min(most, columns - block.column);
    block.pack_rows(code, along_rows, std::max(along_rows.count, along_columns.count));
    block.pack_columns_of(along_columns);
  });
}

/// pack by lanes, each of which has a column of a block of 32 rows and columns: a vote of the lanes is a word of a row.
template <class Code>
struct PackInLanes {
  int lanes;  ///< of a warp, which takes one or two blocks side by side
  int rows, columns;
  Code code;
  PackedPlanes along_rows, along_columns;

  KOKKOS_FORCEINLINE_FUNCTION std::size_t across() const { return words_of(columns) / (lanes / word_bits); }
  std::size_t count() const { return across() * words_of(rows); }

  KOKKOS_FORCEINLINE_FUNCTION void operator()(std::size_t block, std::size_t lane) const {
    const int bit = static_cast<int>(lane) % word_bits, row = static_cast<int>(block / across()) * word_bits;
    const int c = static_cast<int>(block % across() * lanes + lane), word = c / word_bits;
    std::uint32_t column[most_planes] = {};
    for (int r = 0; r < word_bits && row + r < rows; ++r) {
      const std::uint32_t value = c < columns ? static_cast<std::uint32_t>(code(row + r, c)) : 0u;
      ONEBIT_UNROLL
      for (int p = 0; p < most_planes; ++p) {
        if (p < along_rows.count) store_ballot(bit, (value >> p & 1u) != 0, along_rows.word(p, row + r, word));
        column[p] |= (value >> p & 1u) << r;
      }
    }
    ONEBIT_UNROLL
    for (int p = 0; p < most_planes; ++p)
      if (p < along_columns.count && c < columns) *along_columns.word(p, c, row / word_bits) = column[p];
  }
};

/// Bit p of code(r, c) ← a small unsigned integer, called once for each element, goes to plane p. The planes
/// `along_rows` are (rows, columns), `along_columns` (columns, rows); either list may be empty. At most 8 planes.
template <class Exec, class Code>
void pack(const Exec& exec, const char* label, int rows, int columns, const Code& code,
          const std::vector<BitMatrix<Exec>>& along_rows, const std::vector<BitMatrix<Exec>>& along_columns) {
  const PackedPlanes row_planes(along_rows, rows, columns), column_planes(along_columns, columns, rows);
  if constexpr (is_host<Exec>) {
    pack_on_host(exec, label, rows, columns, code, row_planes, column_planes);
  } else {
    const PackInLanes<Code> packing{warp_lanes, rows, columns, code, row_planes, column_planes};
    for_each_block(exec, label, packing.count(), packing);
  }
}

#ifdef __AVX512F__
/// Bit c of `positive` ← whether is_positive(x[c]), of `inside`, if it is not null, ← whether |x[c]| < 1, for 64
/// floats.
inline void compare_64(const float* x, std::uint64_t* positive, std::uint64_t* inside) {
  constexpr int lanes = 16, fetched_ahead = 1024;  // floats: the processor itself does not fetch beyond a page
  __mmask16 signs[4], small[4];
  for (int v = 0; v < 4; ++v) {
    __builtin_prefetch(x + fetched_ahead + v * lanes, 0, 2);
    const __m512 values = _mm512_loadu_ps(x + v * lanes);
    signs[v] = _mm512_cmp_ps_mask(values, _mm512_setzero_ps(), _CMP_GT_OQ);
    if (inside) small[v] = _mm512_cmp_ps_mask(_mm512_abs_ps(values), _mm512_set1_ps(1), _CMP_LT_OQ);
  }
  std::memcpy(positive, signs, sizeof *positive);
  if (inside) std::memcpy(inside, small, sizeof *inside);
}
#endif

/// Code 1 for a positive element and 0 for another one.
template <class Real>
struct SignCodes {
  const Real* matrix;
  std::size_t stride;

  KOKKOS_FORCEINLINE_FUNCTION unsigned operator()(int r, int c) const {
    return static_cast<unsigned>(is_positive(matrix[r * stride + c]));
  }
#ifdef __AVX512F__
  template <class T = Real, class = std::enable_if_t<std::is_same_v<T, float>>>
  void bits(int r, int c, std::uint64_t* planes) const {
    compare_64(matrix + r * stride + c, planes, nullptr);
  }
#endif
};

/// Bit (r, c) of `along_rows` and bit (c, r) of `along_columns` ← whether element (r, c) of the matrix is positive.
/// Either may be null.
template <class Exec, class Real>
void pack_signs(const Exec& exec, MatrixRef<Exec, const Real> matrix, const BitMatrix<Exec>* along_rows,
                const BitMatrix<Exec>* along_columns) {
  std::vector<BitMatrix<Exec>> row_planes, column_planes;
  if (along_rows) row_planes.push_back(*along_rows);
  if (along_columns) column_planes.push_back(*along_columns);
  pack(exec, "OneBit::linalg::pack_signs", matrix.extent_int(0), matrix.extent_int(1),
       SignCodes<Real>{matrix.data(), matrix.extent(1)}, row_planes, column_planes);
}

}  // namespace onebit::linalg
