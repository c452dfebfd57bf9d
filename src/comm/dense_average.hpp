#pragma once
/// \file dense_average.hpp
/// Averages over ranks without compression: in float, or sent in 16 bits.

#include <cstdint>

#include "base/choices.hpp"
#include "base/random.hpp"
#include "base/timer.hpp"
#include "comm/transport/transport.hpp"

namespace onebit::comm {

/// values /= ranks; fences.
template <class Exec>
void divide(const Exec& exec, int ranks, const Vector<Exec, float>& values);

/// values ← (1/n) Σ_i values_i in float. One rank alone keeps its values. \param values (any length)
template <class Exec>
void average(const Exec& exec, Transport<Exec>& transport, const Vector<Exec, float>& values, PhaseTimes& times);

/// How dense averages are sent.
struct DenseOptions {
  DenseType type = DenseType::fp32;
  Rounding rounding = Rounding::nearest;  ///< to 16 bits
  std::uint64_t seed = 0;                 ///< of stochastic rounding
};

/// The least magnitude that R makes infinite.
float infinite_from(DenseType type);

/// The random word that rounds an element: word e % 4 of Philox at (⌊e/4⌋; step, sender), e the element.
/// \param sender i + 1 for the vector of rank i, 0 for the average
KOKKOS_INLINE_FUNCTION std::uint32_t rounding_word(std::uint64_t seed, long step, int sender, std::size_t element) {
  const Philox4 random = philox(stream_key(seed, Stream::average_rounding), element / 4,
                                static_cast<std::uint64_t>(step) << 32 | static_cast<std::uint32_t>(sender));
  return random.word[element % 4];
}

/// The average of gradients and momenta. In float it is `average`. In 16 bits, R the rounding:
///
/// 1. Rank i: chunk k of R(x_i) goes to rank k (all-to-all).
/// 2. Rank k: a = (1/n) Σ_i R(x_i)_k, added in float in rank order.
/// 3. R(a) goes to all ranks (all-gather).
///
/// Chunks have 32 ⌈⌈length/32⌉ / n⌉ elements, so a rank sends (n−1) · 2 of them in 2 bytes each. One rank alone sends
/// nothing but rounds. Where averages are hierarchical, the ranks of a host average in float first, its rank l gets
/// shard l, and the hosts take the places of the ranks. All ranks get the same bits, which depend on neither the
/// chunks nor on how a vector is cut into calls. All of its time counts as `Phase::allreduce`.
template <class Exec>
class DenseAverage {
public:
  explicit DenseAverage(Transport<Exec>& transport, const DenseOptions& options = {})
      : m_transport(transport), m_options(options) {}

  /// Begins step t: each step draws its own numbers to round by.
  void begin_step(long step) { m_step = step; }
  /// values ← their average; complete when the call returns.
  /// \param first place of the first element in the whole vector, a multiple of 32
  void operator()(const Exec& exec, const Vector<Exec, float>& values, PhaseTimes& times, std::size_t first = 0);

  Transport<Exec>& transport() const { return m_transport; }

private:
  using Numbers = Vector<Exec, std::uint16_t>;

  /// \tparam Round a rounding to numbers of 16 bits
  template <class Round>
  void average_in_16_bits(const Exec& exec, const Vector<Exec, float>& values, std::size_t first);
  /// Steps 1 to 3 for `values`; R(a) is then in `m_sent`.
  template <class Round>
  void exchange(const Exec& exec, Transport<Exec>& across, const Vector<Exec, float>& values, std::size_t first);

  Transport<Exec>& m_transport;
  DenseOptions m_options;
  long m_step = 0;
  // Kept for the next call; they grow to the longest vector.
  Numbers m_sent, m_received;  ///< (chunks) R(x_i) by receiver, and then R(a); R(x_i)_k by sender
  Numbers m_average;           ///< (chunk) R(a) of this rank
  Numbers m_shards;            ///< (ranks of the host * longest shard) R(a); hierarchical
};

}  // namespace onebit::comm
