#pragma once
/// \file quantized_average.hpp
/// The average over ranks of non-negative vectors that are sent with a few bits an element, once and without error
/// feedback: how `adam_nbit_variance` averages its variance.

#include "base/timer.hpp"
#include "comm/transport.hpp"
#include "compress/quantize.hpp"

namespace onebit::comm {

/// v ← (1/n) Σ_i Q(v_i), Q the stochastic quantiser of compress/quantize.hpp.
///
/// 1. Chunk k of Q(v_i) goes to rank k (all-to-all).
/// 2. Rank k averages in float in rank order.
/// 3. All-gather of the averages as float32: every rank gets the same bits.
/// So a rank hands over (n−1) · 4 (⌈W/16⌉ + bits · W) and (n−1) · 128 W bytes, W = ⌈⌈length/32⌉ / n⌉. With one rank
/// nothing travels, but the vector is quantised.
template <class Exec>
class QuantizedAverage {
public:
  /// \param bits of an element, 1 to 16
  /// \param seed of the rounding
  QuantizedAverage(Transport<Exec>& transport, int rank, int ranks, std::size_t length, int bits, std::uint64_t seed);

  /// \param v    (length) this rank's vector, then the average
  /// \param step t: each step rounds by numbers of its own
  void operator()(const Exec& exec, const Vector<Exec, float>& v, long step, PhaseTimes& times);

private:
  using Words = Vector<Exec, std::uint32_t>;

  Transport<Exec>& m_transport;
  int m_rank, m_ranks;
  std::uint64_t m_seed;
  compress::Quantizer<Exec> m_quantizer;
  Words m_send, m_received;
  Vector<Exec, float> m_mean, m_means;  ///< of this rank's chunk, and of all
};

}  // namespace onebit::comm
