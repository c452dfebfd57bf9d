/// \file allreduce.cpp
/// See allreduce.hpp.

#include "comm/allreduce.hpp"

#include "base/parallel.hpp"

namespace onebit::comm {

template <class Exec>
void average(const Exec& exec, Transport<Exec>& transport, int ranks, const Vector<Exec, float>& values,
             PhaseTimes& times) {
  if (ranks == 1) return;
  const Stopwatch watch;
  transport.allreduce(exec, values);
  const float n = static_cast<float>(ranks);
  for_each(
      exec, "OneBit::comm::average", values.extent(0), KOKKOS_LAMBDA(std::size_t i) { values(i) /= n; });
  fence(exec, "OneBit::comm::average");
  times.add(Phase::allreduce, watch.seconds());
}

template <class Exec>
CompressedAllreduce<Exec>::CompressedAllreduce(Transport<Exec>& transport, int rank, const compress::Layout& layout,
                                               const compress::Options& options, bool error_feedback)
    : m_transport(transport),
      m_rank(rank),
      m_error_feedback(error_feedback),
      m_compressor(compress::make_compressor<Exec>(layout, options)),
      m_worker_residual("OneBit::comm::worker_residual", layout.length),
      m_server_residual("OneBit::comm::server_residual", layout.chunk_length()),
      m_mean("OneBit::comm::mean", layout.chunk_length()),
      m_send("OneBit::comm::send", layout.chunks * m_compressor->message_words()),
      m_received("OneBit::comm::received", layout.chunks * m_compressor->message_words()),
      m_recompressed("OneBit::comm::recompressed", m_compressor->message_words()) {}

template <class Exec>
void CompressedAllreduce<Exec>::operator()(const Exec& exec, const Vector<Exec, float>& x, PhaseTimes& times) {
  const Region region("OneBit::comm::compressed_allreduce");
  const int ranks = m_compressor->layout().chunks;
  Stopwatch watch;
  const auto end_of = [&](Phase phase) {
    fence(exec, "OneBit::comm::end_of_phase");
    times.add(phase, watch.restart());
  };

  if (!m_error_feedback) {
    Kokkos::deep_copy(exec, m_worker_residual, 0.0f);
    Kokkos::deep_copy(exec, m_server_residual, 0.0f);
  }
  m_compressor->compress(exec, 0, ranks, x, m_worker_residual, m_send);
  end_of(Phase::compress);
  const bool alone = ranks == 1;
  if (!alone) m_transport.all_to_all(exec, m_send, m_received);
  end_of(Phase::all_to_all);
  m_compressor->average_chunk(exec, m_rank, ranks, alone ? m_send : m_received, m_mean);
  m_compressor->compress(exec, m_rank, 1, m_mean, m_server_residual, m_recompressed);
  end_of(Phase::average);
  if (!alone) m_transport.all_gather(exec, m_recompressed, m_received);
  end_of(Phase::all_gather);
  m_compressor->decompress_all(exec, alone ? m_recompressed : m_received, x);
  end_of(Phase::update);
}

template <class Exec>
void CompressedAllreduce<Exec>::set_residuals(const Exec& exec, const Vector<Exec, const float>& worker,
                                              const Vector<Exec, const float>& server) {
  Kokkos::deep_copy(exec, m_worker_residual, worker);
  Kokkos::deep_copy(exec, m_server_residual, server);
  fence(exec, "OneBit::comm::set_residuals");
}

template <class Exec>
std::pair<std::size_t, std::size_t> CompressedAllreduce<Exec>::chunk() const {
  const auto& begins = m_compressor->layout().chunk_begins;
  return {begins[m_rank], begins[m_rank + 1]};
}

#define ONEBIT_INSTANTIATE(Exec)                                                                      \
  template void average(const Exec&, Transport<Exec>&, int, const Vector<Exec, float>&, PhaseTimes&); \
  template class CompressedAllreduce<Exec>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::comm
