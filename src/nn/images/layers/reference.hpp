#pragma once
/// \file reference.hpp
/// The definitions of the kernels of images, as plain loops over row-major arrays.

#include <algorithm>
#include <cmath>

#include "nn/images/layers/convolution.hpp"
#include "nn/reference.hpp"

namespace onebit::nn {

/// Calls f(row of the output, column of the weight, row of the input, channel) for everything that a convolution
/// multiplies. \param images B
template <class F>
void for_each_product_ref(const ConvolutionExtents& e, int images, const F& f) {
  for (int image = 0; image < images; ++image)
    for (int oy = 0; oy < e.output_height(); ++oy)
      for (int ox = 0; ox < e.output_width(); ++ox)
        for (int ky = 0; ky < e.kernel; ++ky)
          for (int kx = 0; kx < e.kernel; ++kx) {
            const int y = oy * e.stride + ky - e.padding, x = ox * e.stride + kx - e.padding;
            if (y < 0 || y >= e.height || x < 0 || x >= e.width) continue;
            for (int c = 0; c < e.channels; ++c)
              f((image * e.output_height() + oy) * e.output_width() + ox, (ky * e.kernel + kx) * e.channels + c,
                (image * e.height + y) * e.width + x, c);
          }
}

/// \param input (B·H·W, C) \param weight (D, k·k·C) \returns (B·H'·W', D)
template <class Real>
Array<Real> convolution_ref(const ConvolutionExtents& e, int images, const Array<Real>& input,
                            const Array<Real>& weight) {
  Array<Real> output(images * e.output_pixels(), e.outputs);
  for_each_product_ref(e, images, [&](int to, int column, int from, int c) {
    for (int d = 0; d < e.outputs; ++d) output(to, d) += input(from, c) * weight(d, column);
  });
  return output;
}

/// d_input, d_weight += their gradients at d_output.
template <class Real>
void convolution_backward_ref(const ConvolutionExtents& e, int images, const Array<Real>& input,
                              const Array<Real>& weight, const Array<Real>& d_output, Array<Real>& d_input,
                              Array<Real>& d_weight) {
  for_each_product_ref(e, images, [&](int to, int column, int from, int c) {
    for (int d = 0; d < e.outputs; ++d) {
      d_input(from, c) += d_output(to, d) * weight(d, column);
      d_weight(d, column) += d_output(to, d) * input(from, c);
    }
  });
}

/// The transposed convolution: what each output position of the convolution gives to the pixels that it reads.
/// \param input (B·H'·W', D) \param weight (D, k·k·C) \returns (B·H·W, C)
template <class Real>
Array<Real> transposed_ref(const ConvolutionExtents& e, int images, const Array<Real>& input,
                           const Array<Real>& weight) {
  Array<Real> output(images * e.pixels(), e.channels);
  for_each_product_ref(e, images, [&](int from, int column, int to, int c) {
    for (int d = 0; d < e.outputs; ++d) output(to, c) += input(from, d) * weight(d, column);
  });
  return output;
}

/// What each output position of a 1-bit convolution reads: the signs of pixels, −1 for 0 and outside of the image.
/// \returns (B·H'·W', k·k·C)
template <class Real>
Array<Real> unfolded_signs_ref(const ConvolutionExtents& e, int images, const Array<Real>& input) {
  Array<Real> signs(images * e.output_pixels(), e.columns());
  for (Real& sign : signs.values) sign = -1;
  for_each_product_ref(e, images, [&](int to, int column, int from, int c) {
    if (input(from, c) > 0) signs(to, column) = 1;
  });
  return signs;
}

/// Batch normalisation of groups of `rows` rows plus `addend`, and a ReLU if `relu`. \param weight, bias (1, C)
template <class Real>
Array<Real> batch_norm_ref(const Array<Real>& input, int rows, const Array<Real>& weight, const Array<Real>& bias,
                           Real epsilon, const Array<Real>& addend, bool relu) {
  Array<Real> output(input.rows, input.columns);
  for (int first = 0; first < input.rows; first += rows)
    for (int j = 0; j < input.columns; ++j) {
      Real mean = 0, variance = 0;
      for (int r = first; r < first + rows; ++r) mean += input(r, j) / rows;
      for (int r = first; r < first + rows; ++r) variance += (input(r, j) - mean) * (input(r, j) - mean) / rows;
      for (int r = first; r < first + rows; ++r) {
        const Real value = (input(r, j) - mean) / std::sqrt(variance + epsilon) * weight(j) + bias(j) + addend(r, j);
        output(r, j) = relu ? std::max(value, Real(0)) : value;
      }
    }
  return output;
}

/// The greatest of each 2 × 2 pixels of images of height H and width W.
template <class Real>
Array<Real> maximum_ref(int height, int width, const Array<Real>& input) {
  const int images = input.rows / (height * width);
  Array<Real> output(images * (height / 2) * (width / 2), input.columns);
  int to = 0;
  for (int image = 0; image < images; ++image)
    for (int y = 0; y < height / 2; ++y)
      for (int x = 0; x < width / 2; ++x, ++to)
        for (int j = 0; j < input.columns; ++j) {
          const int first = (image * height + 2 * y) * width + 2 * x;
          output(to, j) =
              std::max({input(first, j), input(first + 1, j), input(first + width, j), input(first + width + 1, j)});
        }
  return output;
}

}  // namespace onebit::nn
