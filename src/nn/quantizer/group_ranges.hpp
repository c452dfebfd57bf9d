#pragma once
/// \file group_ranges.hpp
/// The gradient that a quantised dense layer reads, G(i, j) = d_output(i, j) · gamma(j), and the least and the greatest
/// element of its groups: its rows or its columns.

#include "nn/column_reduction.hpp"

namespace onebit::nn {

/// What a group is: some consecutive rows of the gradient (a sample) or a column (a channel).
enum class GroupAxis { rows, columns };

/// Extents of a gradient, and of its groups of rows.
struct GradientExtents {
  int rows = 0, columns = 0;  ///< N, D
  int rows_per_group = 1;     ///< divides N; 1 for a row of its own
};

/// G (N, D). It is computed where it is read, and each element is rounded once.
template <class Exec, class Real>
struct ScaledGradient {
  MatrixRef<Exec, const Real> d_output;
  const Real* gamma;  ///< (D)

  KOKKOS_FORCEINLINE_FUNCTION int rows() const { return static_cast<int>(d_output.extent(0)); }
  KOKKOS_FORCEINLINE_FUNCTION int columns() const { return static_cast<int>(d_output.extent(1)); }
  KOKKOS_FORCEINLINE_FUNCTION Real operator()(int i, int j) const { return d_output(i, j) * gamma[j]; }
};

/// Least and greatest element of each row, column or group; both NaN where an element is NaN or infinite.
template <class Real>
struct GroupRanges {
  Real* low;
  Real* high;

  /// \param not_finite 0, or NaN
  KOKKOS_FORCEINLINE_FUNCTION void store(int group, Real least, Real greatest, Real not_finite) const {
    low[group] = least + not_finite;
    high[group] = greatest + not_finite;
  }
};

/// The terms of a column's range.
template <class Exec, class Real>
struct RangeTerms {
  using Value = Real;
  static constexpr int count = 3;
  ScaledGradient<Exec, Real> gradient;
  GroupRanges<Real> ranges;

  KOKKOS_FORCEINLINE_FUNCTION void init(Real (&v)[count]) const {
    v[0] = -lowest_number<Real>;
    v[1] = lowest_number<Real>;
    v[2] = 0;
  }
  KOKKOS_FORCEINLINE_FUNCTION void add(Real (&v)[count], int i, int j) const {
    const Real g = gradient(i, j);
    const Real of_element[count] = {g, g, g * Real(0)};
    join(v, of_element);
  }
  KOKKOS_FORCEINLINE_FUNCTION void join(Real (&v)[count], const Real (&other)[count]) const {
    v[0] = other[0] < v[0] ? other[0] : v[0];
    v[1] = v[1] < other[1] ? other[1] : v[1];
    v[2] += other[2];
  }
  KOKKOS_FORCEINLINE_FUNCTION void finish(const Real (&v)[count], int j) const { ranges.store(j, v[0], v[1], v[2]); }
};

template <class Exec, class Real>
void find_row_ranges(const Exec& exec, const ScaledGradient<Exec, Real>& gradient, const GroupRanges<Real>& ranges) {
  const int columns = gradient.columns();
  for_each_row(
      exec, "OneBit::nn::row_ranges", gradient.rows(), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int r) {
        const Real greatest = team.max(columns, [&](int j) { return gradient(r, j); });
        const Real negated_least = team.max(columns, [&](int j) { return -gradient(r, j); });
        const Real not_finite = team.sum(columns, [&](int j) { return gradient(r, j) * Real(0); });
        team.once([&] { ranges.store(r, -negated_least, greatest, not_finite); });
      });
}

/// The ranges of groups of some consecutive rows. A warp takes a group: on CUDA, Kokkos 3.4 has no barrier between two
/// maxima over a team of warps. \param groups how many
template <class Exec, class Real>
void join_row_ranges(const Exec& exec, const GroupRanges<const Real>& of_rows, int groups, int rows_per_group,
                     const GroupRanges<Real>& ranges) {
  for_each_row(
      exec, "OneBit::nn::join_row_ranges", groups, KOKKOS_LAMBDA(const RowTeam<Exec>& team, int group) {
        const Real* const low = of_rows.low + static_cast<std::size_t>(group) * rows_per_group;
        const Real* const high = of_rows.high + static_cast<std::size_t>(group) * rows_per_group;
        const Real greatest = team.max(rows_per_group, [&](int r) { return high[r]; });
        const Real negated_least = team.max(rows_per_group, [&](int r) { return -low[r]; });
        const Real not_finite = team.sum(rows_per_group, [&](int r) { return low[r] * Real(0); });
        team.once([&] { ranges.store(group, -negated_least, greatest, not_finite); });
      });
}

}  // namespace onebit::nn
