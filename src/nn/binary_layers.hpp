#pragma once
/// \file binary_layers.hpp
/// Dense layers of one bit: "1-Bit FQT: Pushing the Limit of Fully Quantized Training to 1-bit" (Gao et al. 2024).
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
/// does.

#include <cstdint>
#include <optional>
#include <vector>

#include "base/kokkos.hpp"
#include "linalg/binary_product.hpp"
#include "linalg/bits.hpp"
#include "linalg/matrix_product.hpp"
#include "nn/gradient_quantizer.hpp"
#include "nn/quantization.hpp"

namespace onebit::nn {

/// Inputs K and outputs D of a dense layer.
struct DenseExtents {
  int inputs = 0, outputs = 0;
};

/// Most inputs K of a layer: its sums are kept in 16 bits.
inline constexpr int most_binary_inputs = 32767;

/// Parameters of a layer.
template <class Exec, class Real>
struct BinaryParameters {
  MatrixRef<Exec, const Real> weight;  ///< W (D, K)
  VectorRef<Exec, const Real> gamma;   ///< Γ (D)
};

/// What a layer keeps of its forward pass.
template <class Exec>
struct KeptBits {
  linalg::BitMatrix<Exec> input, input_columns;    ///< sign(x): (N, K), (K, N)
  linalg::BitMatrix<Exec> inside;                  ///< |x| < 1: (N, K)
  linalg::BitMatrix<Exec> weight, weight_columns;  ///< sign(W): (D, K), (K, D)
  Matrix<Exec, std::int16_t> sums;                 ///< sign(x) · sign(W)ᵀ: (N, D)
};

/// The 1-bit layers of a model, for batches of N rows. Instantiated for float and double on every backend.
template <class Exec, class Real>
class BinaryLayers {
public:
  using Matrix = MatrixRef<Exec, Real>;
  using ConstMatrix = MatrixRef<Exec, const Real>;
  using Vector = VectorRef<Exec, Real>;
  using Parameters = BinaryParameters<Exec, Real>;
  using Product = linalg::MatrixProduct<Exec, Real>;

  /// \param rows   N
  /// \param layers the extents of each layer; without outputs for a layer that is not of one bit
  /// \throws InputError if a layer has more than `most_binary_inputs`
  BinaryLayers(const Quantization& quantization, int rows, const std::vector<DenseExtents>& layers);

  /// output (N, D) ← y of a layer; keeps the bits of input and weight, and the sums, for the backward pass.
  void forward(const Exec& exec, int layer, ConstMatrix input, const Parameters& parameters, Matrix output);

  /// d_input (N, K) ← ∇x, += if `add`, of the layer's last `forward`.
  /// \param key     of this layer; the rounding draws from it
  /// \param product for the kinds that multiply in Real
  void backward_input(const Exec& exec, const QuantizerKey& key, Product& product, ConstMatrix d_output,
                      const Parameters& parameters, bool add, Matrix d_input);

  /// d_weight (D, K) ← ∇W, += if `add`; d_gamma (D) += ∇Γ.
  /// \param scratch row_block_count(N) * D elements
  void backward_parameters(const Exec& exec, const QuantizerKey& key, Product& product, ConstMatrix d_output,
                           const Parameters& parameters, bool add, Vector scratch, Matrix d_weight, Vector d_gamma);

  /// Begins a new state.
  void start_state(QuantizerMeasures measures);
  /// Of the gradients that were quantised since then.
  QuantizationState state() const;

private:
  using Kept = KeptBits<Exec>;
  using Quantizer = GradientQuantizer<Exec, Real>;

  const QuantizedGradient<Exec, Real>& quantize(const Exec& exec, GroupAxis axis, const QuantizerKey& key,
                                                ConstMatrix d_output, const Parameters& parameters);
  void measure(const Exec& exec, GroupAxis axis, int layer, ConstMatrix d_output, const Parameters& parameters);
  Matrix gradient_in_real(const Exec& exec, const QuantizerKey& key, ConstMatrix d_output,
                          const Parameters& parameters);

  /// to ← op(gradient) · the signs of `bits`, but 0 where `inside` passes nothing; += if `add`.
  template <class Inside>
  void multiply_in_real(const Exec& exec, Product& product, linalg::Transpose op, ConstMatrix gradient,
                        const linalg::BitMatrix<Exec>& bits, const Inside& inside, bool add, Matrix to);

  QuantizationKind m_kind;
  std::vector<Kept> m_layers;
  linalg::BinaryProduct<Exec> m_product;
  int m_bits;  ///< b
  std::optional<Quantizer> m_rows, m_columns;
  onebit::Vector<Exec, int> m_sign_sums;                     ///< (largest K)
  onebit::Vector<Exec, Real> m_gradient, m_signs, m_result;  ///< empty for the kinds that multiply bits

  QuantizerMeasures m_measures = QuantizerMeasures::none;
  struct {
    double elements = 0, kept = 0, groups = 0, pruned = 0, error = 0, norm_squared = 0;
  } m_sums;  ///< over the gradients that were quantised
  std::vector<GradientGroups> m_gradients;
};

}  // namespace onebit::nn
