#pragma once
/// \file convolution_extents.hpp
/// The extents of a convolution of images.

namespace onebit::linalg {

/// Images are NHWC: B images of height H, width W and C channels are a matrix (B·H·W, C) with a row for each pixel. The
/// weight is (D, k·k·C), row-major, with the columns (ky, kx, c). Output position (y, x) reads the pixels
/// (y s + ky − p, x s + kx − p); those outside the image are 0.
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

}  // namespace onebit::linalg
