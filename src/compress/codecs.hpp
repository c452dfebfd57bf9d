#pragma once
/// \file codecs.hpp
/// The other codecs, and the table of compressors. sign.hpp says what a codec is.

#include <tuple>
#include <type_traits>

#include "base/choices.hpp"
#include "compress/sign.hpp"

namespace onebit::compress {

/// Σ of the negative elements of a group.
struct SumOfNegatives {
  using Join = Sum;
  KOKKOS_FUNCTION float operator()(float c) const { return c < 0 ? c : 0.0f; }
};
/// Σ of the other elements.
struct SumOfOthers {
  using Join = Sum;
  KOKKOS_FUNCTION float operator()(float c) const { return c < 0 ? 0.0f : c; }
};
/// Number of negative elements.
struct CountOfNegatives {
  using Join = Sum;
  KOKKOS_FUNCTION double operator()(float c) const { return c < 0 ? 1.0 : 0.0; }
};
/// Number of elements that are not zero.
struct CountOfNonzeros {
  using Join = Sum;
  KOKKOS_FUNCTION double operator()(float c) const { return c != 0 ? 1.0 : 0.0; }
};

/// A term of `Maximum`, which ignores NaN: NaN enters as infinity and spoils its group, as it does in a sum. −0 enters
/// as +0, because neither is greater than the other and the result would depend on their order.
KOKKOS_INLINE_FUNCTION float term_of_maximum(float c) { return c == c ? c + 0.0f : INFINITY; }
/// Maximum of a group.
struct Greatest {
  using Join = Maximum;
  KOKKOS_FUNCTION float operator()(float c) const { return term_of_maximum(c); }
};
/// Minus the minimum.
struct MinusLeast {
  using Join = Maximum;
  KOKKOS_FUNCTION float operator()(float c) const { return term_of_maximum(-c); }
};
/// Greatest magnitude.
struct GreatestMagnitude {
  using Join = Maximum;
  KOKKOS_FUNCTION float operator()(float c) const { return term_of_maximum(c < 0 ? -c : c); }
};

/// `sign_ternary`: 0 where c = 0, else ±s, where s counts the elements that are not 0. Plane 0 is 1 for c ≠ 0, plane 1
/// for c > 0.
struct TernaryCode {
  using Code = TernaryCode;
  static constexpr int scales = 1, planes = 2;
  static constexpr bool codes_before_scales = true, by_columns = false;

  struct Values {
    float scale;
  };

  KOKKOS_FUNCTION Values values(const std::uint32_t* words) const { return {as_float(words[0])}; }
  KOKKOS_FUNCTION std::uint32_t encode(const Values&, float c) const {
    return static_cast<std::uint32_t>(c != 0) | static_cast<std::uint32_t>(c > 0) << 1;
  }
  KOKKOS_FUNCTION float decode(const Values& values, std::uint32_t code) const {
    const float signed_scale = (code & 2u) != 0 ? values.scale : -values.scale;
    return (code & 1u) != 0 ? signed_scale : 0.0f;
  }
};
template <class Norm>
struct TernaryCodec : TernaryCode {
  using Statistics = std::tuple<Norm, CountOfNonzeros>;

  KOKKOS_FUNCTION void set_scales(const double* statistics, double, float* floats) const {
    floats[0] = statistics[1] > 0 ? Norm::magnitude(statistics[0], statistics[1]) : 0.0f;
  }
};

/// `column`: one of the column's two values, by c < 0 (Seide et al. 2014, CNTK).
struct ColumnCode {
  using Code = ColumnCode;
  static constexpr int scales = 2, planes = 1;
  static constexpr bool codes_before_scales = true, by_columns = true;

  struct Values {
    float low, high;
  };

  KOKKOS_FUNCTION Values values(const std::uint32_t* words) const { return {as_float(words[0]), as_float(words[1])}; }
  KOKKOS_FUNCTION std::uint32_t encode(const Values&, float c) const { return !(c < 0); }
  KOKKOS_FUNCTION float decode(const Values& values, std::uint32_t code) const {
    return code != 0 ? values.high : values.low;
  }
};
/// The values are the means of the negative and of the other elements, or 0 where there are none.
struct ColumnMeanCodec : ColumnCode {
  using Statistics = std::tuple<SumOfNegatives, SumOfOthers, CountOfNegatives>;

