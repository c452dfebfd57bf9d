#pragma once
/// \file binary_layers.hpp
/// Layers of one bit: "1-Bit FQT: Pushing the Limit of Fully Quantized Training to 1-bit" (Gao et al. 2024).
///
/// A layer has latent weights W (D, K) and scales Γ (D). With the input x (N, K),
///   y = (sign(x) · sign(W)ᵀ) ⊙ Γ,
/// and with G = ∇y ⊙ Γ, where Q is a quantiser (gradient_quantizer.hpp),
///   ∇x = Q(G) · sign(W), but 0 where |x| ≥ 1,
///   ∇W = Q'(G)ᵀ · sign(x), but 0 where |W| ≥ 1,
///   ∇Γ_j = Σ_i ∇y_ij · (sign(x) · sign(W)ᵀ)_ij.
/// The zeros are the straight-through estimator's. The kinds of Quantization choose the quantisers:
///   qat   Q and Q' are the identity
///   psq   Q = Q' quantises the rows, with one draw for both products
///   scq   Q quantises the rows, Q' the columns
///   fqt   as scq, and prunes 1 − 1/b of the rows and of the columns
/// `scq` and `fqt` multiply bits alone, because each scale belongs to a row of the result and multiplies finished sums.
/// In `psq` the sums of ∇W contain the scales of the rows. So it multiplies dequantised gradients in Real, as `qat`
/// does. Up to step `Quantization::gradients_after` every kind is `qat`.
///
/// A convolution is such a layer of an unfolded input (images/convolution.hpp): its caller writes the bits of x, and
/// folds ∇x block by block, without the straight-through estimator, which belongs to the pixels.

#include <cstdint>
#include <functional>
#include <vector>

#include "base/kokkos.hpp"
#include "linalg/bits/binary_product.hpp"
#include "linalg/bits/bits.hpp"
#include "nn/quantized/quantized_layers.hpp"

namespace onebit::nn {

/// Most inputs K of a layer: its sums are kept in 16 bits.
inline constexpr int most_binary_inputs = 32767;

/// Whether the straight-through estimator passes a gradient to t: that of sign(t) is 1 where |t| < 1, and 0 elsewhere.
template <class Real>
KOKKOS_FORCEINLINE_FUNCTION bool is_inside(Real t) {
  return t < Real(1) && t > Real(-1);
}

/// What a layer keeps of its forward pass.
template <class Exec>
struct KeptBits {
  linalg::BitMatrix<Exec> input, input_columns;    ///< sign(x): (N, K), (K, N)
  linalg::BitMatrix<Exec> inside;                  ///< |x| < 1: (N, K); empty for a convolution
  linalg::BitMatrix<Exec> weight, weight_columns;  ///< sign(W): (D, K), (K, D)
  Matrix<Exec, std::int16_t> sums;                 ///< sign(x) · sign(W)ᵀ: (N, D)
  int rows_per_block = 0;                          ///< of products in Real, and of a convolution's ∇x
};

/// The 1-bit layers of a model. Instantiated for float and double on every backend.
template <class Exec, class Real>
class BinaryLayers : public QuantizedLayers<Exec, Real> {
public:
  using Base = QuantizedLayers<Exec, Real>;
  using typename Base::ConstMatrix, typename Base::Matrix, typename Base::Parameters, typename Base::Product,
      typename Base::Vector;

  /// \param layers the extents of each layer; without outputs for a layer that is not of one bit
  /// \throws InputError if a layer has more than `most_binary_inputs`
  BinaryLayers(const Quantization& quantization, const std::vector<DenseExtents>& layers);

  /// Keeps the bits of input and weight, and the sums, for the backward pass.
  void forward(const Exec& exec, Product& product, int layer, ConstMatrix input, const Parameters& parameters,
               Matrix output) override;
  void backward_input(const Exec& exec, const QuantizerKey& key, Product& product, ConstMatrix d_output,
                      const Parameters& parameters, bool add, Matrix d_input) override;
  void backward_parameters(const Exec& exec, const QuantizerKey& key, Product& product, ConstMatrix d_output,
                           const Parameters& parameters, bool add, Vector scratch, Matrix d_weight,
                           Vector d_gamma) override;

  // Of a convolution, in the place of `forward` and `backward_input`.

  /// Where the caller writes sign(x), unfolded, along the rows and along the columns.
  const KeptBits<Exec>& kept(int layer) const { return m_layers[layer]; }
  /// output (N, D) ← y of these bits.
  void multiply(const Exec& exec, int layer, const Parameters& parameters, Matrix output);
  /// Calls fold(first row, Q(G) · sign(W)) for blocks of `rows_per_block` rows, the last of which may be shorter.
  void backward_unfolded(const Exec& exec, const QuantizerKey& key, Product& product, ConstMatrix d_output,
                         const Parameters& parameters, const std::function<void(int, ConstMatrix)>& fold);

private:
  using Kept = KeptBits<Exec>;

  /// Whether the products of the key's step are of bits.
  bool multiplies_bits(const QuantizerKey& key) const { return m_has_bits && this->m_gradient.quantizes(key); }

  /// The signs of rows [first, first + count) of a matrix, in Real, until the next call.
  ConstMatrix signs(const Exec& exec, const linalg::BitMatrix<Exec>& bits, int first, int count);

  bool m_has_bits;  ///< the kind multiplies quantised gradients as bits
  std::vector<Kept> m_layers;
  linalg::BinaryProduct<Exec> m_product;
  onebit::Vector<Exec, int> m_sign_sums;  ///< (largest K); empty for the kinds that multiply in Real
  onebit::Vector<Exec, Real> m_signs;     ///< for products in Real; empty if there are none
  onebit::Vector<Exec, Real> m_result;    ///< of them, and of blocks of convolutions
};

}  // namespace onebit::nn
