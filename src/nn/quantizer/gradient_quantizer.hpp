#pragma once
/// \file gradient_quantizer.hpp
/// The gradients of 1-bit fully quantised training (Gao et al., "1-Bit FQT: Pushing the Limit of Fully Quantized
/// Training to 1-bit", 2024): rows or columns of a gradient in b bits with stochastic rounding, after pruning to an
/// average of one bit for an element. docs/reference/algorithms/onebit_layers.md has the formulas.

#include <algorithm>
#include <optional>
#include <vector>

#include "base/choices.hpp"
#include "linalg/bits/bits.hpp"
#include "nn/quantizer/pruning.hpp"
#include "nn/quantizer/quantizer_error.hpp"
#include "nn/quantizer/stochastic_rounding.hpp"
#include "nn/rows.hpp"

namespace onebit::nn {

/// The K rows or columns that are kept, of E elements each: all those of a group, or none. With the signs s = 2 x − 1
/// of the bits x of plane p, S = Σ_p 2^p s_p = 2 q − B is an odd integer, and the dequantised element is scale · S +
/// offset.
template <class Exec, class Real>
struct QuantizedGradient {
  std::vector<linalg::BitMatrix<Exec>> planes;  ///< b of (K, E), least significant bit first
  Vector<Exec, int> line;                       ///< (K) indices of the rows or columns, ascending
  Vector<Exec, Real> scale;                     ///< (K) R / (2 B p); NaN for a group with NaN or infinity
  Vector<Exec, Real> offset;                    ///< (K) (Z + R/2) / p; NaN for a group with NaN or infinity
  int kept = 0;                                 ///< K
  int lines = 0;                                ///< all rows or columns
  int lines_per_group = 1;                      ///< rows; a column is a group of its own

  std::vector<int> kept_list;  ///< the kept groups, on the host; empty if all are kept

  int groups() const { return lines / lines_per_group; }
  int kept_groups() const { return kept / lines_per_group; }
  /// The kept rows or columns before the first one of a group.
  int kept_before(int first) const {
    if (kept == lines) return first;
    const auto after = std::lower_bound(kept_list.begin(), kept_list.end(), first / lines_per_group);
    return static_cast<int>(after - kept_list.begin()) * lines_per_group;
  }
};

/// Quantises groups of rows or the columns of G(i, j) = d_output(i, j) · gamma(j). Its memory is allocated once.
///
/// The rows of a group have one range, and each row has random numbers of its own.
/// Z = min g, R = max g − Z, B = 2^b − 1, q = min(B, ⌊B (g − Z)/R + U⌋). A group with a range so small that B/R
/// overflows has R = 0 and q = 0.
template <class Exec, class Real>
class GradientQuantizer {
public:
  GradientQuantizer() = default;
  /// \param gradients that it shall quantise, or larger ones; rows and columns are at most `largest_group`
  /// \param bits      b, 1 to 8
  /// \param pruning   none keeps all groups, and so does b = 1
  GradientQuantizer(GroupAxis axis, const std::vector<GradientExtents>& gradients, int bits,
                    std::optional<Pruning> pruning);

  /// The result is valid until the next call. With pruning, the call waits for the ranges of the groups.
  /// \param d_output       (N, D)
  /// \param gamma          (D), or empty for 1
  /// \param rows_per_group of a quantiser of rows; divides N
  const QuantizedGradient<Exec, Real>& operator()(const Exec& exec, MatrixRef<Exec, const Real> d_output,
                                                  VectorRef<Exec, const Real> gamma, const QuantizerKey& key,
                                                  int rows_per_group = 1);

  const QuantizedGradient<Exec, Real>& result() const { return m_result; }

  /// The error of the last call, whose arguments must still have the same values. It reads the gradient again and
  /// waits.
  QuantizerError error(const Exec& exec, MatrixRef<Exec, const Real> d_output, VectorRef<Exec, const Real> gamma);
  /// Of the groups of that call.
  const std::vector<GroupSize>& sizes() const { return m_sizes; }
  /// G.
  ScaledGradient<Exec, Real> scaled(MatrixRef<Exec, const Real> d_output, VectorRef<Exec, const Real> gamma) const;

private:
  template <class T>
  using Staging = Kokkos::View<T*, Kokkos::LayoutRight, StagingSpace<Exec>>;

  void set_extents(int lines, int elements, int lines_per_group);
  void find_ranges(const Exec& exec, const ScaledGradient<Exec, Real>& gradient);
  void read_sizes(const Exec& exec);
  void choose(const Exec& exec, const QuantizerKey& key);
  GroupRanges<Real> ranges() const { return {m_ranges.data(), m_ranges.data() + m_result.groups()}; }

  GroupAxis m_axis = GroupAxis::rows;
  int m_bits = 1;
  std::optional<Pruning> m_pruning;
  GroupChoice m_choice;
  std::vector<GroupSize> m_sizes;    ///< of the groups, on the host
  Vector<Exec, Real> m_ones;         ///< in the place of an empty gamma
  Vector<Exec, Real> m_ranges;       ///< (2, groups) least and greatest elements
  Vector<Exec, Real> m_row_ranges;   ///< (2, rows) of single rows; empty if groups are rows
  Vector<Exec, Real> m_partial;      ///< of columns, in blocks of rows
  Vector<Exec, Real> m_Z, m_factor;  ///< of the kept rows or columns
  Vector<Exec, Real> m_scale, m_offset;
  Vector<Exec, int> m_line;
  Vector<Exec, int> m_group;            ///< the kept groups
  Vector<Exec, double> m_probability;   ///< of the kept groups
  Vector<Exec, std::uint32_t> m_words;  ///< of all planes
  Staging<Real> m_host_ranges;
  Staging<int> m_host_group;
  Staging<double> m_host_probability;
  QuantizedGradient<Exec, Real> m_result;
};

}  // namespace onebit::nn