  KOKKOS_FUNCTION void set_scales(const double* statistics, double count, float* floats) const {
    const double negatives = statistics[2], others = count - negatives;
    floats[0] = negatives > 0 ? static_cast<float>(statistics[0] / negatives) : 0.0f;
    floats[1] = others > 0 ? static_cast<float>(statistics[1] / others) : 0.0f;
  }
};
/// The values lie a quarter and three quarters of the way from the least to the greatest element.
struct ColumnRangeCodec : ColumnCode {
  using Statistics = std::tuple<MinusLeast, Greatest>;

  KOKKOS_FUNCTION void set_scales(const double* statistics, double, float* floats) const {
    const double least = -statistics[0], greatest = statistics[1];
    floats[0] = static_cast<float>(0.75 * least + 0.25 * greatest);
    floats[1] = static_cast<float>(0.25 * least + 0.75 * greatest);
  }
};

/// A codec whose only scale is max|c|, and whose codes stand for numbers up to a greatest one.
struct GreatestCodec {
  using Statistics = std::tuple<GreatestMagnitude>;
  static constexpr int scales = 1;
  static constexpr bool codes_before_scales = false, by_columns = false;

  struct Values {
    double unit, units;  ///< what the number 1 stands for, and its reciprocal
  };

  KOKKOS_FUNCTION void set_scales(const double* statistics, double, float* floats) const {
    floats[0] = static_cast<float>(statistics[0]);
  }
  /// Of a group in which `number` stands for max|c|.
  KOKKOS_FUNCTION static Values values_up_to(double number, const std::uint32_t* words) {
    const double greatest = as_float(words[0]);
    return {greatest / number, greatest > 0 ? number / greatest : 0.0};
  }
};

/// `nbit`: the nearest of q · max|c| / s for integers q from −s to s, s = 2^(bits−1) − 1 (the grid of QSGD, Alistarh et
/// al. 2017). The code is q + s.
struct NBitCodec : GreatestCodec {
  using Code = NBitCodec;
  int planes;
  int levels;  ///< s

  explicit NBitCodec(int bits) : planes(bits), levels((1 << (bits - 1)) - 1) {}

  KOKKOS_FUNCTION Values values(const std::uint32_t* words) const { return values_up_to(levels, words); }
  KOKKOS_FUNCTION std::uint32_t encode(const Values& values, float c) const {
    const double q = math::nearbyint(c * values.units);
    return static_cast<std::uint32_t>((q == q ? static_cast<int>(q) : 0) + levels);  // NaN: max|c| is infinite
  }
  KOKKOS_FUNCTION float decode(const Values& values, std::uint32_t code) const {
    return static_cast<float>((static_cast<int>(code) - levels) * values.unit);
  }
};

/// `fp8`: the nearest of v · max|c| / 448 for v of the format e4m3 (Micikevicius et al. 2022, arXiv 2209.05433): a
/// sign, 4 bits of exponent and 3 of mantissa, the greatest number 448. Halves go to the even code.
struct Fp8Codec : GreatestCodec {
  using Code = Fp8Codec;
  static constexpr int planes = 8;
  static constexpr double greatest_number = 448;
  static constexpr int least_exponent = -6;  ///< of a number that has a leading 1
  static constexpr int mantissa_bits = 3;

