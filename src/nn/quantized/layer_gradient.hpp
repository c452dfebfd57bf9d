#pragma once
/// \file layer_gradient.hpp
/// The gradient at the output of quantised layers, as the products of their backward pass read it: quantised, or in
/// full precision.

#include <optional>
#include <vector>

#include "nn/quantized/quantization.hpp"
#include "nn/quantizer/gradient_quantizer.hpp"

namespace onebit::nn {

/// Quantises gradients (N, D) as Quantization says, and adds up what `QuantizationState` reports.
/// Γ is (D), or empty for 1. Instantiated for float and double on every backend.
template <class Exec, class Real>
class LayerGradient {
public:
  using ConstMatrix = MatrixRef<Exec, const Real>;
  using Gamma = VectorRef<Exec, const Real>;

  /// \param layers the extents of each layer's gradient; without columns for a layer that is not quantised
  LayerGradient(const Quantization& quantization, const std::vector<GradientExtents>& layers);

  /// Whether gradients are quantised in the key's step.
  bool quantizes(const QuantizerKey& key) const;

  /// Q(∇y ⊙ Γ), valid until the next call. The columns are for `scq` and `fqt`.
  const QuantizedGradient<Exec, Real>& quantized(const Exec& exec, GroupAxis axis, const QuantizerKey& key,
                                                 ConstMatrix d_output, Gamma gamma);
  /// ∇y ⊙ Γ in Real, with quantised rows if the step quantises, valid until the next call. For `qat` and `psq`, and for
  /// the steps up to `Quantization::gradients_after`.
  ConstMatrix in_real(const Exec& exec, const QuantizerKey& key, ConstMatrix d_output, Gamma gamma);

  /// Begins a new state.
  void start_state(QuantizerMeasures measures);
  /// Of the gradients that were quantised since then.
  QuantizationState state() const;

private:
  using Quantizer = GradientQuantizer<Exec, Real>;

  Quantizer& quantizer(GroupAxis axis) { return axis == GroupAxis::rows ? *m_rows : *m_columns; }
  /// Of the gradient that was just quantised.
  void measure(const Exec& exec, GroupAxis axis, int layer, ConstMatrix d_output, Gamma gamma);

  QuantizationKind m_kind;
  int m_bits;  ///< b
  long m_after;
  std::vector<GradientExtents> m_layers;
  std::optional<Quantizer> m_rows, m_columns;
  Vector<Exec, Real> m_gradient;  ///< (largest N D), for `in_real`

  QuantizerMeasures m_measures = QuantizerMeasures::none;
  struct {
    double elements = 0, kept = 0, groups = 0, pruned = 0, error = 0, norm_squared = 0;
  } m_sums;  ///< over the gradients that were quantised
  std::vector<GradientGroups> m_gradients;
};

}  // namespace onebit::nn
