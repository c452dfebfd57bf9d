#pragma once
/// \file convolution.hpp
/// Convolutions of images, as matrix products: the pixels that each output position reads are copied side by side into
/// a row (unfolded), and a product with the weight does the rest (Chellapilla et al. 2006). On a host with oneDNN its
/// convolutions are faster, which copy no pixel twice (onednn_convolution.hpp).

#include <algorithm>
#include <cstddef>

#include "linalg/convolution_extents.hpp"
#include "nn/layers.hpp"

namespace onebit::nn {

using linalg::ConvolutionExtents;

/// Convolutions on images that are unfolded in blocks, so that the product reads them from a cache. What they compute
/// depends on the extents alone, not on the number of threads. Instantiated for float and double on every backend.
template <class Exec, class Real>
class Convolution {
public:
  using Kernels = Layers<Exec, Real>;
  using ConstMatrix = typename Kernels::ConstMatrix;
  using Matrix = typename Kernels::Matrix;
  using Product = typename Kernels::Product;
  using Factor = typename Kernels::Factor;
  using Buffer = onebit::Vector<Exec, Real>;

  Convolution(const ConvolutionExtents& extents, int images) : m_extents(extents), m_images(images) {}

  const ConvolutionExtents& extents() const { return m_extents; }
  /// Images of a block.
  int block() const;
  /// Elements of the scratch memory that each of the following takes.
  std::size_t scratch(Precision precision) const;

  /// output (B·H'·W', D) ← the convolution of input (B·H·W, C).
  void forward(const Exec& exec, Product& product, ConstMatrix input, const Factor& weight, const Buffer& scratch,
               Matrix output) const;
  /// d_weight (D, k·k·C) ← its gradient; += if `add`.
  void backward_weight(const Exec& exec, Product& product, ConstMatrix d_output, ConstMatrix input,
                       const Buffer& scratch, bool add, Matrix d_weight) const;
  /// d_input (B·H·W, C) ← its gradient; += if `add`.
  void backward_input(const Exec& exec, Product& product, ConstMatrix d_output, const Factor& weight,
                      const Buffer& scratch, bool add, Matrix d_input) const;

  // A part of these. It is public because it holds a lambda for the device.

  /// unfolded (images·H'·W', k·k·C) ← what each output position reads of input (images·H·W, C).
  void unfold(const Exec& exec, ConstMatrix input, Matrix unfolded) const;

private:
  /// Calls work(the block's first image, its images) for all blocks.
  template <class Work>
  void for_each_block(const Work& work) const;

  ConvolutionExtents m_extents;
  int m_images;  ///< B
};

}  // namespace onebit::nn
