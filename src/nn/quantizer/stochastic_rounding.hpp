#pragma once
/// \file stochastic_rounding.hpp
/// The random numbers of quantised gradients, and stochastic rounding to b bits. A group is a row or a column of a
/// gradient, or some rows, which round by numbers of their own. A counter-based random number decides on each element
/// of a row or column; the counter is made of step, first sample, layer, product, row or column, and element. So a
/// number does not depend on which groups are drawn, nor on threads.

#include <cstdint>

#include "base/random.hpp"

namespace onebit::nn {

/// Selects the numbers of a run (seed), a step, a batch (its first sample) and a layer (below 16384).
struct QuantizerKey {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::uint64_t first_sample = 0;
  int layer = 0;
};

/// The two products of a backward pass that read quantised gradients.
enum class GradientProduct : std::uint32_t { input = 0, weight = 1 };

/// One call of Philox gives 128 bits, which round 8 elements by 16 bits each.
inline constexpr int octet = 8;
/// Most elements of a row or column: a call has 16 bits.
inline constexpr int largest_group = 65536 * octet;
/// Most bits of a code.
inline constexpr int most_code_bits = 8;

/// The numbers of one use of one product.
class GradientDraws {
public:
  GradientDraws() = default;
  GradientDraws(const QuantizerKey& key, GradientProduct product, Stream stream)
      : m_key(stream_key(key.seed, stream)),
        m_high(key.step << 32 | static_cast<std::uint32_t>(key.first_sample)),
        m_place((2 * static_cast<std::uint32_t>(key.layer) + static_cast<std::uint32_t>(product)) << 16) {}

  /// Rounds elements [8 call, 8 call + 8) of a row or column: the first four by the low halves of the words, the others
  /// by the high halves.
  KOKKOS_FORCEINLINE_FUNCTION Philox4 operator()(std::uint32_t line, std::uint32_t call) const {
    return philox(m_key, std::uint64_t{line} << 32 | (m_place | call), m_high);
  }

  /// Decides whether a group is kept: uniform in (0, 1).
  double decision(std::uint32_t group) const { return ((*this)(group, 0).word[0] + 0.5) * 0x1p-32; }

private:
  std::uint64_t m_key = 0, m_high = 0;
  std::uint32_t m_place = 0;
};

/// The 16 bits of a call that round its element w.
KOKKOS_FORCEINLINE_FUNCTION std::uint32_t rounding_number(const Philox4& random, int w) {
  return w < 4 ? random.word[w] & 0xFFFFu : random.word[w - 4] >> 16;
}

/// q = min(B, ⌊(g − Z) B/R + U⌋) with U = (n + ½) / 2^16. The code is 0 where g − Z is NaN, and where `factor` is 0.
/// \param factor B/R, or 0 for a group without range
/// \param levels B
template <class Real>
KOKKOS_FORCEINLINE_FUNCTION std::uint32_t rounded(Real g, Real Z, Real factor, Real levels, std::uint32_t n) {
  const Real u = (g - Z) * factor + (static_cast<Real>(static_cast<int>(n)) + Real(0.5)) * Real(0x1p-16);
  const Real positive = u > Real(0) ? u : Real(0);
  return static_cast<std::uint32_t>(static_cast<int>(positive < levels ? positive : levels));
}

/// From 8 codes, one in each byte, to bytes of planes: bit e of byte p is bit p of byte e (Warren, Hacker's Delight,
/// Section 7-3).
KOKKOS_FORCEINLINE_FUNCTION std::uint64_t plane_bytes(std::uint64_t codes) {
  std::uint64_t moved = (codes ^ codes >> 7) & 0x00AA00AA00AA00AAu;
  codes ^= moved ^ moved << 7;
  moved = (codes ^ codes >> 14) & 0x0000CCCC0000CCCCu;
  codes ^= moved ^ moved << 14;
  moved = (codes ^ codes >> 28) & 0x00000000F0F0F0F0u;
  return codes ^ moved ^ moved << 28;
}

}  // namespace onebit::nn
