#include "nn/quantized/layer_gradient.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "nn/quantizer/dequantize.hpp"

namespace onebit::nn {
namespace {

/// to (N, D) ← from ⊙ factors (D) in each row.
template <class Exec, class Real>
void scale_columns(const Exec& exec, MatrixRef<Exec, const Real> from, VectorRef<Exec, const Real> factors,
                   MatrixRef<Exec, Real> to) {
  const int columns = from.extent_int(1);
  for_each_row(
      exec, "OneBit::nn::scale_columns", from.extent_int(0), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int r) {
        team.for_each(columns, [&](int c) { to(r, c) = from(r, c) * factors(c); });
      });
}

}  // namespace

template <class Exec, class Real>
LayerGradient<Exec, Real>::LayerGradient(const Quantization& quantization, const std::vector<GradientExtents>& layers)
    : m_kind(quantization.kind), m_bits(quantization.bits), m_after(quantization.gradients_after), m_layers(layers) {
  std::size_t elements = 0;
  for (const GradientExtents& of : layers) elements = std::max(elements, std::size_t(of.rows) * of.columns);
  if (elements == 0) return;
  std::optional<Pruning> pruning;
  if (m_kind == QuantizationKind::fqt) pruning = quantization.pruning;
  const bool by_columns = m_kind == QuantizationKind::scq || m_kind == QuantizationKind::fqt;
  if (by_columns || m_kind == QuantizationKind::psq) m_rows.emplace(GroupAxis::rows, layers, m_bits, pruning);
  if (by_columns) m_columns.emplace(GroupAxis::columns, layers, m_bits, pruning);
  if (!by_columns || m_after > 0)
    m_gradient = make_uninitialized<Exec, Real>("OneBit::nn::LayerGradient::gradient", elements);
}

template <class Exec, class Real>
bool LayerGradient<Exec, Real>::quantizes(const QuantizerKey& key) const {
  return m_kind != QuantizationKind::qat && static_cast<long>(key.step) > m_after;
}

template <class Exec, class Real>
const QuantizedGradient<Exec, Real>& LayerGradient<Exec, Real>::quantized(const Exec& exec, GroupAxis axis,
                                                                          const QuantizerKey& key, ConstMatrix d_output,
                                                                          Gamma gamma) {
  const auto& gradient = quantizer(axis)(exec, d_output, gamma, key, m_layers[key.layer].rows_per_group);
  const double elements = static_cast<double>(d_output.size());
  m_sums.elements += elements;
  m_sums.kept += elements * gradient.kept / gradient.lines;
  m_sums.groups += gradient.groups();
  m_sums.pruned += gradient.groups() - gradient.kept_groups();
  if (m_measures != QuantizerMeasures::none) measure(exec, axis, key.layer, d_output, gamma);
  return gradient;
}

template <class Exec, class Real>
void LayerGradient<Exec, Real>::measure(const Exec& exec, GroupAxis axis, int layer, ConstMatrix d_output,
                                        Gamma gamma) {
  const QuantizerError error = quantizer(axis).error(exec, d_output, gamma);
  m_sums.error += error.exact;
  m_sums.norm_squared += error.norm_squared;
  // `psq` quantises the rows again, with the same draw, for its second product.
  const bool again = m_kind == QuantizationKind::psq && !m_gradients.empty() && m_gradients.back().number == layer;
  if (m_measures != QuantizerMeasures::groups || again) return;
  const QuantizedGradient<Exec, Real>& quantized = quantizer(axis).result();
  GradientGroups groups;
  groups.number = layer;
  groups.axis = axis;
  groups.bits = m_bits;
  groups.groups = quantized.groups();
  groups.kept = quantized.kept_groups();
  groups.elements = static_cast<int>(d_output.size()) / groups.groups;
  groups.error = error;
  groups.drawn_error = drawn_error<Exec, Real>(exec, quantized, axis, quantizer(axis).scaled(d_output, gamma));
  for (const GroupSize& size : quantizer(axis).sizes())
    if (!std::isnan(size.range)) groups.ranges.push_back(size.range);
  std::sort(groups.ranges.begin(), groups.ranges.end());
  m_gradients.push_back(std::move(groups));
}

template <class Exec, class Real>
MatrixRef<Exec, const Real> LayerGradient<Exec, Real>::in_real(const Exec& exec, const QuantizerKey& key,
                                                               ConstMatrix d_output, Gamma gamma) {
  const MatrixRef<Exec, Real> gradient(m_gradient.data(), d_output.extent(0), d_output.extent(1));
  if (quantizes(key))
    dequantize<Exec, Real>(exec, quantized(exec, GroupAxis::rows, key, d_output, gamma), GroupAxis::rows, gradient);
  else if (gamma.extent(0) > 0)
    scale_columns<Exec, Real>(exec, d_output, gamma, gradient);
  else
    return d_output;
  return gradient;
}

template <class Exec, class Real>
void LayerGradient<Exec, Real>::start_state(QuantizerMeasures measures) {
  m_measures = measures;
  m_sums = {};
  m_gradients.clear();
}

template <class Exec, class Real>
QuantizationState LayerGradient<Exec, Real>::state() const {
  QuantizationState state;
  if (m_sums.elements == 0) return state;
  state.bits = m_bits * m_sums.kept / m_sums.elements;
  state.pruned_share = m_sums.pruned / m_sums.groups;
  if (m_measures != QuantizerMeasures::none && m_sums.norm_squared > 0)
    state.error = m_sums.error / m_sums.norm_squared;
  state.gradients = m_gradients;
  return state;
}

#define ONEBIT_INSTANTIATE(Exec, Real) template class LayerGradient<Exec, Real>;
ONEBIT_INSTANTIATE_FOR_EACH_BACKEND_AND_REAL

}  // namespace onebit::nn
