#pragma once
/// \file eight_bit_layers.hpp
/// Dense layers with weights and activations of 8 bits: with gradients of 8 bits, the fully quantised baseline "PSQ 8,
/// 8, 8" of Gao et al. 2024.
///
/// A layer has latent weights W (D, K). Each row of the input x (N, K) and of W has a scale s = max |row| / 127 and
/// codes q = row/s, rounded to nearest, in −127 … 127. The codes stand for x̂ = s q and Ŵ, and
///   y_ij = s_i s_j Σ_k q_ik q_jk.
/// With G = ∇y and a quantiser Q of its rows (the identity in `qat`),
///   ∇x = Q(G) · Ŵ,
///   ∇W = Q(G)ᵀ · x̂.
/// The straight-through estimator passes every gradient, because no code is clipped.
///
/// The products are in Real. The forward pass multiplies codes, and scales finished sums: in float they are exact up to
/// K = 1040 inputs, and factors in bfloat16 hold each code exactly. Sums of the backward pass contain the scales, so it
/// multiplies x̂ and Ŵ.

#include <cstdint>
#include <vector>

#include "nn/quantized/quantized_layers.hpp"

namespace onebit::nn {

/// The rows of a matrix (R, C) in 8 bits.
template <class Exec, class Real>
struct EightBitRows {
  Matrix<Exec, std::int8_t> codes;  ///< (R, C)
  Vector<Exec, Real> scales;        ///< (R); 0 for a row of zeros, or of numbers so small that 127 / max overflows; NaN
                                    ///< for one with NaN or infinity
};

/// The 8-bit layers of a model, of the kinds `qat` and `psq`. Instantiated for float and double on every backend.
template <class Exec, class Real>
class EightBitLayers : public QuantizedLayers<Exec, Real> {
public:
  using Base = QuantizedLayers<Exec, Real>;
  using typename Base::ConstMatrix, typename Base::Matrix, typename Base::Parameters, typename Base::Product,
      typename Base::Vector;

  /// \param layers the extents of each layer; without outputs for a layer in full precision
  EightBitLayers(const Quantization& quantization, const std::vector<DenseExtents>& layers);

  void forward(const Exec& exec, Product& product, int layer, ConstMatrix input, const Parameters& parameters,
               Matrix output) override;
  void backward_input(const Exec& exec, const QuantizerKey& key, Product& product, ConstMatrix d_output,
                      const Parameters& parameters, bool add, Matrix d_input) override;
  void backward_parameters(const Exec& exec, const QuantizerKey& key, Product& product, ConstMatrix d_output,
                           const Parameters& parameters, bool add, Vector scratch, Matrix d_weight,
                           Vector d_gamma) override;

private:
  /// What a layer keeps of its forward pass.
  struct Kept {
    EightBitRows<Exec, Real> input, weight;  ///< (N, K), (D, K)
  };

  std::vector<Kept> m_layers;
  onebit::Vector<Exec, Real> m_input, m_weight;  ///< codes in Real, x̂ or Ŵ, of one layer
};

}  // namespace onebit::nn
