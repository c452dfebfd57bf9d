#pragma once
/// \file gpu_binary_product.hpp
/// Binary products on a GPU. Tensor cores of NVIDIA's sm_80 and later count the bits that two rows share (a and b); the
/// exclusive or is gone on sm_90. Other GPUs count in plain Kokkos.
///
/// With s_a and s_b the sums of the signs of two rows of K bits, 4 · the number of shared bits − s_a − s_b − K is the
/// sum of the products of their signs.

#include <cstdint>

#include "base/device/parallel.hpp"
#include "base/device/warps.hpp"
#include "linalg/bits/planes.hpp"

namespace onebit::linalg {

/// Which words and sums a lane holds of C (16, 8) += A (16, 256 bits) · Bᵀ (8, 256 bits) (PTX ISA, "Matrix Fragments
/// for mma.m16n8k256"). Register e has 32 bits of a row, whose words are counted from 0 to 7.
struct BitFragment {
  static constexpr int rows = 16, columns = 8, words = 8;
  static constexpr int a_registers = 4, b_registers = 2, sums = 4;

  KOKKOS_FORCEINLINE_FUNCTION static constexpr int a_row(int lane, int e) { return lane / 4 + e % 2 * 8; }
  KOKKOS_FORCEINLINE_FUNCTION static constexpr int a_word(int lane, int e) { return lane % 4 + e / 2 * 4; }
  KOKKOS_FORCEINLINE_FUNCTION static constexpr int b_column(int lane) { return lane / 4; }
  KOKKOS_FORCEINLINE_FUNCTION static constexpr int b_word(int lane, int e) { return lane % 4 + e * 4; }
  KOKKOS_FORCEINLINE_FUNCTION static constexpr int row(int lane, int e) { return lane / 4 + e / 2 * 8; }
  KOKKOS_FORCEINLINE_FUNCTION static constexpr int column(int lane, int e) { return lane % 4 * 2 + e % 2; }
};

/// c += the bits that the rows of a and b share, by a tensor core of sm_80 or later; nothing on other processors.
struct TensorCore {
  KOKKOS_FORCEINLINE_FUNCTION void operator()([[maybe_unused]] int (&c)[4],
                                              [[maybe_unused]] const std::uint32_t (&a)[4],
                                              [[maybe_unused]] const std::uint32_t (&b)[2]) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#elif defined(ONEBIT_SIMT)
    simt::bit_product(c, a, b);
#endif
  }
};

/// The tiles of C, (32, 32) for a warp, by what adds shared bits: a tensor core, or a test's copy of one.
template <class Store, class MultiplyAdd = TensorCore>
struct WarpTiles {
  using Fragment = BitFragment;
  static constexpr int side = 32, row_parts = side / Fragment::rows, column_parts = side / Fragment::columns;
  /// A lane's sums of a tile.
  using Sums = int[row_parts][column_parts][Fragment::sums];

  Planes a;
  BitRows b;
  const int* a_sums;  ///< of the signs of the rows of A, with the weights of their planes
  const int* b_sums;  ///< of the signs of the rows of b
  Store store;
  MultiplyAdd add{};

  KOKKOS_FUNCTION static int tiles(int extent) { return (extent + side - 1) / side; }
  std::size_t count() const { return static_cast<std::size_t>(tiles(a.plane[0].rows)) * tiles(b.rows); }

