#pragma once
/// \file binary_convolution.hpp
/// Convolutions of one bit (Gao et al. 2024, Appendix C, "Unfolder" and "Folder"): a layer of binary_layers.hpp, whose
/// input is unfolded (convolution.hpp).
///
/// The sign of a pixel is packed once, and words are unfolded, 32 times fewer bytes than floats. A pixel outside of the
/// image is 0, and its sign is −1 as that of any 0 (Section 5.1). The straight-through estimator belongs to the pixel,
/// so the fold of ∇x applies it.
///
/// The gradient ∇y (B·H'·W', D) has a row for each position. The rows of an image are a group of its quantiser, or each
/// row is one (Quantization::group). A column, which the other product reads, is an output channel.

#include <vector>

#include "nn/images/layers/convolution.hpp"
#include "nn/quantized/binary_layers.hpp"

namespace onebit::nn {

/// The 1-bit convolutions of a network, for batches of B images. Instantiated for float and double on every backend.
template <class Exec, class Real>
class BinaryConvolutions {
public:
  using ConstMatrix = MatrixRef<Exec, const Real>;
  using Matrix = MatrixRef<Exec, Real>;
  using Parameters = QuantizedParameters<Exec, Real>;
  using Product = linalg::MatrixProduct<Exec, Real>;

  /// \param images       B
  /// \param convolutions the extents of each; without outputs for one in full precision. Their B·H'·W' positions are at
  ///                     most `largest_group`
  /// \throws InputError if one has more than `most_binary_inputs`
  BinaryConvolutions(const Quantization& quantization, int images, const std::vector<ConvolutionExtents>& convolutions);

  /// output (B·H'·W', D) ← the convolution of input (B·H·W, C); keeps what the backward pass needs.
  void forward(const Exec& exec, int number, ConstMatrix input, const Parameters& parameters, Matrix output);
  /// d_input (B·H·W, C) ← its gradient, += if `add`. \param key of this convolution \param input of the last `forward`
  void backward_input(const Exec& exec, const QuantizerKey& key, Product& product, ConstMatrix d_output,
                      ConstMatrix input, const Parameters& parameters, bool add, Matrix d_input);
  /// As QuantizedLayers::backward_parameters, with N = B·H'·W'.
  void backward_parameters(const Exec& exec, const QuantizerKey& key, Product& product, ConstMatrix d_output,
                           const Parameters& parameters, bool add, VectorRef<Exec, Real> scratch, Matrix d_weight,
                           VectorRef<Exec, Real> d_gamma) {
    m_layers.backward_parameters(exec, key, product, d_output, parameters, add, scratch, d_weight, d_gamma);
  }

  /// As those of LayerGradient.
  void start_state(QuantizerMeasures measures) { m_layers.start_state(measures); }
  QuantizationState state() const { return m_layers.state(); }

private:
  /// sign(x) of the pixels of a convolution's input, in `m_pixels`.
  linalg::BitMatrix<Exec> pixels(const ConvolutionExtents& e) const;

  int m_images;
  std::vector<ConvolutionExtents> m_convolutions;
  BinaryLayers<Exec, Real> m_layers;
  Vector<Exec, std::uint32_t> m_pixels;  ///< words of one convolution's
};

}  // namespace onebit::nn
