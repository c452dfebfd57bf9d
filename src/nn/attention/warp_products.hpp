#pragma once
/// \file warp_products.hpp
/// Products of matrices of 16 rows by one warp, of which attention on a device is made: by tensor cores with factors in
/// tf32, or by fused multiply-adds. On the host one thread is a warp of one lane.

#include <cstdint>

#include "base/device/warps.hpp"
#include "base/float_bits.hpp"
#include "base/kokkos.hpp"

namespace onebit::nn::flash {

inline constexpr int warp_rows = 16;
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

}  // namespace onebit::nn::flash
