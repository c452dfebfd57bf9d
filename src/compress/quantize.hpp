#pragma once
/// \file quantize.hpp
/// Non-negative vectors in a few bits an element with stochastic rounding (QSGD, Alistarh et al., NeurIPS 2017, Section
/// 3.1, with the largest element of a block in the place of the 2-norm), for the variance of `adam_nbit_variance`.
///
/// With L = 2^bits − 1 and M the largest element of a block, v becomes q = ⌊v/M · L + u⌋, u uniform in [0, 1), and
/// stands for q/L · M: v on average over u. In a block of zeros q = 0.

#include <cstddef>
#include <cstdint>

#include "base/kokkos.hpp"
#include "base/random.hpp"

namespace onebit::compress {

/// Elements that share one M, counted from the start of each chunk; the last block of a chunk may be shorter.
inline constexpr std::size_t quantizer_block = 512;

/// The random numbers of one call: u of element i is word i % 4 of Philox at (i / 4; step, rank).
struct RoundingKey {
  std::uint64_t seed;
  long step;
  int rank;

  /// \param four index of four consecutive elements, i / 4
  KOKKOS_FUNCTION Philox4 words(std::size_t four) const {
    return philox(stream_key(seed, Stream::variance_rounding), four,
                  static_cast<std::uint64_t>(step) << 32 | static_cast<std::uint32_t>(rank));
  }
};

/// q of v ≥ 0 in a block with largest element M. v · L is exact in double.
KOKKOS_INLINE_FUNCTION std::uint32_t quantized(float v, float largest, std::uint32_t levels, float u) {
  if (!(largest > 0)) return 0;
  const double level = static_cast<double>(v) * levels / largest + u;
  return level < levels + 1.0 ? static_cast<std::uint32_t>(level) : levels;  // the latter for a v that overflowed
}
/// q/L · M, rounded once.
KOKKOS_INLINE_FUNCTION float dequantized(std::uint32_t q, float largest, std::uint32_t levels) {
  return static_cast<float>(static_cast<double>(q) * largest / levels);
}

/// Quantises a vector that is cut into one chunk for each rank, and averages one chunk of all ranks.
///
/// Chunks are those of `Layout`: 32 W elements, W = ⌈⌈length/32⌉ / chunks⌉. A chunk's message is its blocks' M (float
/// bits) and then bits · W words: element j's q is bits [j · bits, (j+1) · bits) of these, least significant first.
template <class Exec>
class Quantizer {
public:
  using Words = Vector<Exec, std::uint32_t>;

  /// \param bits of an element, 1 to 16
  Quantizer(std::size_t length, int chunks, int bits);

  std::size_t chunk_length() const;
  std::size_t message_words() const { return m_blocks + m_words * m_bits; }

  /// \param v        (length) elements ≥ 0
  /// \param messages (chunks * message_words) of all chunks
  void quantize(const Exec& exec, const Vector<Exec, const float>& v, const RoundingKey& key,
                const Words& messages) const;

  /// mean_j = (1/senders) Σ_i of the senders' values, added in float in their order.
  /// \param messages (senders * message_words) of one chunk
  /// \param mean     (chunk_length); padding is 0
  void average_chunk(const Exec& exec, int senders, const Words& messages, const Vector<Exec, float>& mean) const;

private:
  std::size_t m_length;
  int m_chunks, m_bits;
  std::size_t m_words;   ///< W
  std::size_t m_blocks;  ///< of a chunk
};

}  // namespace onebit::compress
