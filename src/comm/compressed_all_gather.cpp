#include "comm/compressed_all_gather.hpp"

#include <utility>

namespace onebit::comm {

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

#define ONEBIT_INSTANTIATE(Exec) template class CompressedAllGather<Exec>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::comm
