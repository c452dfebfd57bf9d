#pragma once
/// \file image_layers.hpp
/// Layers without parameters that networks of images have beside those of nn/layers.hpp. Images are as in
/// convolution.hpp.

#include "base/kokkos.hpp"

namespace onebit::nn {

/// What a leaky ReLU multiplies negative numbers by (Radford, Metz and Chintala, ICLR 2016, Section 4).
inline constexpr double leaky_slope = 0.2;

/// Instantiated for float and double on every backend.
template <class Exec, class Real>
struct ImageLayers {
  using Matrix = MatrixRef<Exec, Real>;
  using ConstMatrix = MatrixRef<Exec, const Real>;
  using Buffer = Vector<Exec, Real>;

  /// output (B·(H/2)·(W/2), C) ← the greatest of each 2 × 2 pixels of input (B·H·W, C), channel by channel. The last
  /// row and column of an odd H and W are left out.
  static void maximum(const Exec& exec, int height, int width, ConstMatrix input, Matrix output);
  /// d_input ← d_output at the first greatest pixel of each window, and 0 at all others; += if `add`.
  static void maximum_backward(const Exec& exec, int height, int width, ConstMatrix input, ConstMatrix d_output,
                               bool add, Matrix d_input);

  /// output (B·C, P) ← pixel p of channel c of input (B·P, C) as channel p of pixel c, in each image; + addend (B·C,
  /// P), if that is not empty. The mixer's (Tolstikhin et al. 2021, Section 2).
  static void exchange(const Exec& exec, ConstMatrix input, ConstMatrix addend, Matrix output);

  /// output ← input where it is positive, else leaky_slope · input. All vectors of this and what follows have one
  /// length.
  static void leaky_relu(const Exec& exec, const Buffer& input, const Buffer& output);
  /// d_input ← its gradient at d_output; += if `add`.
  static void leaky_relu_backward(const Exec& exec, const Buffer& input, const Buffer& d_output, bool add,
                                  const Buffer& d_input);

  /// output ← tanh(input).
  static void tanh(const Exec& exec, const Buffer& input, const Buffer& output);
  /// d_input ← (1 − output²) · d_output; += if `add`.
  static void tanh_backward(const Exec& exec, const Buffer& output, const Buffer& d_output, bool add,
                            const Buffer& d_input);
};

}  // namespace onebit::nn
