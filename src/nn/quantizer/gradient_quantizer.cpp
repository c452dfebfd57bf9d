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

/// Scales of the kept rows or columns.
template <class Exec, class Real>
struct GroupScales {
  bool all;  ///< groups are kept, with p = 1
  int lines_per_group;
  Real levels;
  GroupRanges<const Real> ranges;
  const int* group;           ///< the kept ones
  const double* probability;  ///< of the kept groups
  int* line;
  Real *Z, *factor, *scale, *offset;

  KOKKOS_FUNCTION void operator()(int k) const {
    const int place = k / lines_per_group, number = all ? place : group[place];
    line[k] = number * lines_per_group + k % lines_per_group;
    const double p = all ? 1 : probability[place];
    const Real low = ranges.low[number];
    Real range = ranges.high[number] - low;
    const Real quotient = levels / range;
    const bool is_number = range - range == 0, has_range = is_number && quotient - quotient == 0;
    if (is_number && !has_range) range = 0;
    Z[k] = low;
    factor[k] = has_range ? quotient : Real(0);
    scale[k] = is_number ? static_cast<Real>(range / (2 * levels * p)) : range - range;
    offset[k] = is_number ? static_cast<Real>((low + range * 0.5) / p) : range - range;
  }
};

// Rows or columns of a gradient, and their elements.
int lines_of(GroupAxis axis, int rows, int columns) { return axis == GroupAxis::rows ? rows : columns; }
int elements_of(GroupAxis axis, int rows, int columns) { return axis == GroupAxis::rows ? columns : rows; }

/// Lengths of a quantiser's memory: the greatest of some gradients.
struct QuantizerMemory {
  std::size_t columns = 0, groups = 0, lines = 0;
  std::size_t rows_joined = 0;  ///< rows of gradients whose groups have several
  std::size_t words = 0;        ///< of a plane
  std::size_t partial = 0;      ///< blocks of rows, times columns

  QuantizerMemory(GroupAxis axis, const std::vector<GradientExtents>& gradients) {
    const auto raise = [](std::size_t& length, std::size_t needed) { length = std::max(length, needed); };
    for (const GradientExtents& of : gradients) {
      const std::size_t of_gradient = lines_of(axis, of.rows, of.columns);
      raise(columns, of.columns);
      raise(lines, of_gradient);
      raise(groups, of_gradient / (axis == GroupAxis::rows ? of.rows_per_group : 1));
      raise(words, of_gradient * linalg::words_of(elements_of(axis, of.rows, of.columns)));
      if (axis == GroupAxis::columns) raise(partial, std::size_t(reduction_blocks(of.rows)) * of.columns);
      if (axis == GroupAxis::rows && of.rows_per_group > 1) raise(rows_joined, of.rows);
    }
  }
};

}  // namespace

template <class Exec, class Real>
GradientQuantizer<Exec, Real>::GradientQuantizer(GroupAxis axis, const std::vector<GradientExtents>& gradients,
                                                 int bits, std::optional<Pruning> pruning)
    : m_axis(axis), m_bits(bits), m_pruning(bits > 1 ? pruning : std::nullopt) {
  const QuantizerMemory lengths(axis, gradients);
  if (m_pruning) m_choice = GroupChoice(static_cast<int>(lengths.groups), bits, *m_pruning);
  m_sizes.reserve(lengths.groups);
  const auto reals = [](std::size_t length) {
    return make_uninitialized<Exec, Real>("OneBit::nn::gradient_quantizer", length);
  };
  m_ones = reals(lengths.columns);
  Kokkos::deep_copy(m_ones, Real(1));
  m_ranges = reals(2 * lengths.groups);
  m_row_ranges = reals(2 * lengths.rows_joined);
  m_partial = reals(RangeTerms<Exec, Real>::count * lengths.partial);
  m_Z = reals(lengths.lines);
  m_factor = reals(lengths.lines);
  m_scale = reals(lengths.lines);
  m_offset = reals(lengths.lines);
  m_line = make_uninitialized<Exec, int>("OneBit::nn::kept_lines", lengths.lines);
  m_words = make_uninitialized<Exec, std::uint32_t>("OneBit::nn::gradient_planes", bits * lengths.words);
  const auto staged = [](const std::string& label) { return Kokkos::view_alloc(label, Kokkos::WithoutInitializing); };
  m_host_ranges = Staging<Real>(staged("OneBit::nn::host_ranges"), 2 * lengths.groups);
  if (m_pruning) {
    m_group = make_uninitialized<Exec, int>("OneBit::nn::kept_groups", lengths.groups);
    m_probability = make_uninitialized<Exec, double>("OneBit::nn::kept_probabilities", lengths.groups);
    m_host_group = Staging<int>(staged("OneBit::nn::host_groups"), lengths.groups);
    m_host_probability = Staging<double>(staged("OneBit::nn::host_probabilities"), lengths.groups);
  }
  m_result.planes.resize(bits);
}

