#pragma once
/// \file tiled_product.hpp
/// A product in plain Kokkos, for GPUs without a vendor's library. It runs on every backend, so its tests need no GPU.

#include <cstdint>

#include "base/kokkos.hpp"
#include "base/sixteen_bits.hpp"
#include "linalg/gemm.hpp"

namespace onebit::linalg {

/// C (m, n) ← α op(A) (m, k) · op(B) (k, n) + β C, for `count` of each. A team computes a square tile of C, and each of
/// its threads 4 × 4 elements of it, from tiles of A and B in scratch memory. An element of C has one owner, which adds
/// its terms in their order.
template <class Exec, class Real, class Term>
struct TiledProduct {
  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  static constexpr int edge = is_host<Exec> ? 1 : 16;  ///< threads of a row or a column of the tile
  static constexpr int own = 4, side = own * edge, depth = 16;
  /// Reals between the rows of a tile in scratch memory; one more lets the threads that fill it write different banks.
  static constexpr int stride = side + 1;

  Transpose op_a, op_b;
  int m, n, k;
  Real alpha, beta;
  Stack<const Term> a, b;
  Stack<Real> c;
  int count = 1;

  /// Tiles of a side of C.
  KOKKOS_FUNCTION static int tiles(int extent) { return (extent + side - 1) / side; }

  void run(const Exec& exec) const {
    Kokkos::parallel_for("OneBit::linalg::tiled_product",
                         Kokkos::TeamPolicy<Exec>(exec, count * tiles(m) * tiles(n), edge * edge)
                             .set_scratch_size(0, Kokkos::PerTeam(static_cast<int>(2 * depth * stride * sizeof(Real)))),
                         *this);
  }

  KOKKOS_FUNCTION void operator()(const Member& member) const {
    const int tile = member.league_rank() % (tiles(m) * tiles(n)),
              number = member.league_rank() / (tiles(m) * tiles(n));
    const int i = tile / tiles(n) * side, j = tile % tiles(n) * side;
    const int row = member.team_rank() / edge, column = member.team_rank() % edge;
    Real* const left = static_cast<Real*>(member.team_scratch(0).get_shmem(depth * stride * sizeof(Real)));
    Real* const right = static_cast<Real*>(member.team_scratch(0).get_shmem(depth * stride * sizeof(Real)));
    Real sums[own][own] = {};
    for (int begin = 0; begin < k; begin += depth) {
      member.team_barrier();
      load(member, one(a, number), op_a == Transpose::yes, begin, i, m, left);
      load(member, one(b, number), op_b == Transpose::no, begin, j, n, right);
      member.team_barrier();
      for (int l = 0; l < depth; ++l) {
        ONEBIT_UNROLL
        for (int r = 0; r < own; ++r) {
          ONEBIT_UNROLL
          for (int s = 0; s < own; ++s)
            sums[r][s] += left[l * stride + row + r * edge] * right[l * stride + column + s * edge];
        }
      }
    }
    ONEBIT_UNROLL
    for (int r = 0; r < own; ++r) {
      ONEBIT_UNROLL
      for (int s = 0; s < own; ++s) store(one(c, number), i + row + r * edge, j + column + s * edge, sums[r][s]);
    }
  }

private:
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION static Rows<T> one(Stack<T> stack, int number) {
    return {stack.first.data + number * stack.step, stack.first.row_stride};
  }
  /// tile(l, i) ← term begin + l of row or column first + i of a factor; 0 outside of it. Neighbouring threads read
  /// neighbouring elements. \param terms_are_rows whether a row of the factor has the same term of all
  KOKKOS_FORCEINLINE_FUNCTION void load(const Member& member, Rows<const Term> factor, bool terms_are_rows, int begin,
                                        int first, int count, Real* tile) const {
    Kokkos::parallel_for(Kokkos::TeamThreadRange(member, depth * side), [&](int index) {
      const int l = terms_are_rows ? index / side : index % depth;
      const int i = terms_are_rows ? index % side : index / depth;
      const std::size_t term = begin + l, place = first + i;
      Real value = 0;
      if (begin + l < k && first + i < count)
        value = real(factor.data[terms_are_rows ? term * factor.row_stride + place : place * factor.row_stride + term]);
      tile[l * stride + i] = value;
    });
  }
  KOKKOS_FORCEINLINE_FUNCTION void store(Rows<Real> result, int i, int j, Real sum) const {
    if (i >= m || j >= n) return;
    Real& element = result.data[i * result.row_stride + j];
    element = alpha * sum + (beta == Real(0) ? Real(0) : beta * element);
  }

  KOKKOS_FORCEINLINE_FUNCTION static Real real(Real value) { return value; }
  KOKKOS_FORCEINLINE_FUNCTION static Real real(std::uint16_t value) { return Bfloat16::widened(value); }
};

}  // namespace onebit::linalg