  KOKKOS_FUNCTION Values values(const std::uint32_t* words) const { return values_up_to(greatest_number, words); }
  /// Below the sign: the distance between neighbours is 2^(exponent − 3), and a number's code is the count of the
  /// numbers between 0 and it, of which each exponent but the least adds 8. Rounding up to the next power of two is
  /// carried by the sum.
  KOKKOS_FUNCTION std::uint32_t encode(const Values& values, float c) const {
    const float v = static_cast<float>(c * values.units);
    if (!(v == v)) return 0;  // max|c| is infinite, and so is what 0 stands for
    const std::uint32_t bits = as_bits(v);
    const int exponent = static_cast<int>(bits >> 23 & 255u) - 127;
    const int above_least = exponent > least_exponent ? exponent - least_exponent : 0;
    const float per_distance = power_of_two(mantissa_bits - least_exponent - above_least);
    const float magnitude = v < 0 ? -v : v;
    const std::uint32_t code =
        static_cast<std::uint32_t>(math::nearbyint(magnitude * per_distance)) + (above_least << mantissa_bits);
    return code | (v < 0 ? 128u : 0u);
  }
  KOKKOS_FUNCTION float decode(const Values& values, std::uint32_t code) const {
    const int magnitude = static_cast<int>(code & 127u), above_least = magnitude < 16 ? 0 : (magnitude >> 3) - 1;
    const float v = static_cast<float>(magnitude - (above_least << mantissa_bits)) *
                    power_of_two(least_exponent + above_least - mantissa_bits);
    return static_cast<float>(((code & 128u) != 0 ? -v : v) * values.unit);
  }

private:
  /// 2^k of a normal number.
  KOKKOS_FUNCTION static float power_of_two(int k) { return as_float(static_cast<std::uint32_t>(k + 127) << 23); }
};

/// What a vector is compressed with.
struct Options {
  CompressorKind kind = CompressorKind::sign;
  Scale scale = Scale::l1;
  int bits = 4;  ///< 2 to 16
  Reconstruction reconstruction = Reconstruction::mean;
};

/// A compressor with one codec.
template <CompressorKind of_kind, class Codec>
struct OneCodec {
  static constexpr CompressorKind kind = of_kind;
  using Code = typename Codec::Code;
  template <class F>
  static void visit(const Options& options, const F& f) {
    if constexpr (std::is_constructible_v<Codec, int>)
      f(Codec(options.bits));
    else
      f(Codec());
  }
};
/// A compressor with two codecs for the same code. The two values of an option choose between them.
template <CompressorKind of_kind, auto option, class First, class Second>
struct TwoCodecs {
  static constexpr CompressorKind kind = of_kind;
  using Code = typename First::Code;
  template <class F>
  static void visit(const Options& options, const F& f) {
    static_cast<int>(options.*option) == 0 ? f(First()) : f(Second());
  }
};

template <class... Lines>
struct Table {
  static constexpr std::size_t size = sizeof...(Lines);
  /// Calls f with the line of a kind; `none` has no line.
  template <class F>
  static void visit(CompressorKind kind, const F& f) {
    ((kind == Lines::kind ? f(Lines()) : void()), ...);
  }
};

// clang-format off
/// The table of compressors.
using Compressors = Table<
    TwoCodecs<CompressorKind::sign, &Options::scale, SignCodec<SumOfMagnitudes>, SignCodec<SumOfSquares>>,
    TwoCodecs<CompressorKind::sign_ternary, &Options::scale, TernaryCodec<SumOfMagnitudes>, TernaryCodec<SumOfSquares>>,
    TwoCodecs<CompressorKind::column, &Options::reconstruction, ColumnMeanCodec, ColumnRangeCodec>,
    OneCodec<CompressorKind::nbit, NBitCodec>,
    OneCodec<CompressorKind::fp8, Fp8Codec>>;
// clang-format on
static_assert(Compressors::size == names(CompressorKind()).size() - 1, "each compressor but `none` needs its line");

/// Bits of a compressor's codes.
inline int planes(const Options& options) {
  int planes = 0;
  Compressors::visit(options.kind,
                     [&](auto line) { line.visit(options, [&](const auto& codec) { planes = codec.planes; }); });
  return planes;
}

/// True where a compressor's groups are columns of matrices.
inline bool by_columns(CompressorKind kind) {
  bool columns = false;
  Compressors::visit(kind, [&](auto line) { columns = decltype(line)::Code::by_columns; });
  return columns;
}

}  // namespace onebit::compress
