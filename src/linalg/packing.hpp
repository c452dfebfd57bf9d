#pragma once
/// \file packing.hpp
/// Matrices of bits from numbers. A product sums along the rows of a matrix of bits, so a matrix is packed along its
/// rows, along its columns, or both, in one pass.
///
/// The work is done in blocks of 64 rows and columns, so that each block gives whole 64-bit words in both directions.

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "base/error.hpp"
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

/// Rows and columns of a block on the host.
inline constexpr int pack_edge = 64;

/// Packs a block of the host. codes (64, 64) are 0 outside of the matrix. \param height, width of the part inside
inline void pack_block(const std::uint8_t* codes, int row, int column, int height, int width,
                       const PackedPlanes& along_rows, const PackedPlanes& along_columns) {
  constexpr int bytes = 8;
  for (int p = 0; p < along_rows.count; ++p)
    for (int r = 0; r < height; ++r) {
      std::uint32_t* const words = along_rows.word(p, row + r, column / word_bits);
      for (int half = 0; half < 2; ++half) {
        std::uint32_t bits = 0;
        for (int k = 0; k < word_bits / bytes; ++k) {
          // Bit 8 i of the eight codes becomes bit 56 + i of their product.
          std::uint64_t eight = 0;
          for (int i = 0; i < bytes; ++i)
            eight |= std::uint64_t{codes[r * pack_edge + half * word_bits + k * bytes + i]} << 8 * i;
          bits |= static_cast<std::uint32_t>((eight >> p & 0x0101010101010101u) * 0x0102040810204080u >> 56) << 8 * k;
        }
        words[half] = bits;
      }
    }
  for (int p = 0; p < along_columns.count; ++p) {
    std::uint32_t bits[2][pack_edge] = {};
    for (int r = 0; r < pack_edge; ++r)
      for (int c = 0; c < pack_edge; ++c)
        bits[r / word_bits][c] |= (std::uint32_t{codes[r * pack_edge + c]} >> p & 1u) << r % word_bits;
    for (int c = 0; c < width; ++c) {
      std::uint32_t* const words = along_columns.word(p, column + c, row / word_bits);
      words[0] = bits[0][c];
      words[1] = bits[1][c];
    }
  }
}

/// pack on the host.
template <class Exec, class Code>
void pack_on_host(const Exec& exec, const char* label, int rows, int columns, const Code& code,
                  const PackedPlanes& along_rows, const PackedPlanes& along_columns) {
  const int across = (columns + pack_edge - 1) / pack_edge, down = (rows + pack_edge - 1) / pack_edge;
  Kokkos::parallel_for(label, Kokkos::RangePolicy<Exec>(exec, 0, across * down), [=](int block) {
    const int row = block / across * pack_edge, column = block % across * pack_edge;
    const int height = rows - row < pack_edge ? rows - row : pack_edge;
    const int width = columns - column < pack_edge ? columns - column : pack_edge;
    alignas(64) std::uint8_t codes[pack_edge * pack_edge];
    if (height < pack_edge || width < pack_edge) std::memset(codes, 0, sizeof codes);
    for (int r = 0; r < height; ++r) {
      ONEBIT_IVDEP
      for (int c = 0; c < width; ++c) codes[r * pack_edge + c] = static_cast<std::uint8_t>(code(row + r, column + c));
    }
    pack_block(codes, row, column, height, width, along_rows, along_columns);
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
