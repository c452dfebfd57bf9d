#pragma once
/// \file mixing.hpp
/// What an MLP-Mixer has beside dense layers and layer normalisations (nn/layers.hpp). Images are as in
/// convolution.hpp.

#include "nn/layers.hpp"

namespace onebit::nn {

/// In both, nothing is added where `addend` is empty. Instantiated for float and double on every backend.
template <class Exec, class Real>
struct Mixing {
  using Matrix = MatrixRef<Exec, Real>;
  using ConstMatrix = MatrixRef<Exec, const Real>;

  /// output (N, C) ← input (N, C) + bias (C) in each row + addend (N, C).
  static void add_bias(const Exec& exec, VectorRef<Exec, const Real> bias, ConstMatrix input, ConstMatrix addend,
                       Matrix output);
  /// output (B·C, P) ← pixel p of channel c of input (B·P, C) as channel p of pixel c, in each image; + addend (B·C,
  /// P).
  static void exchange(const Exec& exec, ConstMatrix input, ConstMatrix addend, Matrix output);
};

}  // namespace onebit::nn
