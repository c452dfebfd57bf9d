#pragma once
/// \file tiles.hpp
/// The tiles of a product on the host; one thread computes one tile.

#include <algorithm>
#include <limits>
#include <vector>

#include "base/kokkos.hpp"
#include "linalg/blas.hpp"
#include "linalg/gemm.hpp"

namespace onebit::linalg {

/// One tile: its first row and column of C, its first term, and how many of each.
struct Tile {
  int i, j, l;
  int height, width, depth;
};

/// The tiles of C (m, n), a sum of k terms. They depend on its shape alone, so results do not depend on the thread
/// count.
///
/// Of all sizes up to (512, 768) that give at least eight tiles, it takes the one with which four threads would finish
/// first; (64, 64) if there is none. A library packs the elements that it reads of A and B; each costs about as much as
/// 32 terms of the product in A, and 24 in B. Widths are multiples of 96, because oneDNN's AVX-512 kernel works on 48
/// columns.
///
/// A small C of very many terms, as the gradient at the head's input is, would give narrow tiles, and each would read
/// whole columns of B. There the terms are cut, too, into up to eight ranges, and each range has a C of its own.
class TileGrid {
public:
  TileGrid(int m, int n, int k) : m_rows(m), m_columns(n), m_terms(k) {
    constexpr int least_range = 2048, most_ranges = 8, largest_height = 512, largest_width = 768;
    const auto parts = [](int extent, int edge) { return (extent + edge - 1) / edge; };
    if (static_cast<double>(m) * n <= largest_height * largest_width)
      m_ranges = std::min(std::max(k / least_range, 1), most_ranges);
    double least = std::numeric_limits<double>::max();
    for (int height = largest_height; height >= 64; height -= 64)
      for (int width = largest_width; width >= 96; width -= 96) {
        const int tiles = parts(m, height) * parts(n, width) * m_ranges;
        const double h = std::min(height, m), w = std::min(width, n);
        const double time = parts(tiles, 4) * (h * w + 24 * w + 32 * h);
        if (tiles < 8 || time >= least) continue;
        least = time;
        m_height = height;
        m_width = width;
      }
    m_of_a_range = {parts(m, m_height), parts(n, m_width)};
    m_depth = m_ranges == 1 ? k : parts(k, 64 * m_ranges) * 64;
  }

  int ranges() const { return m_ranges; }
  int tiles() const { return m_ranges * m_of_a_range.rows * m_of_a_range.columns; }
  int range(int number) const { return number / (m_of_a_range.rows * m_of_a_range.columns); }
  Tile operator[](int number) const {
    const int i = number % m_of_a_range.rows * m_height;
    const int j = number / m_of_a_range.rows % m_of_a_range.columns * m_width, l = range(number) * m_depth;
    return {i, j, l, std::min(m_height, m_rows - i), std::min(m_width, m_columns - j), std::min(m_depth, m_terms - l)};
  }

private:
  struct Extents {
    int rows, columns;
  };
  int m_rows, m_columns, m_terms;
  int m_height = 64, m_width = 64, m_depth;
  int m_ranges = 1;
  Extents m_of_a_range;  ///< tiles of one range of terms
};

/// The tiles of a symmetric C (n, n) that touch its diagonal or lie below it. They are squares, four to a side of a
/// large C, so that little above the diagonal is computed.
class LowerTiles {
public:
  LowerTiles(int n, int k) : m_n(n), m_k(k), m_edge(std::clamp((n / 4 + 63) / 64 * 64, 64, 512)) {}

  int tiles() const { return side() * (side() + 1) / 2; }
  Tile operator[](int number) const {
    int row = 0;
    while ((row + 1) * (row + 2) / 2 <= number) ++row;
    const int i = row * m_edge, j = (number - row * (row + 1) / 2) * m_edge;
    return {i, j, 0, std::min(m_edge, m_n - i), std::min(m_edge, m_n - j), m_k};
  }

private:
  int side() const { return (m_n + m_edge - 1) / m_edge; }

