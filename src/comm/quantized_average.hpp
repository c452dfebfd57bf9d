#pragma once
/// \file quantized_average.hpp
/// The average over ranks of non-negative vectors, sent with a few bits an element and without error feedback:
/// `adam_nbit_variance` averages its variance with it.

#include "base/timer.hpp"
#include "comm/transport/transport.hpp"
#include "compress/quantize.hpp"

namespace onebit::comm {

/// v ← (1/n) Σ_i Q(v_i), Q the stochastic quantiser of compress/quantize.hpp.
///
/// 1. Chunk k of Q(v_i) goes to rank k (all-to-all).
/// 2. Rank k averages in float in rank order.
/// 3. The averages go to all ranks as float32 (all-gather).
/// A rank sends (n−1) · 4 (⌈W/16⌉ + bits · W) and (n−1) · 128 W bytes, W = ⌈⌈length/32⌉ / n⌉. One rank alone sends
/// nothing, but still quantises.
template <class Exec>
class QuantizedAverage {
public:
  /// \param bits of an element, 1 to 16
  /// \param seed of the rounding
  QuantizedAverage(Transport<Exec>& transport, std::size_t length, int bits, std::uint64_t seed);

  /// \param v    (length) this rank's vector, then the average
  /// \param step t; each step draws its own numbers to round by
  void operator()(const Exec& exec, const Vector<Exec, float>& v, long step, PhaseTimes& times);

private:
  using Words = Vector<Exec, std::uint32_t>;

  Transport<Exec>& m_transport;
  std::uint64_t m_seed;
  compress::Quantizer<Exec> m_quantizer;
  Words m_send, m_received;
  Vector<Exec, float> m_mean, m_means;  ///< (chunk), (ranks * chunk)
};

}  // namespace onebit::comm
