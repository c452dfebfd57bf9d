#pragma once
/// \file average_halves.hpp
/// The two halves of the compressed allreduce (allreduce.hpp) by themselves, for a server that does more with a chunk
/// than to average it. Both leave `Phase` times as the allreduce does.

#include <memory>

#include "base/timer.hpp"
#include "comm/transport/transport.hpp"
#include "compress/compressor.hpp"

namespace onebit::comm {

/// Rank k gets chunk k of the average of all ranks' vectors, sent in compressed form: c_i = x_i + f δ_i, chunk k of
/// C(c_i) goes to rank k (all-to-all), δ_i ← c_i − C(c_i).
template <class Exec>
class CompressedReduceScatter {
public:
  using Compressor = std::shared_ptr<const compress::Compressor<Exec>>;

  /// \param compressor with one chunk for each rank of the transport
  /// \param error_feedback false sets δ_i to 0 before every call
  CompressedReduceScatter(Transport<Exec>& transport, Compressor compressor, bool error_feedback);

  /// chunk ← (1/n) Σ_i C(c_i)_k, added in rank order.
  /// \param x (length) \param chunk (elements of chunk k) may be a part of x \param residual_factor f
  void operator()(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& chunk, PhaseTimes& times,
                  float residual_factor);

  /// δ_i (length) after the last call; 0 at first.
  Vector<Exec, float> residual(const Exec& exec) const;
  double residual_l2(const Exec& exec) const {
    return m_compressor->residual_l2(exec, 0, m_transport.ranks(), m_feedback);
  }
  /// Sets δ_i of the next call.
  void set_residual(const Exec& exec, const Vector<Exec, const float>& residual);

private:
  using Words = Vector<Exec, std::uint32_t>;

  Transport<Exec>& m_transport;
  Compressor m_compressor;
  bool m_error_feedback;
  compress::Feedback<Exec> m_feedback;
  Words m_send, m_received;  ///< (chunks * message) C(c_i) by destination, C(c_i)_k by sender
};

/// All ranks get the chunks of all ranks, sent in compressed form: c = chunk + ε, C(c) goes to all (all-gather),
/// ε ← c − C(c).
template <class Exec>
class CompressedAllGather {
public:
  using Compressor = std::shared_ptr<const compress::Compressor<Exec>>;

  /// As for CompressedReduceScatter.
  CompressedAllGather(Transport<Exec>& transport, Compressor compressor, bool error_feedback);

  /// \param chunk (elements of this rank's chunk)
  void operator()(const Exec& exec, const Vector<Exec, float>& chunk, PhaseTimes& times);
  /// Of the C(c) of all chunks.
  compress::AnyDecoder<Exec> decoder() const { return m_compressor->decoder(m_gathered); }

  /// ε (elements of the chunk) after the last call; 0 at first.
  Vector<Exec, float> residual(const Exec& exec) const;
  double residual_l2(const Exec& exec) const {
    return m_compressor->residual_l2(exec, m_transport.rank(), 1, m_feedback);
  }
  /// Sets ε of the next call.
  void set_residual(const Exec& exec, const Vector<Exec, const float>& residual);

private:
  using Words = Vector<Exec, std::uint32_t>;

  Transport<Exec>& m_transport;
  Compressor m_compressor;
  bool m_error_feedback;
  compress::Feedback<Exec> m_feedback;
  Words m_own, m_gathered;  ///< (message) C(c) of this rank, (chunks * message) of all
};

}  // namespace onebit::comm
