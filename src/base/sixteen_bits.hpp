#pragma once
/// \file sixteen_bits.hpp
/// Floats in 16 bits: bfloat16 and IEEE 754's binary16, here called fp16. Rounding works on the bits of a float, so all
/// backends compute the same, and fp16's subnormal numbers are exact although subnormal floats count as 0.

#include <cstdint>

#include "base/float_bits.hpp"

namespace onebit {

/// The upper 16 bits of a float: 8 significant bits.
struct Bfloat16 {
  static constexpr std::uint32_t infinity = 0x7F80u;

  /// To nearest, ties to even; NaN stays NaN.
  KOKKOS_FORCEINLINE_FUNCTION static std::uint16_t nearest(float value) {
    const std::uint32_t bits = as_bits(value);
    const std::uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16, quiet_nan = bits >> 16 | 0x40u;
    return static_cast<std::uint16_t>(value == value ? rounded : quiet_nan);
  }
  KOKKOS_FORCEINLINE_FUNCTION static float widened(std::uint16_t bits) { return as_float(std::uint32_t{bits} << 16); }
};

/// IEEE 754's binary16: 11 significant bits, numbers up to 65504, subnormal ones that are multiples of 2^-24.
struct Float16 {
  static constexpr std::uint32_t infinity = 0x7C00u;

  /// To nearest, ties to even; to infinity from 65520 on; NaN stays NaN.
  KOKKOS_FORCEINLINE_FUNCTION static std::uint16_t nearest(float value) {
    constexpr std::uint32_t least_normal = 0x38800000u, beyond_all = 0x47800000u;  // 2^-14 and 2^16
    const std::uint32_t bits = as_bits(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
    // From 1/2 to 1 floats are multiples of 2^-24, as fp16's subnormal numbers are.
    const std::uint32_t small = as_bits(as_float(magnitude) + 0.5f) - as_bits(0.5f);
    const std::uint32_t normal = (magnitude - (112u << 23) + 0xFFFu + (magnitude >> 13 & 1u)) >> 13;
    const std::uint32_t rounded = magnitude < least_normal ? small : magnitude < beyond_all ? normal : infinity;
    return static_cast<std::uint16_t>(sign | (value == value ? rounded : infinity | 0x200u));
  }
  KOKKOS_FORCEINLINE_FUNCTION static float widened(std::uint16_t bits) {
    const std::uint32_t sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7FFFu;
    const std::uint32_t small = as_bits(static_cast<float>(magnitude) * 0x1p-24f);
    const std::uint32_t special = 0x7F800000u | magnitude << 13, normal = (magnitude << 13) + (112u << 23);
    return as_float(sign | (magnitude < 0x400u ? small : magnitude < infinity ? normal : special));
  }
};

}  // namespace onebit
