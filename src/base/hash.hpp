#pragma once
/// \file hash.hpp
/// The hash of an array of 64-bit words: Σ mix(word_i ⊕ mix(i + 1)) modulo 2⁶⁴. Threads and ranks may add up terms in
/// any order. `mix` is a bijection, so a change of one word always changes the sum.

#include <cstdint>
#include <cstdio>
#include <string>

#include "base/kokkos.hpp"

namespace onebit {

/// The finaliser of MurmurHash3: every bit of the argument changes about half of the bits of the result.
KOKKOS_INLINE_FUNCTION std::uint64_t mix(std::uint64_t h) {
  h = (h ^ (h >> 33)) * 0xff51afd7ed558ccdull;
  h = (h ^ (h >> 33)) * 0xc4ceb9fe1a85ec53ull;
  return h ^ (h >> 33);
}

/// The term of word `place`, counted from 0.
KOKKOS_INLINE_FUNCTION std::uint64_t hash_term(std::uint64_t word, std::uint64_t place) {
  return mix(word ^ mix(place + 1));
}

/// A hash as text: 16 hexadecimal digits.
inline std::string hex(std::uint64_t hash) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

}  // namespace onebit
