#pragma once
/// \file dense_average.hpp
/// Averages over ranks without compression: in float, or sent in 16 bits.

#include <cstdint>

#include "base/choices.hpp"
#include "base/timer.hpp"
#include "comm/transport/transport.hpp"

namespace onebit::comm {

/// values /= ranks; fences.
template <class Exec>
void divide(const Exec& exec, int ranks, const Vector<Exec, float>& values);

/// values ← (1/n) Σ_i values_i in float. One rank alone keeps its values. \param values (any length)
template <class Exec>
void average(const Exec& exec, Transport<Exec>& transport, const Vector<Exec, float>& values, PhaseTimes& times);

/// The least magnitude that R makes infinite.
float infinite_from(DenseType type);

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
  explicit DenseAverage(Transport<Exec>& transport, DenseType type = DenseType::fp32)
      : m_transport(transport), m_type(type) {}

  /// values ← their average; complete when the call returns.
  void operator()(const Exec& exec, const Vector<Exec, float>& values, PhaseTimes& times);

private:
  using Numbers = Vector<Exec, std::uint16_t>;

  /// \tparam Type numbers of 16 bits
  template <class Type>
  void average_in_16_bits(const Exec& exec, const Vector<Exec, float>& values);
  /// Steps 1 to 3 for `values`; R(a) is then in `m_sent`.
  template <class Type>
  void exchange(const Exec& exec, Transport<Exec>& across, const Vector<Exec, float>& values);

  Transport<Exec>& m_transport;
  DenseType m_type;
  // Kept for the next call; they grow to the longest vector.
  Numbers m_sent, m_received;  ///< (chunks) R(x_i) by receiver, and then R(a); R(x_i)_k by sender
  Numbers m_average;           ///< (chunk) R(a) of this rank
  Numbers m_shards;            ///< (ranks of the host * longest shard) R(a); hierarchical
};

}  // namespace onebit::comm
