#pragma once
/// \file planes.hpp
/// Matrices of bits as kernels read them: pointers, strides and extents.

#include <cstdint>
#include <vector>

#include "base/device/parallel.hpp"
#include "base/error.hpp"
#include "linalg/bits/bits.hpp"
#include "linalg/differences.hpp"

namespace onebit::linalg {

/// The number of bits that are 1. On the host a compiler can vectorise it.
KOKKOS_FORCEINLINE_FUNCTION int bit_count(std::uint32_t word) {
#ifdef ONEBIT_DEVICE_CODE
  return __popc(word);
#else
  word -= word >> 1 & 0x55555555u;
  word = (word & 0x33333333u) + (word >> 2 & 0x33333333u);
  return static_cast<int>(((word + (word >> 4)) & 0x0F0F0F0Fu) * 0x01010101u >> 24);
#endif
}

/// A matrix of bits.
struct BitRows {
  const std::uint32_t* data = nullptr;
  std::size_t stride = 0;  ///< words between rows
  int rows = 0, columns = 0;
  int words = 0;  ///< of a row

  BitRows() = default;
  template <class Exec>
  explicit BitRows(const BitMatrix<Exec>& matrix)
      : data(matrix.words.data()),
        stride(matrix.words.extent(1)),
        rows(matrix.rows),
        columns(matrix.columns),
        words(words_of(matrix.columns)) {}

  KOKKOS_FORCEINLINE_FUNCTION const std::uint32_t* row(int r) const { return data + r * stride; }
};

/// The bits of a matrix of small integers, the least significant plane first.
struct Planes {
  BitRows plane[most_planes];
  int count = 0;

  explicit Planes(const BitRows& matrix) : plane{matrix}, count(1) {}
  /// \throws RunError unless there are 1 to 8 planes of one shape
  template <class Exec>
  explicit Planes(const std::vector<BitMatrix<Exec>>& matrices) : count(static_cast<int>(matrices.size())) {
    bool good = count >= 1 && count <= most_planes;
    for (int p = 0; good && p < count; ++p) {
      plane[p] = BitRows(matrices[p]);
      good = plane[p].rows == plane[0].rows && plane[p].columns == plane[0].columns;
    }
    if (!good) throw RunError("binary product", "a factor needs 1 to 8 planes of one shape", "report it");
  }

  /// Σ_p 2^p Σ_l 1.
  KOKKOS_FORCEINLINE_FUNCTION int greatest_sum() const { return ((1 << count) - 1) * plane[0].columns; }
};

/// A row of `sign_sums`.
struct SignSum {
  Planes planes;
  int* sums;

  KOKKOS_FUNCTION void operator()(int r) const {
    int positive = 0;
    for (int p = planes.count - 1; p >= 0; --p) {
      int count = 0;
      for (int w = 0; w < planes.plane[p].words; ++w) count += bit_count(planes.plane[p].row(r)[w]);
      positive = 2 * positive + count;
    }
    sums[r] = 2 * positive - planes.greatest_sum();
  }
};

/// sums(r) ← Σ_p 2^p · the sum of the signs of row r of plane p. \param sums (rows)
template <class Exec>
void sign_sums(const Exec& exec, const Planes& planes, int* sums) {
  Kokkos::parallel_for("OneBit::linalg::sign_sums", Kokkos::RangePolicy<Exec>(exec, 0, planes.plane[0].rows),
                       SignSum{planes, sums});
}

}  // namespace onebit::linalg
