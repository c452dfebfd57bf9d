/// \file gradient_quantizer.cpp
/// See gradient_quantizer.hpp. src/CMakeLists.txt compiles this file without fused multiply-adds.

#include "nn/quantizer/gradient_quantizer.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "nn/quantizer/group_codes.hpp"

namespace onebit::nn {
namespace {

/// Scales of the kept groups.
template <class Exec, class Real>
struct GroupScales {
  bool all;  ///< groups are kept: writes their indices, and p = 1
  Real levels;
  GroupRanges<const Real> ranges;
  const double* probability;
  int* group;
  Real *Z, *factor, *scale, *offset;

  KOKKOS_FUNCTION void operator()(int k) const {
    if (all) group[k] = k;
    const double p = all ? 1 : probability[k];
    const Real low = ranges.low[group[k]];
    Real range = ranges.high[group[k]] - low;
    const Real quotient = levels / range;
    const bool is_number = range - range == 0, has_range = is_number && quotient - quotient == 0;
    if (is_number && !has_range) range = 0;
    Z[k] = low;
    factor[k] = has_range ? quotient : Real(0);
    scale[k] = is_number ? static_cast<Real>(range / (2 * levels * p)) : range - range;
    offset[k] = is_number ? static_cast<Real>((low + range * 0.5) / p) : range - range;
  }
};

// Groups, and elements of a group, of a gradient.
int groups_of(GroupAxis axis, int rows, int columns) { return axis == GroupAxis::rows ? rows : columns; }
int elements_of(GroupAxis axis, int rows, int columns) { return axis == GroupAxis::rows ? columns : rows; }

}  // namespace

template <class Exec, class Real>
GradientQuantizer<Exec, Real>::GradientQuantizer(GroupAxis axis, int rows, int columns, int bits,
                                                 std::optional<Pruning> pruning)
    : m_axis(axis), m_bits(bits), m_pruning(bits > 1 ? pruning : std::nullopt) {
  const int groups = groups_of(axis, rows, columns), elements = elements_of(axis, rows, columns);
  if (m_pruning) m_choice = GroupChoice(groups, bits, *m_pruning);
  m_sizes.reserve(groups);
  const auto reals = [](std::size_t length) {
    return make_uninitialized<Exec, Real>("OneBit::nn::gradient_quantizer", length);
  };
  m_ones = reals(columns);
  Kokkos::deep_copy(m_ones, Real(1));
  m_ranges = reals(2 * std::size_t(groups));
  if (axis == GroupAxis::columns)
    m_partial = reals(RangeTerms<Exec, Real>::count * std::size_t(reduction_blocks(rows)) * columns);
  m_Z = reals(groups);
  m_factor = reals(groups);
  m_scale = reals(groups);
  m_offset = reals(groups);
  m_group = make_uninitialized<Exec, int>("OneBit::nn::kept_groups", groups);
  m_words = make_uninitialized<Exec, std::uint32_t>("OneBit::nn::gradient_planes",
                                                    std::size_t(bits) * groups * linalg::words_of(elements));
  const auto staged = [](const std::string& label) { return Kokkos::view_alloc(label, Kokkos::WithoutInitializing); };
  m_host_ranges = Staging<Real>(staged("OneBit::nn::host_ranges"), 2 * std::size_t(groups));
  if (m_pruning) {
    m_probability = make_uninitialized<Exec, double>("OneBit::nn::kept_probabilities", groups);
    m_host_group = Staging<int>(staged("OneBit::nn::host_groups"), groups);
    m_host_probability = Staging<double>(staged("OneBit::nn::host_probabilities"), groups);
  }
  m_result.planes.resize(bits);
}

template <class Exec, class Real>
ScaledGradient<Exec, Real> GradientQuantizer<Exec, Real>::scaled(MatrixRef<Exec, const Real> d_output,
                                                                 VectorRef<Exec, const Real> gamma) const {
  return {d_output, gamma.extent(0) > 0 ? gamma.data() : m_ones.data()};
}

template <class Exec, class Real>
void GradientQuantizer<Exec, Real>::set_extents(int groups, int elements) {
  m_result.groups = groups;
  const int words = linalg::words_of(elements);
  for (int p = 0; p < m_bits; ++p) {
    linalg::BitMatrix<Exec>& plane = m_result.planes[p];
    plane.columns = elements;
    plane.words = Matrix<Exec, std::uint32_t>(m_words.data() + std::size_t(p) * groups * words, groups, words);
  }
}

template <class Exec, class Real>
void GradientQuantizer<Exec, Real>::read_sizes(const Exec& exec) {
  const int groups = m_result.groups;
  const auto part = std::make_pair(std::size_t(0), 2 * std::size_t(groups));
  Kokkos::deep_copy(exec, Kokkos::subview(m_host_ranges, part), Kokkos::subview(m_ranges, part));
  fence(exec, "OneBit::nn::group_ranges");
  const Real levels = static_cast<Real>((1 << m_bits) - 1);
  m_sizes.resize(groups);
  for (int i = 0; i < groups; ++i) {
    const Real low = m_host_ranges(i), high = m_host_ranges(groups + i), range = high - low;
    m_sizes[i].range = !std::isfinite(range) ? NAN : std::isfinite(levels / range) ? range : 0;
    // Without a range the group stands for Z.
    m_sizes[i].largest = m_sizes[i].range == 0 ? std::abs(low) : std::max(std::abs(low), std::abs(high));
  }
}

template <class Exec, class Real>
void GradientQuantizer<Exec, Real>::choose(const Exec& exec, const QuantizerKey& key) {
  m_result.kept = m_result.groups;
  if (m_pruning) {
    const auto product = m_axis == GroupAxis::rows ? GradientProduct::input : GradientProduct::weight;
    read_sizes(exec);
    m_choice(m_sizes, GradientDraws(key, product, Stream::gradient_pruning));
    m_result.kept = static_cast<int>(m_choice.kept().size());
  }
  const auto kept = std::make_pair(std::size_t(0), std::size_t(m_result.kept));
  m_result.group = Kokkos::subview(m_group, kept);
  m_result.scale = Kokkos::subview(m_scale, kept);
  m_result.offset = Kokkos::subview(m_offset, kept);
  for (linalg::BitMatrix<Exec>& plane : m_result.planes) plane.rows = m_result.kept;
  if (!m_pruning || m_result.kept == 0) return;
  for (int k = 0; k < m_result.kept; ++k) {
    m_host_group(k) = m_choice.kept()[k];
    m_host_probability(k) = m_choice.probabilities()[m_choice.kept()[k]];
  }
  Kokkos::deep_copy(exec, m_result.group, Kokkos::subview(m_host_group, kept));
  Kokkos::deep_copy(exec, Kokkos::subview(m_probability, kept), Kokkos::subview(m_host_probability, kept));
}

template <class Exec, class Real>
const QuantizedGradient<Exec, Real>& GradientQuantizer<Exec, Real>::operator()(const Exec& exec,
                                                                               MatrixRef<Exec, const Real> d_output,
                                                                               VectorRef<Exec, const Real> gamma,
                                                                               const QuantizerKey& key) {
  const Region region("OneBit::nn::quantize_gradient");
  const ScaledGradient<Exec, Real> gradient = scaled(d_output, gamma);
  const int groups = groups_of(m_axis, gradient.rows(), gradient.columns());
  const int elements = elements_of(m_axis, gradient.rows(), gradient.columns());
  set_extents(groups, elements);
  const GroupRanges<Real> ranges{m_ranges.data(), m_ranges.data() + groups};
  if (m_axis == GroupAxis::rows)
    find_row_ranges(exec, gradient, ranges);
  else
    reduce_columns(exec, "OneBit::nn::column_ranges", gradient.rows(), gradient.columns(),
                   RangeTerms<Exec, Real>{gradient, ranges}, m_partial);
  choose(exec, key);
  if (m_result.kept == 0) return m_result;

  const Real levels = static_cast<Real>((1 << m_bits) - 1);
  Kokkos::parallel_for("OneBit::nn::group_scales", Kokkos::RangePolicy<Exec>(exec, 0, m_result.kept),
                       GroupScales<Exec, Real>{!m_pruning,
                                               levels,
                                               {ranges.low, ranges.high},
                                               m_probability.data(),
                                               m_group.data(),
                                               m_Z.data(),
                                               m_factor.data(),
                                               m_scale.data(),
                                               m_offset.data()});
  const auto product = m_axis == GroupAxis::rows ? GradientProduct::input : GradientProduct::weight;
  GroupCodes<Exec, Real> pass{gradient,   m_group.data(),
                              m_Z.data(), m_factor.data(),
                              {},         GradientDraws(key, product, Stream::gradient_rounding),
                              m_bits,     m_result.kept,
                              elements,   linalg::words_of(elements)};
  for (int p = 0; p < m_bits; ++p) pass.planes[p] = m_result.planes[p].words.data();
  pack_codes(exec, m_axis, pass);
  return m_result;
}

template <class Exec, class Real>
QuantizerError GradientQuantizer<Exec, Real>::error(const Exec& exec, MatrixRef<Exec, const Real> d_output,
                                                    VectorRef<Exec, const Real> gamma) {
  const Region region("OneBit::nn::quantizer_error", true);
  const ScaledGradient<Exec, Real> gradient = scaled(d_output, gamma);
  const int groups = m_result.groups, elements = elements_of(m_axis, gradient.rows(), gradient.columns());
  const double levels = (1 << m_bits) - 1;
  if (!m_pruning) read_sizes(exec);
  const auto sums = make_uninitialized<Exec, double>("OneBit::nn::error_sums", 2 * std::size_t(groups));
  const ErrorTerms<Exec, Real> terms{
      gradient, {m_ranges.data(), m_ranges.data() + groups}, levels, sums.data(), groups};
  if (m_axis == GroupAxis::rows)
    find_row_errors(exec, terms);
  else
    reduce_columns(exec, "OneBit::nn::column_errors", gradient.rows(), groups, terms,
                   make_uninitialized<Exec, double>("OneBit::nn::error_partial_sums",
                                                    2 * std::size_t(reduction_blocks(gradient.rows())) * groups));
  const auto host_sums = Kokkos::create_mirror_view(sums);
  Kokkos::deep_copy(exec, host_sums, sums);
  fence(exec, "OneBit::nn::error_sums");

  std::vector<bool> kept(groups, !m_pruning);
  if (m_pruning)
    for (const int i : m_choice.kept()) kept[i] = true;
  QuantizerError error;
  for (int i = 0; i < groups; ++i) {
    const double p = m_pruning ? m_choice.probabilities()[i] : 1, square = host_sums(i),
                 rounding = host_sums(groups + i);
    const double step_squared = m_sizes[i].range * m_sizes[i].range / (levels * levels);
    error.norm_squared += square;
    // A group with p = 0 is lost, and its error is the group itself.
    error.exact += p > 0 ? (1 / p - 1) * square + step_squared / p * rounding : square;
    if (kept[i]) error.paper += elements / 4.0 * step_squared;
  }
  return error;
}

#define ONEBIT_INSTANTIATE(Exec)                 \
  template class GradientQuantizer<Exec, float>; \
  template class GradientQuantizer<Exec, double>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::nn
