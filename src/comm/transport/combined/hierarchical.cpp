#include "comm/transport/combined/hierarchical.hpp"

#include <algorithm>
#include <optional>

#include "base/error.hpp"
#include "comm/transport/combined/forwarding.hpp"
#include "compress/layout.hpp"

namespace onebit::comm {
namespace {

template <class Exec>
class HierarchicalTransport final : public ForwardingTransport<Exec> {
public:
  HierarchicalTransport(TransportKind kind, const Communicator& world, int host, Exchange exchange)
      : ForwardingTransport<Exec>(world, make_transport<Exec>(kind, world, exchange)),
        m_local_ranks(world, host, world.rank()),
        m_across_ranks(world, m_local_ranks.rank(), host) {
    // All ranks learn of a fault that only some hosts have, so that none waits for them.
    world.collectively([&] {
      // MPI libraries copy long messages once through shared memory, short ones twice.
      m_local = make_transport<Exec>(kind, m_local_ranks, {std::size_t{1} << 20});
    });
    world.collectively([&] { m_across = make_transport<Exec>(kind, m_across_ranks, exchange); });
    m_hosts.emplace(Hosts<Exec>{*m_local, *m_across});
  }

  void allreduce(const Exec& exec, const Vector<Exec, float>& values) override {
    const std::vector<std::size_t> begins = compress::equal_chunks(values.extent(0), m_local->ranks());
    const int own = m_local->rank();
    m_local->reduce_scatter(exec, values, begins);
    m_across->allreduce(exec, Kokkos::subview(values, std::make_pair(begins[own], begins[own + 1])));
    m_local->all_gather(exec, values, begins);
  }
  const Hosts<Exec>* hosts() const override { return &*m_hosts; }
  Traffic traffic() const override {
    Traffic sum = this->m_world->traffic();
    return sum += m_across->traffic();
  }
  Traffic traffic_within_host() const override { return m_local->traffic(); }

private:
  Communicator m_local_ranks, m_across_ranks;
  std::unique_ptr<Transport<Exec>> m_local, m_across;
  std::optional<Hosts<Exec>> m_hosts;
};

}  // namespace

std::map<int, std::vector<int>> ranks_by_host(const std::vector<int>& hosts) {
  std::map<int, std::vector<int>> ranks;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) ranks[hosts[rank]].push_back(static_cast<int>(rank));
  return ranks;
}

bool all_hosts_are_alike(const std::map<int, std::vector<int>>& ranks) {
  return std::all_of(ranks.begin(), ranks.end(),
                     [&](const auto& host) { return host.second.size() == ranks.begin()->second.size(); });
}

template <class Exec>
std::unique_ptr<Transport<Exec>> make_hierarchical_transport(TransportKind kind, const Communicator& world,
                                                             const std::vector<int>& hosts, Exchange exchange) {
  const std::map<int, std::vector<int>> ranks = ranks_by_host(hosts);
  if (!all_hosts_are_alike(ranks)) {
    const auto [fewest, most] = std::minmax_element(
        ranks.begin(), ranks.end(), [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
    throw InputError("comm.collective",
                     "hosts have different numbers of ranks, between " + std::to_string(fewest->second.size()) +
                         " and " + std::to_string(most->second.size()),
                     "run the same number of ranks on each host, or set comm.collective to flat");
  }
  return std::make_unique<HierarchicalTransport<Exec>>(kind, world, hosts[world.rank()], exchange);
}

#define ONEBIT_INSTANTIATE(Exec)                                                                            \
  template std::unique_ptr<Transport<Exec>> make_hierarchical_transport(TransportKind, const Communicator&, \
                                                                        const std::vector<int>&, Exchange);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::comm
