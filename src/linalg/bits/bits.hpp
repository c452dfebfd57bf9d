#pragma once
/// \file bits.hpp
/// Matrices of bits. A bit is a sign, 1 for +1 and 0 for −1, or a plane of a small integer. A product of such matrices
/// sums along their rows, so a matrix that is multiplied from both sides is packed twice, along each of its dimensions.

#include <cstdint>
#include <string>

#include "base/kokkos.hpp"

namespace onebit::linalg {

/// Bits of a word.
inline constexpr int word_bits = 32;

/// Words of a row of `columns` bits: an even number, so that a row is whole in 64-bit words, too.
KOKKOS_INLINE_FUNCTION constexpr int words_of(int columns) {
  return (columns + 2 * word_bits - 1) / (2 * word_bits) * 2;
}

/// Words from a row to the next one. Those of long rows are an odd number of cache lines, so that the rows of a column
/// have different places in a cache.
KOKKOS_INLINE_FUNCTION constexpr int stride_of(int columns) {
  constexpr int words_of_line = 16, short_row = 8 * words_of_line;
  const int words = words_of(columns);
  return words < short_row ? words : ((words + words_of_line - 1) / words_of_line | 1) * words_of_line;
}

/// The sign of a factor of a product: −1 for t ≤ 0 and for NaN, else +1. In the momentum's messages, 0 has sign +1.
template <class Real>
KOKKOS_FORCEINLINE_FUNCTION bool is_positive(Real t) {
  return t > Real(0);
}

/// A (rows, columns) matrix of bits: (r, c) is bit c % 32 of word (r, c / 32). The bits after the last column are 0.
template <class Exec>
struct BitMatrix {
  Matrix<Exec, std::uint32_t> words;  ///< (at least rows, at least words_of(columns))
  int rows = 0;
  int columns = 0;

  BitMatrix() = default;
  /// Uninitialised.
  BitMatrix(const std::string& label, int row_count, int column_count)
      : words(Kokkos::view_alloc(label, Kokkos::WithoutInitializing), row_count, stride_of(column_count)),
        rows(row_count),
        columns(column_count) {}

  KOKKOS_FORCEINLINE_FUNCTION bool operator()(int r, int c) const {
    return (words(r, c / word_bits) >> (c % word_bits) & 1u) != 0;
  }
};

}  // namespace onebit::linalg
