#pragma once
/// \file transfer.hpp
/// Messages between all pairs of ranks, sent range by range while the caller computes the next range.

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "base/mpi.hpp"
#include "comm/overlap/event.hpp"
#include "comm/transport/pairwise.hpp"

namespace onebit::comm {

/// What a transport keeps for its next transfer: to allocate pinned memory takes longer than to send it.
template <class Exec>
struct TransferMemory {
  using HostWords = Kokkos::View<std::uint32_t*, Kokkos::LayoutRight, StagingSpace<Exec>>;

  InstanceOfItsOwn<Exec> copies;     ///< between device and host
  HostWords send, received;          ///< (ranks * words) where messages are staged
  std::deque<Event<Exec>> is_ready;  ///< (ranges sent) when a range can be handed to MPI
  Event<Exec> has_arrived;           ///< of the last message that was copied to the device
};

/// An exchange of messages with every other rank, sent range by range: one range travels while the caller computes the
/// next. `Messenger::begin_transfer` makes it. Until `finish` returns MPI uses the memory of the messages, so a failure
/// before ends the run.
///
/// On a GPU nobody waits for the kernels that write a message: an event says when a range can be sent, and copies run
/// beside the kernels of the next range.
template <class Exec>
class Transfer {
public:
  using Words = Vector<Exec, std::uint32_t>;

  /// Posts the receives. \param tag of its messages \param memory no other transfer uses it
  /// \param bytes gets the bytes that are sent
  Transfer(const Communicator& communicator, std::size_t message_bytes, int tag, bool staged,
           std::shared_ptr<TransferMemory<Exec>> memory, const Words& received, const std::vector<Range>& ranges,
           std::uint64_t& bytes)
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

  /// Sends the next range of the message to `rank` once the work that `exec` has got is done; does not wait for it.
  /// \param message stays unchanged there until `finish` returns
  void send(const Exec& exec, int rank, const Words& message) {
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

  /// Returns when all that `send` was given is on its way. To be called before another transfer sends.
  void post() {
    while (m_posted < m_parts.size()) {
      m_memory->is_ready[m_posted].wait();
      post_next();
    }
  }

  /// Waits for the whole message of `rank`; to be called once for each other rank. What `exec` gets afterwards sees it.
  void receive(const Exec& exec, int rank) {
    post();
    m_receives[rank].wait();
    if (!m_staged) return;
    const auto range = std::make_pair(rank * m_message_words, (rank + 1) * m_message_words);
    const Exec& copies = m_memory->copies.get();
    Kokkos::deep_copy(copies, Kokkos::subview(m_received, range), Kokkos::subview(m_memory->received, range));
    m_memory->has_arrived.record(copies);
    m_memory->has_arrived.hold(exec);
  }

  /// Waits for all sends, and until nothing uses the memory of the transfer.
  void finish() {
    post();
    m_sends.wait();
    if (m_staged) fence(m_memory->copies.get(), "OneBit::comm::unstaged");
  }

private:
  /// A range for MPI, ready at the event of the same number.
  struct Part {
    int rank;
    const std::uint32_t* words;
    std::size_t bytes;
  };
  static std::size_t bytes_of(const Range& range) { return range.length() * sizeof(std::uint32_t); }
  /// Hands the next part to MPI.
  void post_next() {
    const Part& part = m_parts[m_posted++];
    m_sends.send(part.rank, part.words, part.bytes);
    m_bytes += part.bytes;
  }

  int m_ranks, m_rank;
  bool m_staged;
  std::size_t m_message_words;
  std::shared_ptr<TransferMemory<Exec>> m_memory;
  Words m_received;
  std::vector<Range> m_ranges;
  std::vector<std::size_t> m_next_range;  ///< (ranks) index of the range that `send` takes next
  std::vector<Part> m_parts;              ///< that `send` took
  std::size_t m_posted = 0;               ///< number of them that MPI has
  Messages m_sends;
  std::vector<Messages> m_receives;  ///< (ranks)
  std::uint64_t& m_bytes;
};

}  // namespace onebit::comm
