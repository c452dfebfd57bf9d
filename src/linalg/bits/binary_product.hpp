#pragma once
/// \file binary_product.hpp
/// Products of matrices of signs, and of small integers whose bits are planes: exact sums in integers.
///
/// Bits of opposite signs differ, so a sum of K products of signs is K − 2 · the number of bits that differ. On the
/// host a work item has 32 rows of A and 64 columns of B (differences.hpp). On a GPU see gpu_binary_product.hpp.

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/device/parallel.hpp"
#include "base/error.hpp"
#include "linalg/bits/bits.hpp"
#include "linalg/bits/gpu_binary_product.hpp"
#include "linalg/bits/planes.hpp"
#include "linalg/differences.hpp"

namespace onebit::linalg {

/// sums(r) ← Σ of the signs of row r, in which bit 1 is +1 and bit 0 is −1. \param sums (rows)
template <class Exec>
void sign_sums(const Exec& exec, const BitMatrix<Exec>& matrix, const Vector<Exec, int>& sums) {
  sign_sums(exec, Planes(BitRows(matrix)), sums.data());
}

/// Words of the panels of B for the host's kernels.
inline std::size_t panel_words(int n, int words) {
  return static_cast<std::size_t>((n + tile_columns - 1) / tile_columns) * words * tile_columns;
}

/// panels (panels, words, 64) ← the rows of b, interleaved; 0 after the last one.
template <class Exec>
void interleave(const Exec& exec, const BitRows& b, std::uint32_t* panels) {
  constexpr int words_at_once = 16;  // a cache line
  const int ranges = (b.words + words_at_once - 1) / words_at_once;
  const int count = (b.rows + tile_columns - 1) / tile_columns * ranges;
  Kokkos::parallel_for("OneBit::linalg::interleave", Kokkos::RangePolicy<Exec>(exec, 0, count), [=](int item) {
    const int j = item / ranges * tile_columns, first = item % ranges * words_at_once;
    const int last = std::min(first + words_at_once, b.words);
    std::uint32_t* const panel = panels + static_cast<std::size_t>(item / ranges) * b.words * tile_columns;
    for (int c = 0; c < tile_columns; ++c)
      for (int w = first; w < last; ++w) panel[w * tile_columns + c] = j + c < b.rows ? b.row(j + c)[w] : 0u;
  });
}

/// Whether a store takes whole rows of a tile on the host: store.row(i, j, count, sums), and after them
/// store.finish_rows().
template <class Store, class = void>
inline constexpr bool stores_rows = false;
template <class Store>
inline constexpr bool stores_rows<Store, std::void_t<decltype(std::declval<const Store&>().row(0, 0, 0, nullptr))>> =
    true;

/// One work item of the host: up to 32 rows from i on, and up to 64 columns from j on.
template <class Store>
void multiply_block(AddDifferences add, const Planes& a, const std::uint32_t* panel, int i, int j, int n,
                    const Store& store, int height) {
  constexpr int words_of_block = 64;  // 16 KiB of the panel, so that it stays in the first cache
  constexpr int block_rows = 32;
  alignas(64) int sums[block_rows * tile_columns] = {};
  const int words = a.plane[0].words;
  for (int first = 0; first < words; first += words_of_block)
    for (int r = 0; r < height; r += tile_rows) {
      TileFactors factors;
      factors.planes = a.count;
      factors.words = std::min(words_of_block, words - first);
      factors.panel = panel + first * tile_columns;
      for (int p = 0; p < a.count; ++p)
        for (int k = 0; k < tile_rows; ++k)
          factors.rows[p][k] = a.plane[p].row(i + std::min(r + k, height - 1)) + first;
      add(factors, sums + r * tile_columns);
    }
  const int greatest = a.greatest_sum(), width = std::min(tile_columns, n - j);
  for (int r = 0; r < height; ++r) {
    int* const row = sums + r * tile_columns;
    for (int c = 0; c < tile_columns; ++c) row[c] = greatest - 2 * row[c];
    if constexpr (stores_rows<Store>) {
      store.row(i + r, j, width, row);
    } else {
      ONEBIT_IVDEP
      for (int c = 0; c < width; ++c) store(i + r, j + c, row[c]);
    }
  }
  if constexpr (stores_rows<Store>) store.finish_rows();
}

/// Calls store(i, j, sum) for all (i, j). \param panels of b
template <class Exec, class Store>
void multiply_on_host(const Exec& exec, Instructions instructions, const Planes& a, int n, const std::uint32_t* panels,
                      const Store& store) {
  constexpr int block_rows = 32;
  const AddDifferences add = add_differences(instructions);
  const int m = a.plane[0].rows, blocks = (m + block_rows - 1) / block_rows;
  const int across = (n + tile_columns - 1) / tile_columns, count = across * blocks;
  const std::size_t panel_size = static_cast<std::size_t>(a.plane[0].words) * tile_columns;
  // Neighbouring items share rows of C, which a processor then writes in order, if B stays in a core's cache; else they
  // share a panel.
  constexpr std::size_t words_of_cache = 128 * 1024;
  const bool by_rows = panel_size * across <= words_of_cache;
  Kokkos::parallel_for("OneBit::linalg::binary_product",
                       Kokkos::RangePolicy<Exec, Kokkos::Schedule<Kokkos::Dynamic>>(exec, 0, count), [=](int item) {
                         const int panel = by_rows ? item % across : item / blocks;
                         const int i = (by_rows ? item / across : item % blocks) * block_rows;
                         multiply_block(add, a, panels + panel * panel_size, i, panel * tile_columns, n, store,
                                        std::min(block_rows, m - i));
                       });
}

/// Binary products; owns their workspace.
template <class Exec>
class BinaryProduct {
public:
  /// \param instructions of the host, which must be available
  explicit BinaryProduct(Instructions instructions = best_instructions()) : m_instructions(instructions) {}

