#pragma once
/// \file forwarding.hpp
/// What the transports that combine others have in common.

#include <utility>

#include "comm/transport/transport.hpp"

namespace onebit::comm {

/// A transport between all ranks that leaves every call to another one. A class that derives from it overrides the
/// calls that go another way.
template <class Exec>
class ForwardingTransport : public Transport<Exec> {
public:
  using typename Transport<Exec>::Words;

  void all_to_all(const Exec& exec, const Words& send, const Words& received) override {
    m_world->all_to_all(exec, send, received);
  }
  void all_gather(const Exec& exec, const Words& send, const Words& received) override {
    m_world->all_gather(exec, send, received);
  }
  void allreduce(const Exec& exec, const Vector<Exec, float>& values) override { m_world->allreduce(exec, values); }
  void reduce_scatter(const Exec& exec, const Vector<Exec, float>& values,
                      const std::vector<std::size_t>& begins) override {
    m_world->reduce_scatter(exec, values, begins);
  }
  void exchange_ranges(const Exec& exec, const Vector<Exec, float>& values, const std::vector<Range>& sent,
                       const std::vector<Range>& received, std::uint64_t Traffic::*counter) override {
    m_world->exchange_ranges(exec, values, sent, received, counter);
  }
  void free_sums() override { m_world->free_sums(); }
  bool overlaps() const override { return m_world->overlaps(); }
  std::unique_ptr<Transfer<Exec>> begin_transfer(const Words& received, const std::vector<Range>& ranges,
                                                 std::uint64_t Traffic::*counter) override {
    return m_world->begin_transfer(received, ranges, counter);
  }
  TransportKind kind() const override { return m_world->kind(); }
  Traffic traffic() const override { return m_world->traffic(); }

protected:
  ForwardingTransport(const Communicator& communicator, std::unique_ptr<Transport<Exec>> world)
      : Transport<Exec>(communicator), m_world(std::move(world)) {
    this->m_device_support = m_world->device_support();
  }

  std::unique_ptr<Transport<Exec>> m_world;
};

}  // namespace onebit::comm
