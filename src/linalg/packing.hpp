#pragma once
/// \file packing.hpp
/// Matrices of bits from numbers. A product sums along the rows of a matrix of bits, so a matrix is packed along its
/// rows, along its columns, or both, in one pass.
///
/// The host works on blocks whose rows and columns are multiples of 64, so that each block gives whole rows of words in
/// both directions.

#ifdef __SSE2__
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#include "base/error.hpp"
#include "base/parallel.hpp"
#include "base/warps.hpp"
#include "linalg/bits.hpp"
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

/// Rows of a block on the host, and most columns. A processor fetches ahead best where a block has whole rows.
inline constexpr int pack_height = 64, pack_width = 8192;
/// Columns of a row whose codes are computed at a time.
inline constexpr int pack_part = 256;
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

/// words(w) ← bit p of 32 bytes each, for an even number of words.
inline void pack_bytes(const std::uint8_t* bytes, int p, int words, std::uint32_t* to) {
#ifdef __AVX512BW__
  const __m512i bit = _mm512_set1_epi8(static_cast<char>(1 << p));
  for (int w = 0; w < words; w += 2) {
    const std::uint64_t two = _mm512_test_epi8_mask(_mm512_loadu_si512(bytes + w * word_bits), bit);
    std::memcpy(to + w, &two, sizeof two);
  }
#else
  for (int w = 0; w < words; ++w) to[w] = bits_of_bytes(bytes + w * word_bits, p);
#endif
}

/// A block of codes on the host, 0 outside of the matrix.
struct PackBlock {
  int row, column;    ///< the first ones
  int height, width;  ///< of the part in the matrix
  /// A cache line more than the columns, so that the rows of a column have different places in a cache.
  std::uint8_t codes[pack_height][pack_width + 64];

  void pack_rows(const PackedPlanes& planes) const {
    const int words = words_of(width);
    for (int r = 0; r < height; ++r)
      for (int p = 0; p < planes.count; ++p)
        pack_bytes(codes[r], p, words, planes.word(p, row + r, column / word_bits));
  }
  void pack_columns(const PackedPlanes& planes) const {
    constexpr int at_once = 64;
    for (int first = 0; first < width; first += at_once) {
      std::uint8_t tile[pack_height][at_once];
      for (int r = 0; r < pack_height; ++r) std::memcpy(tile[r], codes[r] + first, at_once);
      for (int p = 0; p < planes.count; ++p) {
        // Eight rows give a byte of each column, so that vector registers hold as many columns as bytes.
        std::uint8_t bytes[pack_height / 8][at_once] = {};
        for (int r = 0; r < pack_height; ++r)
          for (int c = 0; c < at_once; ++c)
            bytes[r / 8][c] = static_cast<std::uint8_t>(bytes[r / 8][c] >> 1 | (tile[r][c] & 1) << 7);
        if (p + 1 < planes.count)
          for (int r = 0; r < pack_height; ++r)
            for (int c = 0; c < at_once; ++c) tile[r][c] = static_cast<std::uint8_t>(tile[r][c] >> 1);
        std::uint32_t bits[2][at_once];
        for (int k = 0; k < 2; ++k)
          for (int c = 0; c < at_once; ++c)
            bits[k][c] = std::uint32_t{bytes[4 * k][c]} | std::uint32_t{bytes[4 * k + 1][c]} << 8 |
                         std::uint32_t{bytes[4 * k + 2][c]} << 16 | std::uint32_t{bytes[4 * k + 3][c]} << 24;
        for (int c = 0; c < at_once && first + c < width; ++c) {
          std::uint32_t* const to = planes.word(p, column + first + c, row / word_bits);
          to[0] = bits[0][c];
          to[1] = bits[1][c];
        }
      }
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
    if (block.height < pack_height || block.width % 64 != 0)
      for (auto& row : block.codes) std::memset(row, 0, words_of(block.width) * word_bits);
    for (int r = 0; r < block.height; ++r) {
      const int row = block.row + r;
      // Compilers vectorise loops over arrays of bytes only if these are local.
      for (int first = 0; first < block.width; first += pack_part) {
        std::uint8_t part[pack_part];
        const int column = block.column + first, width = std::min(pack_part, block.width - first);
        ONEBIT_IVDEP
        for (int c = 0; c < width; ++c) part[c] = static_cast<std::uint8_t>(code(row, column + c));
        std::memcpy(block.codes[r] + first, part, width);
      }
    }
    block.pack_rows(along_rows);
    block.pack_columns(along_columns);
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

/// Bit (r, c) of `along_rows` and bit (c, r) of `along_columns` ← whether element (r, c) of the matrix is positive.
/// Either may be null.
template <class Exec, class Real>
void pack_signs(const Exec& exec, MatrixRef<Exec, const Real> matrix, const BitMatrix<Exec>* along_rows,
                const BitMatrix<Exec>* along_columns) {
  std::vector<BitMatrix<Exec>> row_planes, column_planes;
  if (along_rows) row_planes.push_back(*along_rows);
  if (along_columns) column_planes.push_back(*along_columns);
  const Real* const data = matrix.data();
  const std::size_t stride = matrix.extent(1);
  pack(
      exec, "OneBit::linalg::pack_signs", matrix.extent_int(0), matrix.extent_int(1),
      KOKKOS_LAMBDA(int r, int c) { return static_cast<unsigned>(is_positive(data[r * stride + c])); }, row_planes,
      column_planes);
}

}  // namespace onebit::linalg
