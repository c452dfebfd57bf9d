#pragma once
/// \file power_codec.hpp
/// The compressor of docs/develop/extending.md: powers of two (after Horváth et al., *Natural Compression*, 2019),
/// rounded to the nearest, as error feedback carries what is lost.

#include "compress/codecs.hpp"

namespace onebit::compress {

/// With M = max |c_j| of the group, c_j becomes the nearest of ±M, ±M/2, …, ±M/64 and 0: bit 0 of the code is its sign,
/// the others are the power, 7 for 0.
struct PowerCodec {
  using Code = PowerCodec;
  using Statistics = std::tuple<GreatestMagnitude>;
  static constexpr int scales = 1, planes = 4;
  static constexpr bool codes_before_scales = false, by_columns = false;

  struct Values {
    float greatest;
  };

  KOKKOS_FUNCTION void set_scales(const double* statistics, double, float* floats) const {
    floats[0] = static_cast<float>(statistics[0]);
  }
  KOKKOS_FUNCTION Values values(const std::uint32_t* words) const { return {as_float(words[0])}; }
  KOKKOS_FUNCTION std::uint32_t encode(const Values& values, float c) const {
    const float magnitude = c < 0 ? -c : c;
    float value = values.greatest;
    std::uint32_t power = 0;
    for (; power < 7 && magnitude < (power < 6 ? 0.75f : 0.5f) * value; ++power) value *= 0.5f;
    return power << 1 | static_cast<std::uint32_t>(c < 0);
  }
  KOKKOS_FUNCTION float decode(const Values& values, std::uint32_t code) const {
    if (code >> 1 == 7) return 0.0f;
    const float value = values.greatest / static_cast<float>(1u << (code >> 1));
    return (code & 1u) != 0 ? -value : value;
  }
};

}  // namespace onebit::compress
