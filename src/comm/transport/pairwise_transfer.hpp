#pragma once
/// \file pairwise_transfer.hpp
/// Messages between all pairs of ranks, sent range by range while the caller computes the next range.

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/mpi.hpp"
#include "comm/overlap/event.hpp"
#include "comm/transport/pairwise.hpp"
#include "comm/transport/transport.hpp"

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

/// On a GPU nobody waits for the kernels that write a message: an event says when a range can be sent, and copies run
/// beside the kernels of the next range.
template <class Exec>
class PairwiseTransfer final : public Transfer<Exec> {
public:
  using typename Transfer<Exec>::Words;

  /// Posts the receives. \param tag of its messages \param memory no other transfer uses it
  /// \param bytes gets the bytes that are sent
  PairwiseTransfer(const Communicator& communicator, std::size_t message_bytes, int tag, bool staged,
                   std::shared_ptr<TransferMemory<Exec>> memory, const Words& received,
                   const std::vector<Range>& ranges, std::uint64_t& bytes);

  void send(const Exec& exec, int rank, const Words& message) override;
  void post() override;
  void receive(const Exec& exec, int rank) override;
  void finish() override;

private:
  /// A range for MPI, ready at the event of the same number.
  struct Part {
    int rank;
    const std::uint32_t* words;
    std::size_t bytes;
  };
  static std::size_t bytes_of(const Range& range) { return (range.end - range.begin) * sizeof(std::uint32_t); }
  /// Hands the next part to MPI.
  void post_next();

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
