#pragma once
/// \file quantized_layers.hpp
/// What a model needs of its quantised dense layers, of one bit (binary_layers.hpp) or of 8 (eight_bit_layers.hpp).

#include <vector>

#include "linalg/matrix_product.hpp"
#include "nn/quantized/layer_gradient.hpp"

namespace onebit::nn {

/// Extents of a dense layer and its batch.
struct DenseExtents {
  int inputs = 0, outputs = 0;  ///< K, D
  int rows = 0;                 ///< N
  int rows_per_group = 1;       ///< consecutive rows of a gradient that are quantised together; divides N
  int rows_per_block = 0;       ///< of a convolution, whose input the caller unfolds; 0 for a dense layer
};

/// Parameters of a layer.
template <class Exec, class Real>
struct QuantizedParameters {
  MatrixRef<Exec, const Real> weight;  ///< W (D, K)
  VectorRef<Exec, const Real> gamma;   ///< Γ (D); empty in layers of 8 bits
};

/// The quantised dense layers of a model.
template <class Exec, class Real>
class QuantizedLayers {
public:
  using Matrix = MatrixRef<Exec, Real>;
  using ConstMatrix = MatrixRef<Exec, const Real>;
  using Vector = VectorRef<Exec, Real>;
  using Parameters = QuantizedParameters<Exec, Real>;
  using Product = linalg::MatrixProduct<Exec, Real>;

  virtual ~QuantizedLayers() = default;

  /// output (N, D) ← y of a layer; keeps what the backward pass needs. \param product for products in Real
  virtual void forward(const Exec& exec, Product& product, int layer, ConstMatrix input, const Parameters& parameters,
                       Matrix output) = 0;

  /// d_input (N, K) ← ∇x, += if `add`, of the layer's last `forward`. \param key of this layer; the rounding draws from
  /// it
  virtual void backward_input(const Exec& exec, const QuantizerKey& key, Product& product, ConstMatrix d_output,
                              const Parameters& parameters, bool add, Matrix d_input) = 0;

  /// d_weight (D, K) ← ∇W, += if `add`; d_gamma += ∇Γ where the layer has it.
  /// \param scratch row_block_count(N) * D elements
  virtual void backward_parameters(const Exec& exec, const QuantizerKey& key, Product& product, ConstMatrix d_output,
                                   const Parameters& parameters, bool add, Vector scratch, Matrix d_weight,
                                   Vector d_gamma) = 0;

  /// As those of LayerGradient.
  void start_state(QuantizerMeasures measures) { m_gradient.start_state(measures); }
  QuantizationState state() const { return m_gradient.state(); }

protected:
  QuantizedLayers(const Quantization& quantization, const std::vector<DenseExtents>& layers)
      : m_gradient(quantization, gradient_extents(layers)) {}

  LayerGradient<Exec, Real> m_gradient;

private:
  static std::vector<GradientExtents> gradient_extents(const std::vector<DenseExtents>& layers) {
    std::vector<GradientExtents> extents;
    for (const DenseExtents& of : layers) extents.push_back({of.rows, of.outputs, of.rows_per_group});
    return extents;
  }
};

}  // namespace onebit::nn