  KOKKOS_FORCEINLINE_FUNCTION void operator()(std::size_t tile, std::size_t lane_of_warp) const {
    const int across = tiles(b.rows), lane = static_cast<int>(lane_of_warp);
    const int i = static_cast<int>(tile / across) * side, j = static_cast<int>(tile % across) * side;
    Sums shared = {};
    for (int p = a.count - 1; p >= 0; --p) {
      for_each_sum([&](int r, int c, int e) { shared[r][c][e] *= 2; });
      add_shared(a.plane[p], i, j, lane, shared);
    }
    const int weights = (1 << a.count) - 1;
    for_each_sum([&](int r, int c, int e) {
      const int row = i + r * Fragment::rows + Fragment::row(lane, e);
      const int column = j + c * Fragment::columns + Fragment::column(lane, e);
      if (row < a.plane[0].rows && column < b.rows)
        store(row, column, 4 * shared[r][c][e] - a_sums[row] - weights * (b_sums[column] + b.columns));
    });
  }

private:
  template <class F>
  KOKKOS_FORCEINLINE_FUNCTION static void for_each_sum(const F& f) {
    ONEBIT_UNROLL
    for (int r = 0; r < row_parts; ++r) {
      ONEBIT_UNROLL
      for (int c = 0; c < column_parts; ++c) {
        ONEBIT_UNROLL
        for (int e = 0; e < Fragment::sums; ++e) f(r, c, e);
      }
    }
  }
  /// Word w of row r; 0 outside of the matrix.
  KOKKOS_FORCEINLINE_FUNCTION static std::uint32_t word(const BitRows& matrix, int r, int w) {
    return r < matrix.rows && w < matrix.words ? matrix.row(r)[w] : 0u;
  }
  /// shared += the bits that rows of a plane and of b share.
  KOKKOS_FORCEINLINE_FUNCTION void add_shared(const BitRows& plane, int i, int j, int lane, Sums& shared) const {
    for (int first = 0; first < plane.words; first += Fragment::words) {
      std::uint32_t left[row_parts][Fragment::a_registers], right[column_parts][Fragment::b_registers];
      ONEBIT_UNROLL
      for (int r = 0; r < row_parts; ++r) {
        ONEBIT_UNROLL
        for (int e = 0; e < Fragment::a_registers; ++e)
          left[r][e] =
              word(plane, i + r * Fragment::rows + Fragment::a_row(lane, e), first + Fragment::a_word(lane, e));
      }
      ONEBIT_UNROLL
      for (int c = 0; c < column_parts; ++c) {
        ONEBIT_UNROLL
        for (int e = 0; e < Fragment::b_registers; ++e)
          right[c][e] =
              word(b, j + c * Fragment::columns + Fragment::b_column(lane), first + Fragment::b_word(lane, e));
      }
      ONEBIT_UNROLL
      for (int r = 0; r < row_parts; ++r) {
        ONEBIT_UNROLL
        for (int c = 0; c < column_parts; ++c) add(shared[r][c], left[r], right[c]);
      }
    }
  }
};

/// The same in plain Kokkos. It runs on every backend, so its tests need no GPU.
template <class Exec, class Store>
void multiply_plainly(const Exec& exec, const Planes& a, const BitRows& b, const Store& store) {
  const std::size_t n = b.rows;
  for_each(
      exec, "OneBit::linalg::binary_product", a.plane[0].rows * n, KOKKOS_LAMBDA(std::size_t index) {
        const int i = static_cast<int>(index / n), j = static_cast<int>(index % n);
        int differences = 0;
        for (int p = a.count - 1; p >= 0; --p) {
          int count = 0;
          for (int w = 0; w < b.words; ++w) count += bit_count(a.plane[p].row(i)[w] ^ b.row(j)[w]);
          differences = 2 * differences + count;
        }
        store(i, j, a.greatest_sum() - 2 * differences);
      });
}

// GPUs before sm_80 have no such tensor cores. Code that is compiled for them may run on later ones.
#if defined(ONEBIT_SIMT) ||                                                                          \
    (defined(KOKKOS_ENABLE_CUDA) && !defined(KOKKOS_ARCH_KEPLER) && !defined(KOKKOS_ARCH_MAXWELL) && \
     !defined(KOKKOS_ARCH_PASCAL) && !defined(KOKKOS_ARCH_VOLTA) && !defined(KOKKOS_ARCH_TURING75))
inline constexpr bool has_binary_tensor_cores = true;
#else
inline constexpr bool has_binary_tensor_cores = false;
#endif

/// \param workspace (m + n)
template <class Exec, class Store>
void multiply_on_gpu(const Exec& exec, const Planes& a, const BitRows& b, int* workspace, const Store& store) {
  // From sm_100 on (Blackwell), the compiler translates this instruction to eight others of 8-bit integers.
  constexpr int emulating = 10;
  if constexpr (has_binary_tensor_cores) {
    if (properties_of(exec).major >= emulating) return multiply_plainly(exec, a, b, store);
    int* const b_sums = workspace + a.plane[0].rows;
    sign_sums(exec, a, workspace);
    sign_sums(exec, Planes(b), b_sums);
    const WarpTiles<Store> tiles{a, b, workspace, b_sums, store};
    for_each_block(exec, "OneBit::linalg::binary_product", tiles.count(), tiles);
  } else {
    (void)workspace;
    multiply_plainly(exec, a, b, store);
  }
}

}  // namespace onebit::linalg