template <class Exec, class Real>
ScaledGradient<Exec, Real> GradientQuantizer<Exec, Real>::scaled(MatrixRef<Exec, const Real> d_output,
                                                                 VectorRef<Exec, const Real> gamma) const {
  return {d_output, gamma.extent(0) > 0 ? gamma.data() : m_ones.data()};
}

template <class Exec, class Real>
void GradientQuantizer<Exec, Real>::set_extents(int lines, int elements, int lines_per_group) {
  m_result.lines = lines;
  m_result.lines_per_group = lines_per_group;
  const int words = linalg::words_of(elements);
  for (int p = 0; p < m_bits; ++p) {
    linalg::BitMatrix<Exec>& plane = m_result.planes[p];
    plane.columns = elements;
    plane.words = Matrix<Exec, std::uint32_t>(m_words.data() + std::size_t(p) * lines * words, lines, words);
  }
}

template <class Exec, class Real>
void GradientQuantizer<Exec, Real>::find_ranges(const Exec& exec, const ScaledGradient<Exec, Real>& gradient) {
  const int rows = gradient.rows();
  if (m_axis == GroupAxis::columns) {
    reduce_columns(exec, "OneBit::nn::column_ranges", rows, gradient.columns(),
                   RangeTerms<Exec, Real>{gradient, ranges()}, m_partial);
  } else if (m_result.lines_per_group == 1) {
    find_row_ranges(exec, gradient, ranges());
  } else {
    const GroupRanges<Real> of_rows{m_row_ranges.data(), m_row_ranges.data() + rows};
    find_row_ranges(exec, gradient, of_rows);
    join_row_ranges<Exec, Real>(exec, {of_rows.low, of_rows.high}, m_result.groups(), m_result.lines_per_group,
                                ranges());
  }
}

template <class Exec, class Real>
void GradientQuantizer<Exec, Real>::read_sizes(const Exec& exec) {
  const int groups = m_result.groups();
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
  m_result.kept = m_result.lines;
  if (m_pruning) {
    const auto product = m_axis == GroupAxis::rows ? GradientProduct::input : GradientProduct::weight;
    read_sizes(exec);
    m_choice(m_sizes, GradientDraws(key, product, Stream::gradient_pruning));
    m_result.kept_list = m_choice.kept();
    m_result.kept = m_result.lines_per_group * static_cast<int>(m_choice.kept().size());
  }
  const auto kept = std::make_pair(std::size_t(0), std::size_t(m_result.kept));
  m_result.line = Kokkos::subview(m_line, kept);
  m_result.scale = Kokkos::subview(m_scale, kept);
  m_result.offset = Kokkos::subview(m_offset, kept);
  for (linalg::BitMatrix<Exec>& plane : m_result.planes) plane.rows = m_result.kept;
  if (!m_pruning || m_result.kept == 0) return;
  const auto groups = std::make_pair(std::size_t(0), m_choice.kept().size());
  for (std::size_t k = 0; k < groups.second; ++k) {
    m_host_group(k) = m_choice.kept()[k];
    m_host_probability(k) = m_choice.probabilities()[m_choice.kept()[k]];
  }
  Kokkos::deep_copy(exec, Kokkos::subview(m_group, groups), Kokkos::subview(m_host_group, groups));
  Kokkos::deep_copy(exec, Kokkos::subview(m_probability, groups), Kokkos::subview(m_host_probability, groups));
}

