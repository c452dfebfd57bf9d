#pragma once
/// \file activations.hpp
/// Activations that a GAN's networks have beside the ReLUs of norms, element by element.

#include "base/kokkos.hpp"

namespace onebit::nn {

/// What a leaky ReLU multiplies negative numbers by (Radford, Metz and Chintala, ICLR 2016, Section 4).
inline constexpr double leaky_slope = 0.2;

/// All vectors of a call have one length. Instantiated for float and double on every backend.
template <class Exec, class Real>
struct Activations {
  using Buffer = Vector<Exec, Real>;

  /// output ← input where it is positive, else leaky_slope · input.
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
