#pragma once
/// \file reference.hpp
/// The fixed summation tree of parallel.hpp in plain loops and the roundings of sixteen_bits.hpp in double: the
/// definitions that the kernels are tested against.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/device/parallel.hpp"

namespace onebit {

/// The sum of a block: term i is added to lane i % 32 in its own type. Then the lanes are added in double by halving.
template <class Term>
double block_sum_ref(const std::vector<Term>& terms) {
  std::vector<Term> lanes(lane_count, Term(0));
  for (std::size_t i = 0; i < terms.size(); ++i) lanes[i % lane_count] += terms[i];
  std::vector<double> tree(lanes.begin(), lanes.end());
  for (std::size_t half = tree.size() / 2; half > 0; half /= 2)
    for (std::size_t lane = 0; lane < half; ++lane) tree[lane] += tree[lane + half];
  return tree[0];
}

/// The sums of blocks of 1024 terms.
template <class Term>
std::vector<double> block_sums_ref(const std::vector<Term>& terms) {
  std::vector<double> blocks;
  for (std::size_t begin = 0; begin < terms.size(); begin += block_length) {
    const std::size_t end = begin + block_length < terms.size() ? begin + block_length : terms.size();
    blocks.push_back(block_sum_ref(std::vector<Term>(terms.begin() + begin, terms.begin() + end)));
  }
  return blocks;
}

/// The sum of a vector: the sums of blocks of 1024 terms, the sums of blocks of 1024 of these, and those added as one
/// block.
template <class Term>
double ordered_sum_ref(const std::vector<Term>& terms) {
  return block_sum_ref(block_sums_ref(block_sums_ref(terms)));
}

/// A binary floating-point type of IEEE 754's form, with its values in double.
struct FloatTypeRef {
  int exponent_bits, fraction_bits;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  double greatest() const { return std::ldexp(2 - std::ldexp(1.0, -fraction_bits), bias()); }
  double infinity() const { return std::numeric_limits<double>::infinity(); }

  /// The value of these bits.
  double value(std::uint32_t bits) const {
    const std::uint32_t fraction = bits % (1u << fraction_bits), exponent = bits >> fraction_bits & (2u * bias() + 1u);
    const double sign = bits >> (fraction_bits + exponent_bits) != 0 ? -1 : 1;
    if (exponent == 2u * bias() + 1u)
      return fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * infinity();
    const double significand = fraction + (exponent > 0 ? std::ldexp(1.0, fraction_bits) : 0.0);
    const int least = std::max(1, static_cast<int>(exponent));
    return sign * std::ldexp(significand, least - bias() - fraction_bits);
  }
  /// The distance between the neighbours of a number of this magnitude.
  double unit(double magnitude) const {
    return std::ldexp(1.0, std::max(magnitude > 0 ? std::ilogb(magnitude) : -2000, 1 - bias()) - fraction_bits);
  }
  /// The nearest number, ties to even.
  double nearest(double value) const {
    if (!std::isfinite(value)) return value;
    const double u = unit(std::fabs(value)), rounded = std::nearbyint(value / u) * u;
    return std::fabs(rounded) > greatest() ? std::copysign(infinity(), value) : rounded;
  }
};
inline constexpr FloatTypeRef float_ref{8, 23}, bfloat16_ref{8, 7}, float16_ref{5, 10};

}  // namespace onebit
