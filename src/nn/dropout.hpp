#pragma once
/// \file dropout.hpp
/// Dropout without stored masks. A counter-based random number decides on each element; the counter is made of step,
/// global sample, position, channel and site in the model. The backward pass draws the same numbers again, and a mask
/// does not depend on how samples are divided among ranks and batches.

#include <algorithm>
#include <cstdint>

#include "base/device/parallel.hpp"
#include "base/random.hpp"

namespace onebit::nn {

/// Selects the masks of a run (seed), a step and samples [first_sample, first_sample + B) of that step.
struct DropoutKey {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::uint64_t first_sample = 0;
};

/// One call of Philox gives 128 bits, which decide on 8 elements by 16 bits each.
inline constexpr int dropout_decisions = 8;
/// A row consists of blocks of 128 elements. Call 16 b + l decides on elements l, l + 16, …, l + 112 of block b: on the
/// first four by the low halves of its words, on the others by the high halves. So the 16 calls of a block fill the
/// lanes of a vector register, and neighbouring lanes decide on neighbouring elements.
inline constexpr int dropout_calls = 16;
inline constexpr int dropout_block = dropout_calls * dropout_decisions;

/// The mask of one row: element j is multiplied by 0, or by 1 / (1 − probability).
template <class Real>
struct DropoutRow {
  std::uint64_t key;
  std::uint64_t counter_low, counter_high;  ///< of the first call of Philox
  std::uint32_t threshold;                  ///< an element is dropped if its 16-bit number is below
  Real scale;                               ///< of the elements that are kept

  KOKKOS_FORCEINLINE_FUNCTION bool active() const { return threshold > 0; }

  /// The factors that one call decides on; 1 without dropout, and no call.
  KOKKOS_FORCEINLINE_FUNCTION void call_factors(int call, Real (&factors)[dropout_decisions]) const {
    if (!active()) {
      for (int i = 0; i < dropout_decisions; ++i) factors[i] = Real(1);
      return;
    }
    const Philox4 random = philox(key, counter_low + call, counter_high);
    for (int w = 0; w < 4; ++w) {
      factors[w] = factor(random.word[w] & 0xFFFFu);
      factors[w + 4] = factor(random.word[w] >> 16);
    }
  }

  /// The factors of one block.
  KOKKOS_FORCEINLINE_FUNCTION void block_factors(int block, Real (&factors)[dropout_block]) const {
    constexpr int words = 4 * dropout_calls;
    std::uint32_t random[words];
    ONEBIT_IVDEP
    for (int call = 0; call < dropout_calls; ++call) {
      const Philox4 numbers = philox(key, counter_low + block * dropout_calls + call, counter_high);
      for (int w = 0; w < 4; ++w) random[w * dropout_calls + call] = numbers.word[w];
    }
    ONEBIT_IVDEP
    for (int i = 0; i < words; ++i) {
      factors[i] = factor(random[i] & 0xFFFFu);
      factors[i + words] = factor(random[i] >> 16);
    }
  }

private:
  KOKKOS_FORCEINLINE_FUNCTION Real factor(std::uint32_t random) const { return random < threshold ? Real(0) : scale; }
};

/// The masks of one site of the model in one step.
template <class Real>
class Dropout {
public:
  /// Nothing is dropped.
  Dropout() = default;

  /// \param probability of dropping, in [0, 1); rounded to a multiple of 2^-16
  /// \param site        number of the mask in the model, below 65536
  /// \param sequence    T, positions of a sample, at most 65536
  Dropout(Real probability, const DropoutKey& key, int site, int sequence)
      : m_key(stream_key(key.seed, Stream::dropout)),
        m_step(key.step),
        m_first_sample(key.first_sample),
        m_threshold(std::min<std::uint32_t>(static_cast<std::uint32_t>(probability * 65536 + Real(0.5)), 65535)),
        m_scale(Real(65536) / static_cast<Real>(65536 - m_threshold)),
        m_site(site),
        m_sequence(sequence) {}

  KOKKOS_FORCEINLINE_FUNCTION bool active() const { return m_threshold > 0; }

  /// The mask of row r of (B*T).
  KOKKOS_FORCEINLINE_FUNCTION DropoutRow<Real> row(int r) const { return row(r / m_sequence, r % m_sequence, 0, 0); }

  /// The mask of attention's probabilities over `length` keys, for a query position of a head.
  KOKKOS_FORCEINLINE_FUNCTION DropoutRow<Real> row(int sample, int position, int head, int length) const {
    const std::uint32_t first_call = head * ((length + dropout_block - 1) / dropout_block * dropout_calls);
    const std::uint32_t place = static_cast<std::uint32_t>(m_site) << 16 | static_cast<std::uint32_t>(position);
    const std::uint32_t global_sample = static_cast<std::uint32_t>(m_first_sample + sample);
    return {m_key, std::uint64_t{place} << 32 | first_call, m_step << 32 | global_sample, m_threshold, m_scale};
  }

private:
  std::uint64_t m_key = 0, m_step = 0, m_first_sample = 0;
  std::uint32_t m_threshold = 0;
  Real m_scale = 1;
  int m_site = 0, m_sequence = 1;
};

}  // namespace onebit::nn
