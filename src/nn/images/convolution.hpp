#pragma once
/// \file convolution.hpp
/// Convolutions of images, as matrix products: the pixels that each output position reads are copied side by side into
/// a row (unfolded), and a product with the weight does the rest (Chellapilla et al. 2006).
///
/// Images are NHWC: B images of height H, width W and C channels are a matrix (B·H·W, C) with a row for each pixel. The
/// weight is (D, k·k·C), row-major, with the columns (ky, kx, c). Output position (y, x) reads the pixels
/// (y s + ky − p, x s + kx − p); those outside the image are 0.

#include <algorithm>
#include <cstddef>

#include "nn/layers.hpp"

namespace onebit::nn {

/// A convolution's extents.
struct ConvolutionExtents {
  int height = 0, width = 0, channels = 0;  ///< H, W, C of the input
  int outputs = 0;                          ///< D: channels of the output
  int kernel = 1;                           ///< k, the height and the width of what an output reads
  int stride = 1;                           ///< s
  int padding = 0;                          ///< p, of zeros on each side

  int output_height() const { return (height + 2 * padding - kernel) / stride + 1; }
  int output_width() const { return (width + 2 * padding - kernel) / stride + 1; }
  int pixels() const { return height * width; }
  int output_pixels() const { return output_height() * output_width(); }
  int columns() const { return kernel * kernel * channels; }
  /// Whether the input is its own unfolded matrix.
  bool is_dense() const { return kernel == 1 && stride == 1 && padding == 0; }
};

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
  /// Elements of the scratch memory that each of the following takes.
  std::size_t scratch() const;

  /// output (B·H'·W', D) ← the convolution of input (B·H·W, C).
  void forward(const Exec& exec, Product& product, ConstMatrix input, const Factor& weight, const Buffer& unfolded,
               Matrix output) const;
  /// d_weight (D, k·k·C) ← scale · its gradient; += if `add`.
  void backward_weight(const Exec& exec, Product& product, ConstMatrix d_output, ConstMatrix input,
                       const Buffer& unfolded, bool add, Matrix d_weight, Real scale = 1) const;
  /// d_input (B·H·W, C) ← its gradient; += if `add`.
  void backward_input(const Exec& exec, Product& product, ConstMatrix d_output, const Factor& weight,
                      const Buffer& unfolded, bool add, Matrix d_input) const;

  // The parts of these. They are public because they hold lambdas for the device.

  /// unfolded (images·H'·W', k·k·C) ← what each output position reads of input (images·H·W, C).
  void unfold(const Exec& exec, ConstMatrix input, Matrix unfolded) const;
  /// d_input (images·H·W, C) ← the sum of the gradients of the copies of each pixel, in the order of (ky, kx); += if
  /// `add`. \param d_unfolded (images·H'·W', k·k·C)
  void fold(const Exec& exec, ConstMatrix d_unfolded, bool add, Matrix d_input) const;

private:
  /// Images of a block.
  int block() const;
  /// Calls work(the block's first image, its images) for all blocks.
  template <class Work>
  void for_each_block(const Work& work) const;

  ConvolutionExtents m_extents;
  int m_images;  ///< B
};

}  // namespace onebit::nn
