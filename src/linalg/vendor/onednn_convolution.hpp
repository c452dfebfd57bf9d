#pragma once
/// \file onednn_convolution.hpp
/// Convolutions of images by oneDNN, on the calling thread, of factors in float or rounded to bfloat16. They need what
/// onednn.hpp says: onednn_is_faster() or onednn_has_bfloat16(), and a SingleThreadedBlas around the parallel region.
/// Each thread keeps what oneDNN prepares for a shape.

#include <cstddef>

#include "linalg/convolution_extents.hpp"

namespace onebit::linalg {

/// A convolution of B images.
struct ImageConvolution {
  ConvolutionExtents extents;
  int images;    ///< B
  bool rounded;  ///< to bfloat16; sums and results stay in float
};

enum class ConvolutionPass { forward, backward_input };

/// Floats of a weight in the order in which a pass reads it.
std::size_t onednn_arranged_length(ConvolutionPass pass, const ImageConvolution& convolution);

/// arranged ← weight (D, k·k·C) in that order.
void onednn_arrange(ConvolutionPass pass, const ImageConvolution& convolution, const float* weight, float* arranged);

/// output (B·H'·W', D) ← the convolution of input (B·H·W, C). \param weight arranged
void onednn_convolution(const ImageConvolution& convolution, const float* input, const float* weight, float* output);

/// d_input (B·H·W, C) ← its gradient; += if `add`. \param weight arranged
void onednn_convolution_input(const ImageConvolution& convolution, const float* d_output, const float* weight, bool add,
                              float* d_input);

/// d_weight (D, k·k·C) ← its gradient.
void onednn_convolution_weight(const ImageConvolution& convolution, const float* d_output, const float* input,
                               float* d_weight);

}  // namespace onebit::linalg
