#include "comm/transport/pairwise_transfer.hpp"

#include <utility>

namespace onebit::comm {

template <class Exec>
PairwiseTransfer<Exec>::PairwiseTransfer(const Communicator& communicator, std::size_t message_bytes, int tag,
                                         bool staged, std::shared_ptr<TransferMemory<Exec>> memory,
                                         const Words& received, const std::vector<Range>& ranges, std::uint64_t& bytes)
    : m_ranks(communicator.size()),
      m_rank(communicator.rank()),
      m_staged(staged),
      m_message_words(received.extent(0) / m_ranks),
      m_memory(std::move(memory)),
      m_received(received),
      m_ranges(ranges),
      m_next_range(m_ranks, 0),
      m_sends(communicator, message_bytes, tag),
      m_receives(m_ranks, Messages(communicator, message_bytes, tag)),
      m_bytes(bytes) {
  if (staged && m_memory->send.extent(0) < received.extent(0))
    for (auto* const words : {&m_memory->send, &m_memory->received})
      *words = typename TransferMemory<Exec>::HostWords(
          Kokkos::view_alloc("OneBit::comm::staged_messages", Kokkos::WithoutInitializing), received.extent(0));
  std::uint32_t* const to = staged ? m_memory->received.data() : received.data();
  for (const Range& range : ranges)
    for (int distance = 1; distance < m_ranks; ++distance) {
      const int from = (m_rank + distance) % m_ranks;
      m_receives[from].receive(from, to + from * m_message_words + range.begin, bytes_of(range));
    }
}

template <class Exec>
void PairwiseTransfer<Exec>::send(const Exec& exec, int rank, const Words& message) {
  const Range range = m_ranges[m_next_range[rank]++];
  if (range.begin == range.end) return;
  if (m_memory->is_ready.size() == m_parts.size()) m_memory->is_ready.emplace_back();
  Event<Exec>& is_ready = m_memory->is_ready[m_parts.size()];
  is_ready.record(exec);
  const std::uint32_t* words = message.data() + range.begin;
  if (m_staged) {
    const std::size_t to = rank * m_message_words;
    const auto staged = Kokkos::subview(m_memory->send, std::make_pair(to + range.begin, to + range.end));
    const Exec& copies = m_memory->copies.get();
    is_ready.hold(copies);
    Kokkos::deep_copy(copies, staged, Kokkos::subview(message, std::make_pair(range.begin, range.end)));
    is_ready.record(copies);
    words = staged.data();
  }
  m_parts.push_back({rank, words, bytes_of(range)});
  while (m_posted < m_parts.size() && m_memory->is_ready[m_posted].has_happened()) post_next();
}

template <class Exec>
void PairwiseTransfer<Exec>::post() {
  while (m_posted < m_parts.size()) {
    m_memory->is_ready[m_posted].wait();
    post_next();
  }
}

template <class Exec>
void PairwiseTransfer<Exec>::post_next() {
  const Part& part = m_parts[m_posted++];
  m_sends.send(part.rank, part.words, part.bytes);
  m_bytes += part.bytes;
}

template <class Exec>
void PairwiseTransfer<Exec>::receive(const Exec& exec, int rank) {
  post();
  m_receives[rank].wait();
  if (!m_staged) return;
  const auto range = std::make_pair(rank * m_message_words, (rank + 1) * m_message_words);
  const Exec& copies = m_memory->copies.get();
  Kokkos::deep_copy(copies, Kokkos::subview(m_received, range), Kokkos::subview(m_memory->received, range));
  m_memory->has_arrived.record(copies);
  m_memory->has_arrived.hold(exec);
}

template <class Exec>
void PairwiseTransfer<Exec>::finish() {
  post();
  m_sends.wait();
  if (m_staged) fence(m_memory->copies.get(), "OneBit::comm::unstaged");
}

#define ONEBIT_INSTANTIATE(Exec) template class PairwiseTransfer<Exec>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::comm
