#pragma once
/// \file random.hpp
/// Counter-based random numbers: Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC
/// 2011. The number at (key, counter) is the same on every rank, thread and backend, so data, initial parameters and
/// dropout masks do not depend on how the work is divided.

#include <cstdint>

#include "base/kokkos.hpp"

namespace onebit {

/// Use of a stream of random numbers. It is part of the key, so that no two uses share numbers.
enum class Stream : std::uint32_t {
  initial_parameters = 1,
  data = 2,
  dropout = 3,
  noise = 4,
  validation = 5,
  variance_rounding = 6,
  synthetic = 7,
  gradient_rounding = 8,
  gradient_pruning = 9,
  votes = 11,
  latents = 12,
  features = 13
};

/// Four 32-bit words.
struct Philox4 {
  std::uint32_t word[4];
};

/// Philox4x32-10 of a 64-bit key and a 128-bit counter.
KOKKOS_INLINE_FUNCTION Philox4 philox(std::uint64_t key, std::uint64_t counter_low, std::uint64_t counter_high) {
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  Philox4 c{{static_cast<std::uint32_t>(counter_low), static_cast<std::uint32_t>(counter_low >> 32),
             static_cast<std::uint32_t>(counter_high), static_cast<std::uint32_t>(counter_high >> 32)}};
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c.word[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * c.word[2];
    c = {{static_cast<std::uint32_t>(p1 >> 32) ^ c.word[1] ^ k0, static_cast<std::uint32_t>(p1),
          static_cast<std::uint32_t>(p0 >> 32) ^ c.word[3] ^ k1, static_cast<std::uint32_t>(p0)}};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

/// Key of a stream in a run with this seed.
KOKKOS_INLINE_FUNCTION std::uint64_t stream_key(std::uint64_t seed, Stream stream) {
  return seed * 0x9E3779B97F4A7C15ull + static_cast<std::uint64_t>(stream);
}

/// Uniform in [0, 1), a multiple of 2^-24.
KOKKOS_INLINE_FUNCTION float uniform(std::uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

/// Standard normal from two words (Box and Muller 1958).
KOKKOS_INLINE_FUNCTION float normal(std::uint32_t first, std::uint32_t second) {
  const float radius = math::sqrt(-2.0f * math::log((static_cast<float>(first >> 8) + 1.0f) * 0x1p-24f));
  return radius * math::cos(6.283185307179586f * uniform(second));
}

}  // namespace onebit
