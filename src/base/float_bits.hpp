#pragma once
/// \file float_bits.hpp
/// Floats as words of 32 bits.

#include <cstdint>
#include <cstring>

#include "base/kokkos.hpp"

namespace onebit {

/// The float that has these bits.
KOKKOS_INLINE_FUNCTION float as_float(std::uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
/// The bits of a float.
KOKKOS_INLINE_FUNCTION std::uint32_t as_bits(float value) {
  std::uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

}  // namespace onebit
