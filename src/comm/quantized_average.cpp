#include "comm/quantized_average.hpp"

#include "base/device/parallel.hpp"

namespace onebit::comm {
namespace {

/// The same memory as words, which a transport exchanges.
template <class Exec>
Vector<Exec, std::uint32_t> as_words(const Vector<Exec, float>& values) {
  return Vector<Exec, std::uint32_t>(reinterpret_cast<std::uint32_t*>(values.data()), values.extent(0));
}

}  // namespace

template <class Exec>
QuantizedAverage<Exec>::QuantizedAverage(Transport<Exec>& transport, std::size_t length, int bits, std::uint64_t seed)
    : m_transport(transport),
      m_seed(seed),
      m_quantizer(length, transport.ranks(), bits),
      m_send("OneBit::comm::quantized_send", transport.ranks() * m_quantizer.message_words()),
      m_received("OneBit::comm::quantized_received", transport.ranks() * m_quantizer.message_words()),
      m_mean("OneBit::comm::quantized_mean", m_quantizer.chunk_length()),
      m_means("OneBit::comm::quantized_means", transport.ranks() * m_quantizer.chunk_length()) {}

template <class Exec>
void QuantizedAverage<Exec>::operator()(const Exec& exec, const Vector<Exec, float>& v, long step, PhaseTimes& times) {
  const Region region("OneBit::comm::quantized_average");
  const int ranks = m_transport.ranks();
  const bool alone = ranks == 1;
  Stopwatch watch;
  const auto end_of = [&](Phase phase) {
    fence(exec, "OneBit::comm::end_of_phase");
    times.add(phase, watch.restart());
  };
  m_quantizer.quantize(exec, v, {m_seed, step, m_transport.rank()}, m_send);
  end_of(Phase::compress);
  if (!alone) m_transport.all_to_all(exec, m_send, m_received);
  end_of(Phase::all_to_all);
  m_quantizer.average_chunk(exec, ranks, alone ? m_send : m_received, m_mean);
  end_of(Phase::average);
  if (!alone) m_transport.all_gather(exec, as_words<Exec>(m_mean), as_words<Exec>(m_means));
  end_of(Phase::all_gather);
  Kokkos::deep_copy(exec, v, Kokkos::subview(alone ? m_mean : m_means, std::make_pair(std::size_t{0}, v.extent(0))));
  end_of(Phase::update);
}

#define ONEBIT_INSTANTIATE(Exec) template class QuantizedAverage<Exec>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::comm
