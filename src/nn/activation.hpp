#pragma once
/// \file activation.hpp
/// Exponential and GELU without branches or calls, so that every host compiler vectorises loops over them.

#include <cstdint>
#include <cstring>

#include "base/kokkos.hpp"

namespace onebit::nn {

namespace detail {

template <class Real>
struct ExpConstants;
template <>
struct ExpConstants<float> {
  using Bits = std::uint32_t;
  static constexpr int mantissa_bits = 23, degree = 7;
  static constexpr float low = -87.0f, high = 88.0f;
  static constexpr float ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f;
};
template <>
struct ExpConstants<double> {
  using Bits = std::uint64_t;
  static constexpr int mantissa_bits = 52, degree = 13;
  static constexpr double low = -708.0, high = 709.0;
  static constexpr double ln2_high = 0x1.62e42feep-1, ln2_low = 0x1.a39ef35793c76p-33;
};

}  // namespace detail

/// e^x to about 1 unit in the last place. x is clamped to [-87, 88] (float) or [-708, 709] (double), so the smallest
/// value is 1e-38 and not 0. NaN gives NaN.
///
/// e^x = 2^n e^r with n = x / ln 2 rounded and |r| ≤ ln 2 / 2. The Taylor series of e^r ends below half a unit in the
/// last place; n becomes the exponent of 2^n.
template <class Real>
KOKKOS_FORCEINLINE_FUNCTION Real exp(Real x) {
  using Constants = detail::ExpConstants<Real>;
  using Bits = typename Constants::Bits;
  x = x < Constants::low ? Constants::low : x;
  x = x > Constants::high ? Constants::high : x;
  // Adding 1.5 · 2^mantissa_bits rounds to an integer, which stands in the low bits of the sum.
  constexpr Real shift = Real(3) * Real(Bits{1} << (Constants::mantissa_bits - 1));
  const Real shifted = x * Real(1.4426950408889634) + shift;
  const Real n = shifted - shift;
  const Real r = (x - n * Constants::ln2_high) - n * Constants::ln2_low;
  constexpr double inverse_factorial[] = {
      1.,        1.,         1. / 2,      1. / 6,       1. / 24,       1. / 120,       1. / 720,
      1. / 5040, 1. / 40320, 1. / 362880, 1. / 3628800, 1. / 39916800, 1. / 479001600, 1. / 6227020800};
  Real series = Real(inverse_factorial[Constants::degree]);
  for (int k = Constants::degree - 1; k >= 0; --k) series = series * r + Real(inverse_factorial[k]);
  Bits bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  constexpr Bits exponent_of_one = (Bits{1} << (8 * sizeof(Bits) - 2)) - (Bits{1} << Constants::mantissa_bits);
  bits = (bits << Constants::mantissa_bits) + exponent_of_one;
  Real power;
  std::memcpy(&power, &bits, sizeof power);
  return series * power;
}

/// GELU in its tanh form (Hendrycks and Gimpel 2016), u/2 (1 + tanh a) = u / (1 + e^-2a) with
/// a = √(2/π) (u + 0.044715 u³), and its derivative.
template <class Real>
struct Gelu {
  Real value, derivative;

  KOKKOS_FORCEINLINE_FUNCTION explicit Gelu(Real u) {
    constexpr Real linear = Real(2 * 0.7978845608028654), cubic = linear * Real(0.044715);
    const Real square = u * u;
    const Real sigmoid = Real(1) / (Real(1) + exp(-u * (linear + cubic * square)));
    value = u * sigmoid;
    derivative = sigmoid + value * (Real(1) - sigmoid) * (linear + Real(3) * cubic * square);
  }
};

}  // namespace onebit::nn
