#pragma once
/// \file codecs.hpp
/// The codecs of compressor.hpp: what the kernels of the one pipeline (codec_compressor.hpp) differ in. A codec names
///
/// - `Statistics`: what is taken over a group of c, one reduction each (a term for each element, and its `Join`);
/// - `scales`, `planes`: floats of a group, and bits of an element, in a message;
/// - `codes_before_scales`: whether `encode` reads no values, so that codes are known before the scales;
/// - `set_scales(statistics, count, scales)`: the floats of a group of `count` > 0 elements;
/// - `values(words)`: what encode and decode need of a group, from its floats as a message holds them;
/// - `encode(values, c)`, `decode(values, code)`: one element.
///
/// A kernel subtracts what `decode` returns. It is never a float product, which compilers may fuse with the subtraction
/// into one rounding where the receiver, who has only the product, has two.

#include <cmath>
#include <tuple>

#include "base/kokkos.hpp"
#include "base/parallel.hpp"
#include "compress/float_bits.hpp"

namespace onebit::compress {

/// Σ |c| of a group, for `sign` and `sign_ternary`, and the magnitude that it gives of `count` elements: their mean.
struct SumOfMagnitudes {
  using Join = Sum;
  KOKKOS_FUNCTION float operator()(float c) const { return c < 0 ? -c : c; }
  KOKKOS_FUNCTION static float magnitude(double sum, double count) { return static_cast<float>(sum / count); }
};
/// Σ c² of a group, and the root of its mean.
struct SumOfSquares {
  using Join = Sum;
  /// Squares in double are exact, so the sum is the same whether or not a compiler fuses multiply and add.
  KOKKOS_FUNCTION double operator()(float c) const { return static_cast<double>(c) * static_cast<double>(c); }
  KOKKOS_FUNCTION static float magnitude(double sum, double count) {
    return static_cast<float>(math::sqrt(sum / count));
  }
};

/// Σ of the negative elements of a group, for `column`.
struct SumOfNegatives {
  using Join = Sum;
  KOKKOS_FUNCTION float operator()(float c) const { return c < 0 ? c : 0.0f; }
};
/// Σ of the others.
struct SumOfOthers {
  using Join = Sum;
  KOKKOS_FUNCTION float operator()(float c) const { return c < 0 ? 0.0f : c; }
};
/// How many are negative.
struct CountOfNegatives {
  using Join = Sum;
  KOKKOS_FUNCTION double operator()(float c) const { return c < 0 ? 1.0 : 0.0; }
};
/// How many are not zero, for `sign_ternary`.
struct CountOfNonzeros {
  using Join = Sum;
  KOKKOS_FUNCTION double operator()(float c) const { return c != 0 ? 1.0 : 0.0; }
};

/// A term of `Maximum`, which passes over NaN: NaN enters as infinity, and spoils its group as it does with sums. −0
/// enters as +0, because neither is greater and the order would tell.
KOKKOS_INLINE_FUNCTION float term_of_maximum(float c) { return c == c ? c + 0.0f : INFINITY; }
/// Maximum of a group, for `column`.
struct Greatest {
  using Join = Maximum;
  KOKKOS_FUNCTION float operator()(float c) const { return term_of_maximum(c); }
};
/// Minus its minimum.
struct MinusLeast {
  using Join = Maximum;
  KOKKOS_FUNCTION float operator()(float c) const { return term_of_maximum(-c); }
};
/// Its greatest magnitude, for `nbit`.
struct GreatestMagnitude {
  using Join = Maximum;
  KOKKOS_FUNCTION float operator()(float c) const { return term_of_maximum(c < 0 ? -c : c); }
};

/// `sign`; code 1 for c ≥ 0.
template <class Norm>
struct SignCodec {
  using Statistics = std::tuple<Norm>;
  static constexpr int scales = 1, planes = 1;
  static constexpr bool codes_before_scales = true;

  struct Values {
    float scale;
  };

  KOKKOS_FUNCTION void set_scales(const double* statistics, double count, float* floats) const {
    floats[0] = Norm::magnitude(statistics[0], count);
  }
  KOKKOS_FUNCTION Values values(const std::uint32_t* words) const { return {as_float(words[0])}; }
  KOKKOS_FUNCTION std::uint32_t encode(const Values&, float c) const { return c >= 0; }
  KOKKOS_FUNCTION float decode(const Values& values, std::uint32_t code) const {
    return code != 0 ? values.scale : -values.scale;
  }
};

/// `sign_ternary`; plane 0 is 1 for c ≠ 0, plane 1 for c > 0.
template <class Norm>
struct TernaryCodec {
  using Statistics = std::tuple<Norm, CountOfNonzeros>;
  static constexpr int scales = 1, planes = 2;
  static constexpr bool codes_before_scales = true;

