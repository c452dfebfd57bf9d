#pragma once
/// \file compressed_all_gather.hpp
/// The second half of the compressed average (compressed_average.hpp) by itself, for chunks that are no average.

#include <memory>

#include "base/timer.hpp"
#include "comm/transport/transport.hpp"
#include "compress/compressor.hpp"

namespace onebit::comm {

/// All ranks get the chunks of all ranks, sent in compressed form: c = chunk + ε, C(c) goes to all (all-gather),
/// ε ← c − C(c).
template <class Exec>
class CompressedAllGather {
public:
  using Compressor = std::shared_ptr<const compress::Compressor<Exec>>;

  /// \param compressor with one chunk for each rank of the transport
  /// \param error_feedback false sets ε to 0 before every call
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