  int m_n, m_k, m_edge;
};

/// op(A) from element (i, j) on.
template <class T>
Rows<T> part_from(Rows<T> a, Transpose op, std::size_t i, std::size_t j) {
  return {a.data + (op == Transpose::yes ? j * a.row_stride + i : i * a.row_stride + j), a.row_stride};
}

/// C (m, n) ← β C + Σ over ranges of `sums`, in their order. \param sums (ranges, m, n)
template <class Exec, class Real>
void add_ranges(const Exec& exec, int m, int n, int ranges, const Real* sums, Real beta, Rows<Real> c) {
  const std::size_t of_a_range = static_cast<std::size_t>(m) * n;
  Kokkos::parallel_for("OneBit::linalg::add_ranges", Kokkos::RangePolicy<Exec>(exec, 0, m), [=](int i) {
    Real* const row = c.data + i * c.row_stride;
    const Real* const first = sums + static_cast<std::size_t>(i) * n;
    for (int j = 0; j < n; ++j) row[j] = first[j] + (beta == Real(0) ? Real(0) : beta * row[j]);
    for (int range = 1; range < ranges; ++range)
      for (int j = 0; j < n; ++j) row[j] += first[range * of_a_range + j];
  });
}

/// C (m, n) ← β C + a product of k terms. `multiply(tile, β, C from the tile's first element on)` computes the terms
/// of a tile, on one thread.
template <class Exec, class Real, class Multiply>
void multiply_in_tiles(const Exec& exec, const char* label, int m, int n, int k, Real beta, Rows<Real> c,
                       const Multiply& multiply) {
  const SingleThreadedBlas single_threaded;
  const TileGrid tiles(m, n, k);
  const bool whole = tiles.ranges() == 1;
  static thread_local std::vector<Real> memory;
  const std::size_t of_a_range = static_cast<std::size_t>(m) * n;
  if (!whole) memory.resize(std::max(memory.size(), tiles.ranges() * of_a_range));
  Real* const sums = memory.data();
  Kokkos::parallel_for(
      label, Kokkos::RangePolicy<Exec, Kokkos::Schedule<Kokkos::Dynamic>>(exec, 0, tiles.tiles()), [=](int number) {
        const Tile tile = tiles[number];
        const Rows<Real> to = whole ? c : Rows<Real>{sums + tiles.range(number) * of_a_range, std::size_t(n)};
        multiply(tile, whole ? beta : Real(0), part_from(to, Transpose::no, tile.i, tile.j));
      });
  if (!whole) add_ranges(exec, m, n, tiles.ranges(), sums, beta, c);
}

/// Copies what a tile of C has below the diagonal to its place above it. It writes whole lines of a cache, one after
/// the other, because columns of a C whose rows are a multiple of 1024 bytes share few sets of it.
template <class Real>
void copy_to_upper(const Tile& tile, Rows<Real> c) {
  constexpr int line = 64 / sizeof(Real);
  for (int i_begin = tile.i; i_begin < tile.i + tile.height; i_begin += line) {
    const int i_end = std::min(i_begin + line, tile.i + tile.height);
    for (int j = tile.j; j < std::min(i_end, tile.j + tile.width); ++j)
      for (int i = std::max(i_begin, j + 1); i < i_end; ++i)
        c.data[j * c.row_stride + i] = c.data[i * c.row_stride + j];
  }
}

/// A symmetric C (n, n) ← a product of k terms, of which `multiply(tile, 0, C from the tile's first element on)`
/// computes a tile, on one thread. What is above the diagonal is copied.
template <class Exec, class Real, class Multiply>
void multiply_in_lower_tiles(const Exec& exec, const char* label, int n, int k, Rows<Real> c,
                             const Multiply& multiply) {
  const SingleThreadedBlas single_threaded;
  const LowerTiles tiles(n, k);
  Kokkos::parallel_for(label, Kokkos::RangePolicy<Exec, Kokkos::Schedule<Kokkos::Dynamic>>(exec, 0, tiles.tiles()),
                       [=](int number) {
                         const Tile tile = tiles[number];
                         multiply(tile, Real(0), part_from(c, Transpose::no, tile.i, tile.j));
                         copy_to_upper(tile, c);
                       });
}

}  // namespace onebit::linalg