  struct Values {
    float scale;
  };

  KOKKOS_FUNCTION void set_scales(const double* statistics, double, float* floats) const {
    floats[0] = statistics[1] > 0 ? Norm::magnitude(statistics[0], statistics[1]) : 0.0f;
  }
  KOKKOS_FUNCTION Values values(const std::uint32_t* words) const { return {as_float(words[0])}; }
  KOKKOS_FUNCTION std::uint32_t encode(const Values&, float c) const {
    return static_cast<std::uint32_t>(c != 0) | static_cast<std::uint32_t>(c > 0) << 1;
  }
  KOKKOS_FUNCTION float decode(const Values& values, std::uint32_t code) const {
    const float signed_scale = (code & 2u) != 0 ? values.scale : -values.scale;
    return (code & 1u) != 0 ? signed_scale : 0.0f;
  }
};

/// What the two reconstructions of `column` share; code 1 for what is not negative.
struct TwoValues {
  static constexpr int scales = 2, planes = 1;
  static constexpr bool codes_before_scales = true;

  struct Values {
    float low, high;
  };

  KOKKOS_FUNCTION Values values(const std::uint32_t* words) const { return {as_float(words[0]), as_float(words[1])}; }
  KOKKOS_FUNCTION std::uint32_t encode(const Values&, float c) const { return !(c < 0); }
  KOKKOS_FUNCTION float decode(const Values& values, std::uint32_t code) const {
    return code != 0 ? values.high : values.low;
  }
};

/// `column` with the means of its negative and of its other elements, 0 where there are none.
struct ColumnMeanCodec : TwoValues {
  using Statistics = std::tuple<SumOfNegatives, SumOfOthers, CountOfNegatives>;

  KOKKOS_FUNCTION void set_scales(const double* statistics, double count, float* floats) const {
    const double negatives = statistics[2], others = count - negatives;
    floats[0] = negatives > 0 ? static_cast<float>(statistics[0] / negatives) : 0.0f;
    floats[1] = others > 0 ? static_cast<float>(statistics[1] / others) : 0.0f;
  }
};

/// `column` with the values a quarter and three quarters of the way from least to greatest.
struct ColumnRangeCodec : TwoValues {
  using Statistics = std::tuple<MinusLeast, Greatest>;

  /// Both products are exact in double, so a fused multiply and add rounds like two operations.
  KOKKOS_FUNCTION void set_scales(const double* statistics, double, float* floats) const {
    const double least = -statistics[0], greatest = statistics[1];
    floats[0] = static_cast<float>(0.75 * least + 0.25 * greatest);
    floats[1] = static_cast<float>(0.25 * least + 0.75 * greatest);
  }
};

/// `nbit`; the code is q + s for the step q from −s to s.
struct NBitCodec {
  using Statistics = std::tuple<GreatestMagnitude>;
  static constexpr int scales = 1;
  static constexpr bool codes_before_scales = false;
  int planes;
  int levels;  ///< s = 2^(planes−1) − 1

  explicit NBitCodec(int bits) : planes(bits), levels((1 << (bits - 1)) - 1) {}

  struct Values {
    double step, steps_per_unit;
  };

  KOKKOS_FUNCTION void set_scales(const double* statistics, double, float* floats) const {
    floats[0] = static_cast<float>(statistics[0]);
  }
  KOKKOS_FUNCTION Values values(const std::uint32_t* words) const {
    const double greatest = as_float(words[0]);
    return {greatest / levels, greatest > 0 ? levels / greatest : 0.0};
  }
  KOKKOS_FUNCTION std::uint32_t encode(const Values& values, float c) const {
    const double q = math::nearbyint(c * values.steps_per_unit);
    return static_cast<std::uint32_t>((q == q ? static_cast<int>(q) : 0) + levels);  // NaN: M is infinite
  }
  KOKKOS_FUNCTION float decode(const Values& values, std::uint32_t code) const {
    return static_cast<float>((static_cast<int>(code) - levels) * values.step);
  }
};

}  // namespace onebit::compress
