#pragma once
/// \file allreduce.hpp
/// Averages over ranks: dense, and compressed to one or a few bits an element with error feedback on both sides
/// (Tang et al., ICML 2021, Section 5, the three phases of the compressed allreduce).

#include <memory>
#include <utility>

#include "base/timer.hpp"
#include "comm/transport.hpp"
#include "compress/compressor.hpp"

namespace onebit::comm {

/// values ← (1/n) Σ_i values_i. \param values (any length)
template <class Exec>
void average(const Exec& exec, Transport<Exec>& transport, int ranks, const Vector<Exec, float>& values,
             PhaseTimes& times);

/// x ← CA(x): the average of all ranks' vectors as it travels compressed.
///
/// 1. c_i = x_i + δ_i; δ_i ← c_i − C(c_i); chunk k of C(c_i) goes to rank k (all-to-all).
/// 2. Rank k: a = (1/n) Σ_i C(c_i)_k + δ̄_k, in rank order; δ̄_k ← a − C(a).
/// 3. All-gather of C(a); every rank decompresses the same bits.
/// With one rank nothing travels, but both compressions take place.
template <class Exec>
class CompressedAllreduce {
public:
  /// \param layout of the vectors, with as many chunks as there are ranks
  /// \param error_feedback false drops both residuals: δ_i = δ̄_k = 0 at the begin of every call
  CompressedAllreduce(Transport<Exec>& transport, int rank, const compress::Layout& layout,
                      const compress::Options& options, bool error_feedback = true);

  /// \param x (length) this rank's vector, then the average
  void operator()(const Exec& exec, const Vector<Exec, float>& x, PhaseTimes& times);

  /// δ_i (length) and δ̄_k (chunk length, padding 0): what the last call's compressions lost; zero at first.
  const Vector<Exec, float>& worker_residual() const { return m_worker_residual; }
  const Vector<Exec, float>& server_residual() const { return m_server_residual; }
  /// Takes δ_i and δ̄_k from a checkpoint. \param worker (length) \param server (chunk length), padding 0
  void set_residuals(const Exec& exec, const Vector<Exec, const float>& worker,
                     const Vector<Exec, const float>& server);
  /// The range [first, second) of the vector that is this rank's chunk.
  std::pair<std::size_t, std::size_t> chunk() const;

private:
  using Words = Vector<Exec, std::uint32_t>;

  Transport<Exec>& m_transport;
  int m_rank;
  bool m_error_feedback;
  std::unique_ptr<const compress::Compressor<Exec>> m_compressor;
  Vector<Exec, float> m_worker_residual, m_server_residual, m_mean;
  Words m_send, m_received, m_recompressed;
};

}  // namespace onebit::comm
