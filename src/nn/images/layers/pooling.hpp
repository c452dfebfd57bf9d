#pragma once
/// \file pooling.hpp
/// The greatest pixels of windows. Images are as in convolution.hpp.

#include "nn/layers.hpp"

namespace onebit::nn {

/// Instantiated for float and double on every backend.
template <class Exec, class Real>
struct Pooling {
  using Matrix = MatrixRef<Exec, Real>;
  using ConstMatrix = MatrixRef<Exec, const Real>;

  /// output (B·(H/2)·(W/2), C) ← the greatest of each 2 × 2 pixels of input (B·H·W, C), channel by channel. The last
  /// row and column of an odd H and W are left out.
  static void maximum(const Exec& exec, int height, int width, ConstMatrix input, Matrix output);
  /// d_input ← d_output at the first greatest pixel of each window, and 0 at all others; += if `add`.
  static void maximum_backward(const Exec& exec, int height, int width, ConstMatrix input, ConstMatrix d_output,
                               bool add, Matrix d_input);
};

}  // namespace onebit::nn