  /// Calls store(i, j, sum) once for each row i of A and row j of b, from any thread, where the int
  ///   sum = Σ_p 2^p Σ_l (2 a_p(i, l) − 1) (2 b(j, l) − 1).
  ///
  /// On the host, a store that has a member row(i, j, count, sums) gets the sums of `count` columns from j on, which is
  /// a multiple of 64. After some rows its finish_rows() is called on the same thread.
  ///
  /// \param a up to 8 planes (m, k) of A, the least significant one first; 2^planes · k is less than 2³¹
  /// \param b (n, k)
  template <class Store>
  void operator()(const Exec& exec, const std::vector<BitMatrix<Exec>>& a, const BitMatrix<Exec>& b,
                  const Store& store) {
    const Planes planes(a);
    const BitRows rows(b);
    if (rows.columns != planes.plane[0].columns)
      throw RunError("binary product", "the factors have rows of different lengths", "report it");
    if (planes.plane[0].rows == 0 || rows.rows == 0) return;
    if constexpr (is_host<Exec>) {
      std::uint32_t* const panels = workspace(panel_words(rows.rows, rows.words));
      interleave(exec, rows, panels);
      multiply_on_host(exec, m_instructions, planes, rows.rows, panels, store);
    } else {
      const std::size_t sums = static_cast<std::size_t>(planes.plane[0].rows) + rows.rows;
      multiply_on_gpu(exec, planes, rows, reinterpret_cast<int*>(workspace(sums)), store);
    }
  }

private:
  std::uint32_t* workspace(std::size_t length) {
    if (m_workspace.extent(0) < length)
      m_workspace = make_uninitialized<Exec, std::uint32_t>("OneBit::linalg::BinaryProduct::workspace", length);
    return m_workspace.data();
  }

  Instructions m_instructions;
  Vector<Exec, std::uint32_t> m_workspace;
};

}  // namespace onebit::linalg
