#pragma once
/// \file tiles.hpp
/// The tiles of a product on the host; one thread computes one tile.

#include <algorithm>
#include <limits>

#include "base/kokkos.hpp"
#include "linalg/blas.hpp"
#include "linalg/gemm.hpp"

namespace onebit::linalg {

/// The tiles of C (m, n). They depend on its shape alone, so results do not depend on the thread count.
///
/// Of all sizes up to (512, 768) that give at least eight tiles, it takes the one with which four threads would finish
/// first; (64, 64) if there is none. A library packs the elements that it reads of A and B; each costs about as much as
/// 32 terms of the product in A, and 24 in B. Widths are multiples of 96, because oneDNN's AVX-512 kernel works on 48
/// columns.
struct TileGrid {
  int row_edge = 64, column_edge = 64;
  int rows, columns;  ///< of the grid

  TileGrid(int m, int n) : m_rows(m), m_columns(n) {
    const auto count = [](int extent, int edge) { return (extent + edge - 1) / edge; };
    double least = std::numeric_limits<double>::max();
    for (int height = 512; height >= 64; height -= 64)
      for (int width = 768; width >= 96; width -= 96) {
        const int tiles = count(m, height) * count(n, width);
        const double h = std::min(height, m), w = std::min(width, n);
        const double time = count(tiles, 4) * (h * w + 24 * w + 32 * h);
        if (tiles < 8 || time >= least) continue;
        least = time;
        row_edge = height;
        column_edge = width;
      }
    rows = count(m, row_edge);
    columns = count(n, column_edge);
  }
  int height(int row) const { return row + 1 < rows ? row_edge : m_rows - row * row_edge; }
  int width(int column) const { return column + 1 < columns ? column_edge : m_columns - column * column_edge; }

private:
  int m_rows, m_columns;
};

/// The rows of op(A) from i on, and the columns of op(B) from j on.
template <class T>
Rows<T> row_tile(Rows<T> a, Transpose op, std::size_t i) {
  return {a.data + (op == Transpose::yes ? i : i * a.row_stride), a.row_stride};
}
template <class T>
Rows<T> column_tile(Rows<T> b, Transpose op, std::size_t j) {
  return {b.data + (op == Transpose::yes ? j * b.row_stride : j), b.row_stride};
}

/// f(i, j, height, width) for the tiles of C (m, n).
template <class Exec, class F>
void for_each_tile(const Exec& exec, const char* label, int m, int n, const F& f) {
  const SingleThreadedBlas single_threaded;
  const TileGrid tiles(m, n);
  Kokkos::parallel_for(
      label, Kokkos::RangePolicy<Exec, Kokkos::Schedule<Kokkos::Dynamic>>(exec, 0, tiles.rows * tiles.columns),
      [=](int tile) {
        const int row = tile % tiles.rows, column = tile / tiles.rows;
        f(row * tiles.row_edge, column * tiles.column_edge, tiles.height(row), tiles.width(column));
      });
}

}  // namespace onebit::linalg
