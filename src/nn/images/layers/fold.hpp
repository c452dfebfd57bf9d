#pragma once
/// \file fold.hpp
/// The sum of the gradients of the copies that a convolution unfolds.

#include "nn/images/layers/convolution.hpp"

namespace onebit::nn {

/// Adds the gradients of the copies of a pixel, in the order of (ky, kx); each where passes(pixel, c).
template <class Exec, class Real, class Passes>
struct Fold {
  ConvolutionExtents e;
  int height, width;       ///< of the output
  const Real* d_unfolded;  ///< (images·H'·W', k·k·C)
  Passes passes;
  bool add;
  Real* d_input;  ///< (images·H·W, C)

  KOKKOS_FUNCTION void operator()(const RowTeam<Exec>& team, int pixel) const {
    const int image = pixel / (e.height * e.width), y = pixel / e.width % e.height, x = pixel % e.width;
    const int columns = e.kernel * e.kernel * e.channels;
    Real* const to = d_input + static_cast<std::size_t>(pixel) * e.channels;
    if (!add) team.for_each(e.channels, [&](int c) { to[c] = 0; });
    for (int ky = 0; ky < e.kernel; ++ky) {
      const int from_y = y + e.padding - ky, oy = from_y / e.stride;
      if (from_y < 0 || from_y % e.stride != 0 || oy >= height) continue;
      for (int kx = 0; kx < e.kernel; ++kx) {
        const int from_x = x + e.padding - kx, ox = from_x / e.stride;
        if (from_x < 0 || from_x % e.stride != 0 || ox >= width) continue;
        const std::size_t row = static_cast<std::size_t>(image * height + oy) * width + ox;
        const Real* const from = d_unfolded + row * columns + (ky * e.kernel + kx) * e.channels;
        team.for_each(e.channels, [&](int c) { to[c] += passes(pixel, c) ? from[c] : Real(0); });
      }
    }
  }
};

/// d_input (images·H·W, C) ← the sum of the gradients d_unfolded (images·H'·W', k·k·C) of the copies of each pixel,
/// where they pass; += if `add`.
template <class Exec, class Real, class Passes>
void fold(const Exec& exec, const ConvolutionExtents& e, MatrixRef<Exec, const Real> d_unfolded, const Passes& passes,
          bool add, MatrixRef<Exec, Real> d_input) {
  for_each_row(
      exec, "OneBit::nn::fold", d_input.extent_int(0),
      Fold<Exec, Real, Passes>{e, e.output_height(), e.output_width(), d_unfolded.data(), passes, add, d_input.data()});
}

}  // namespace onebit::nn
