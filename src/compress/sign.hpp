#pragma once
/// \file sign.hpp
/// The codec of 1-bit Adam: a sign for each element, and one magnitude for each group of elements.
///
/// All compressors share their kernels (codec_compressor.hpp). A codec names
///
/// - `Statistics`: the reductions over a group of c that its scales come from: a term of each element, and its `Join`;
/// - `set_scales(statistics, count, scales)`: the scales of a group of `count` > 0 elements;
/// - `Code`: what a receiver needs, a struct which the codec is or derives from, with
///   - `scales`, `planes`: floats of a group, and bits of an element, in a message;
///   - `codes_before_scales`: true where `encode` reads no values, so that codes are known before the scales;
///   - `by_columns`: true where the groups are columns of matrices, whatever `compression.group` says;
///   - `values(words)`: what encode and decode need of a group, from its scales as a message holds them;
///   - `encode(values, c)`, `decode(values, code)`: one element.

#include <cstdint>
#include <tuple>

#include "base/device/parallel.hpp"
#include "base/float_bits.hpp"
#include "base/kokkos.hpp"

namespace onebit::compress {

/// `sign`: ±s, + where c ≥ 0 (Tang et al., ICML 2021, Section 4.3).
struct SignCode {
  using Code = SignCode;
  static constexpr int scales = 1, planes = 1;
  static constexpr bool codes_before_scales = true, by_columns = false;

  struct Values {
    float scale;
  };

  KOKKOS_FUNCTION Values values(const std::uint32_t* words) const { return {as_float(words[0])}; }
  KOKKOS_FUNCTION std::uint32_t encode(const Values&, float c) const { return c >= 0; }
  KOKKOS_FUNCTION float decode(const Values& values, std::uint32_t code) const {
    return code != 0 ? values.scale : -values.scale;
  }
};
/// Σ |c| of a group, and the magnitude that it gives `count` elements: their mean.
struct SumOfMagnitudes {
  using Join = Sum;
  KOKKOS_FUNCTION float operator()(float c) const { return c < 0 ? -c : c; }
  KOKKOS_FUNCTION static float magnitude(double sum, double count) { return static_cast<float>(sum / count); }
};
/// Σ c² of a group, in double, which holds a square exactly; and the root of its mean.
struct SumOfSquares {
  using Join = Sum;
  KOKKOS_FUNCTION double operator()(float c) const { return static_cast<double>(c) * static_cast<double>(c); }
  KOKKOS_FUNCTION static float magnitude(double sum, double count) {
    return static_cast<float>(math::sqrt(sum / count));
  }
};

template <class Norm>
struct SignCodec : SignCode {
  using Statistics = std::tuple<Norm>;

  KOKKOS_FUNCTION void set_scales(const double* statistics, double count, float* floats) const {
    floats[0] = Norm::magnitude(statistics[0], count);
  }
};

}  // namespace onebit::compress
