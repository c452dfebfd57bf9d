#include "comm/average_halves.hpp"

#include <utility>

namespace onebit::comm {

template <class Exec>
CompressedReduceScatter<Exec>::CompressedReduceScatter(Transport<Exec>& transport, Compressor compressor,
                                                       bool error_feedback)
    : m_transport(transport),
      m_compressor(std::move(compressor)),
      m_error_feedback(error_feedback),
      m_feedback(m_compressor->no_feedback(0, transport.ranks())),
      m_send("OneBit::comm::send", transport.ranks() * m_compressor->message_words()),
      m_received("OneBit::comm::received", transport.ranks() * m_compressor->message_words()) {}

template <class Exec>
void CompressedReduceScatter<Exec>::operator()(const Exec& exec, const Vector<Exec, float>& x,
                                               const Vector<Exec, float>& chunk, PhaseTimes& times,
                                               float residual_factor) {
  const Region region("OneBit::comm::compressed_reduce_scatter");
  const int ranks = m_transport.ranks();
  Stopwatch watch;
  if (!m_error_feedback) compress::clear(exec, m_feedback);
  m_compressor->compress(exec, {0, ranks, x, m_feedback, m_send, {}, {}, residual_factor});
  fence(exec, "OneBit::comm::compressed");
  times.add(Phase::compress, watch.restart());
  if (ranks == 1)
    Kokkos::deep_copy(exec, m_received, m_send);
  else
    m_transport.all_to_all(exec, m_send, m_received);
  times.add(Phase::all_to_all, watch.restart());
  m_compressor->average(exec, m_transport.rank(), {ranks, m_received}, chunk);
  fence(exec, "OneBit::comm::averaged");
  times.add(Phase::average, watch.seconds());
}

template <class Exec>
Vector<Exec, float> CompressedReduceScatter<Exec>::residual(const Exec& exec) const {
  return compress::residual(exec, *m_compressor, 0, m_transport.ranks(), m_feedback);
}

template <class Exec>
void CompressedReduceScatter<Exec>::set_residual(const Exec& exec, const Vector<Exec, const float>& residual) {
  compress::set_residual(exec, residual, m_feedback);
}

template <class Exec>
CompressedAllGather<Exec>::CompressedAllGather(Transport<Exec>& transport, Compressor compressor, bool error_feedback)
    : m_transport(transport),
      m_compressor(std::move(compressor)),
      m_error_feedback(error_feedback),
      m_feedback(m_compressor->no_feedback(transport.rank(), 1)),
      m_own("OneBit::comm::own_message", m_compressor->message_words()),
      m_gathered("OneBit::comm::gathered_chunks", transport.ranks() * m_compressor->message_words()) {}

template <class Exec>
void CompressedAllGather<Exec>::operator()(const Exec& exec, const Vector<Exec, float>& chunk, PhaseTimes& times) {
  const Region region("OneBit::comm::compressed_all_gather");
  Stopwatch watch;
  if (!m_error_feedback) compress::clear(exec, m_feedback);
  m_compressor->compress(exec, {m_transport.rank(), 1, chunk, m_feedback, m_own});
  fence(exec, "OneBit::comm::compressed_chunk");
  times.add(Phase::average, watch.restart());
  if (m_transport.ranks() == 1)
    Kokkos::deep_copy(exec, m_gathered, m_own);
  else
    m_transport.all_gather(exec, m_own, m_gathered);
  fence(exec, "OneBit::comm::gathered_chunks");
  times.add(Phase::all_gather, watch.seconds());
}

template <class Exec>
Vector<Exec, float> CompressedAllGather<Exec>::residual(const Exec& exec) const {
  return compress::residual(exec, *m_compressor, m_transport.rank(), 1, m_feedback);
}

template <class Exec>
void CompressedAllGather<Exec>::set_residual(const Exec& exec, const Vector<Exec, const float>& residual) {
  compress::set_residual(exec, residual, m_feedback);
}

#define ONEBIT_INSTANTIATE(Exec)                \
  template class CompressedReduceScatter<Exec>; \
  template class CompressedAllGather<Exec>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::comm
