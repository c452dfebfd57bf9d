#pragma once
/// \file quantizer_error.hpp
/// The error that quantisation and pruning make in a gradient G.

#include "nn/quantizer/group_ranges.hpp"

namespace onebit::nn {

/// Sums of squares over all elements of a gradient.
struct QuantizerError {
  /// The mean of ‖Q − G‖² over the random numbers, exactly. With `topk` it contains the square of the bias; else it is
  /// the variance Σ_i [(1/p_i − 1) ‖g_i‖² + R_i² / (B² p_i) Σ_j f_ij (1 − f_ij)], f = frac(B (g − Z)/R).
  double exact = 0;
  /// Eq. 4 of the paper, D/(4 B²) Σ R_i² over the kept groups of D elements. Without pruning it bounds `exact`.
  double paper = 0;
  double norm_squared = 0;  ///< ‖G‖²
};

/// ‖g_i‖² and Σ_j f_ij (1 − f_ij) of each row or column i, in double.
template <class Exec, class Real>
struct ErrorTerms {
  using Value = double;
  static constexpr int count = 2;
  ScaledGradient<Exec, Real> gradient;
  GroupRanges<const Real> ranges;
  double levels;
  double* sums;  ///< (2, lines)
  int lines;     ///< rows or columns

  KOKKOS_FORCEINLINE_FUNCTION double square(int i, int j) const {
    const double g = gradient(i, j);
    return g * g;
  }
  KOKKOS_FORCEINLINE_FUNCTION double rounding(int i, int j, int group) const {
    const double low = ranges.low[group], range = static_cast<double>(ranges.high[group]) - low;
    const double u = range > 0 ? levels * ((static_cast<double>(gradient(i, j)) - low) / range) : 0;
    const double f = u - math::floor(u);
    return f * (1 - f);
  }
  KOKKOS_FORCEINLINE_FUNCTION void init(double (&v)[count]) const { v[0] = v[1] = 0; }
  KOKKOS_FORCEINLINE_FUNCTION void add(double (&v)[count], int i, int j) const {
    v[0] += square(i, j);
    v[1] += rounding(i, j, j);
  }
  KOKKOS_FORCEINLINE_FUNCTION void join(double (&v)[count], const double (&other)[count]) const {
    v[0] += other[0];
    v[1] += other[1];
  }
  KOKKOS_FORCEINLINE_FUNCTION void finish(const double (&v)[count], int line) const {
    sums[line] = v[0];
    sums[lines + line] = v[1];
  }
};

template <class Exec, class Real>
void find_row_errors(const Exec& exec, const ErrorTerms<Exec, Real>& terms, int rows_per_group) {
  const int columns = terms.gradient.columns();
  for_each_row(
      exec, "OneBit::nn::row_errors", terms.gradient.rows(), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int r) {
        const double squares = team.sum(columns, [&](int j) { return terms.square(r, j); });
        const int group = r / rows_per_group;
        const double rounding = team.sum(columns, [&](int j) { return terms.rounding(r, j, group); });
        team.once([&] {
          const double sums[2] = {squares, rounding};
          terms.finish(sums, r);
        });
      });
}

}  // namespace onebit::nn
