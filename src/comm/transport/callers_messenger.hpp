#pragma once
/// \file callers_messenger.hpp
/// Messages that the caller of the library carries (comm/library/compressed_allreduce.hpp), where MPI connects no
/// ranks.

#include <utility>

#include "comm/library/compressed_allreduce.hpp"
#include "comm/transport/transport.hpp"

namespace onebit::comm {

template <class Exec>
class CallersMessenger final : public Messenger<Exec> {
public:
  using typename Messenger<Exec>::Words;

  explicit CallersMessenger(CallersTransport transport)
      : Messenger<Exec>(transport.rank, transport.ranks), m_transport(std::move(transport)) {}

  void all_to_all(const Exec& exec, const Words& send, const Words& received) override {
    const Region region("OneBit::comm::all_to_all", waits_for_ranks);
    fence(exec, "OneBit::comm::before_exchange");
    m_transport.all_to_all(send.data(), received.data(), send.extent(0) / this->m_ranks * sizeof(std::uint32_t));
    this->count_all_to_all(send.extent(0));
  }
  void all_gather(const Exec& exec, const Words& send, const Words& received) override {
    const Region region("OneBit::comm::all_gather", waits_for_ranks);
    fence(exec, "OneBit::comm::before_exchange");
    m_transport.all_gather(send.data(), received.data(), send.extent(0) * sizeof(std::uint32_t));
    this->count_all_gather(send.extent(0));
  }

  bool overlaps() const override { return false; }

private:
  CallersTransport m_transport;
};

}  // namespace onebit::comm
