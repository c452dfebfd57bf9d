#pragma once
/// \file hierarchical.hpp
/// A transport for hosts of several ranks that share one link. An average first goes through the memory of each host,
/// so a host sends as much as one rank would. Other exchanges go between all ranks.

#include <map>

#include "comm/transport/transport.hpp"

namespace onebit::comm {

/// The ranks of each host, ascending. \param hosts (ranks) the number of each rank's host (Communicator::hosts())
std::map<int, std::vector<int>> ranks_by_host(const std::vector<int>& hosts);

/// Whether all hosts have the same number of ranks.
bool all_hosts_are_alike(const std::map<int, std::vector<int>>& ranks);

/// A transport with `hosts()`, whose allreduce is hierarchical. Rank l of each host sums shard l over its host, then
/// over all hosts, and gathers the other shards from its host (shards: compress::equal_chunks). Terms are added in the
/// order of ranks, then of hosts. Collective over `world`.
/// \param hosts (ranks) the number of each rank's host (Communicator::hosts()), in the order of the hosts
/// \throws InputError on all ranks if hosts have different numbers of ranks
template <class Exec>
std::unique_ptr<Transport<Exec>> make_hierarchical_transport(TransportKind kind, const Communicator& world,
                                                             const std::vector<int>& hosts, Exchange exchange);

}  // namespace onebit::comm
