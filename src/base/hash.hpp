#pragma once
/// \file hash.hpp
/// Hashes as sums: Σ mix(word ^ mix(place)) over the words of an array, modulo 2⁶⁴. The order of adding does not matter,
/// so threads and ranks may each add up a share; and because `mix` is a bijection, the sum changes with any one word.

#include <cstdint>

#include "base/kokkos.hpp"

namespace onebit {

/// The finaliser of MurmurHash3: every bit of the argument changes about half of the result's.
KOKKOS_INLINE_FUNCTION std::uint64_t mix(std::uint64_t h) {
  h = (h ^ (h >> 33)) * 0xff51afd7ed558ccdull;
  h = (h ^ (h >> 33)) * 0xc4ceb9fe1a85ec53ull;
  return h ^ (h >> 33);
}

/// The term of the word at `place`, counted from 0.
KOKKOS_INLINE_FUNCTION std::uint64_t hash_term(std::uint64_t word, std::uint64_t place) {
  return mix(word ^ mix(place + 1));
}

}  // namespace onebit