template <class Exec, class Real>
const QuantizedGradient<Exec, Real>& GradientQuantizer<Exec, Real>::operator()(const Exec& exec,
                                                                               MatrixRef<Exec, const Real> d_output,
                                                                               VectorRef<Exec, const Real> gamma,
                                                                               const QuantizerKey& key,
                                                                               int rows_per_group) {
  const Region region("OneBit::nn::quantize_gradient");
  const ScaledGradient<Exec, Real> gradient = scaled(d_output, gamma);
  const int elements = elements_of(m_axis, gradient.rows(), gradient.columns());
  set_extents(lines_of(m_axis, gradient.rows(), gradient.columns()), elements,
              m_axis == GroupAxis::rows ? rows_per_group : 1);
  find_ranges(exec, gradient);
  choose(exec, key);
  if (m_result.kept == 0) return m_result;

  const Real levels = static_cast<Real>((1 << m_bits) - 1);
  Kokkos::parallel_for("OneBit::nn::group_scales", Kokkos::RangePolicy<Exec>(exec, 0, m_result.kept),
                       GroupScales<Exec, Real>{!m_pruning,
                                               m_result.lines_per_group,
                                               levels,
                                               {ranges().low, ranges().high},
                                               m_group.data(),
                                               m_probability.data(),
                                               m_line.data(),
                                               m_Z.data(),
                                               m_factor.data(),
                                               m_scale.data(),
                                               m_offset.data()});
  const auto product = m_axis == GroupAxis::rows ? GradientProduct::input : GradientProduct::weight;
  GroupCodes<Exec, Real> pass{gradient,   m_line.data(),
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
  const int lines = m_result.lines, elements = elements_of(m_axis, gradient.rows(), gradient.columns());
  const double levels = (1 << m_bits) - 1;
  if (!m_pruning) read_sizes(exec);
  const auto sums = make_uninitialized<Exec, double>("OneBit::nn::error_sums", 2 * std::size_t(lines));
  const ErrorTerms<Exec, Real> terms{gradient, {ranges().low, ranges().high}, levels, sums.data(), lines};
  if (m_axis == GroupAxis::rows)
    find_row_errors(exec, terms, m_result.lines_per_group);
  else
    reduce_columns(exec, "OneBit::nn::column_errors", gradient.rows(), lines, terms,
                   make_uninitialized<Exec, double>("OneBit::nn::error_partial_sums",
                                                    2 * std::size_t(reduction_blocks(gradient.rows())) * lines));
  const auto host_sums = Kokkos::create_mirror_view(sums);
  Kokkos::deep_copy(exec, host_sums, sums);
  fence(exec, "OneBit::nn::error_sums");

  std::vector<bool> kept(m_result.groups(), !m_pruning);
  if (m_pruning)
    for (const int i : m_choice.kept()) kept[i] = true;
  QuantizerError error;
  for (int line = 0; line < lines; ++line) {
    const int i = line / m_result.lines_per_group;
    const double p = m_pruning ? m_choice.probabilities()[i] : 1, square = host_sums(line),
                 rounding = host_sums(lines + line);
    const double step_squared = m_sizes[i].range * m_sizes[i].range / (levels * levels);
    error.norm_squared += square;
    // A group with p = 0 is lost, and its error is the group itself.
    error.exact += p > 0 ? (1 / p - 1) * square + step_squared / p * rounding : square;
    if (kept[i]) error.paper += elements / 4.0 * step_squared;
  }
  return error;
}

#define ONEBIT_INSTANTIATE(Exec, Real) template class GradientQuantizer<Exec, Real>;
ONEBIT_INSTANTIATE_FOR_EACH_BACKEND_AND_REAL

}  // namespace onebit::nn
