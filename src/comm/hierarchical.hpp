#pragma once
/// \file hierarchical.hpp
/// A transport for hosts of several ranks, which share one link: averages go through memory inside a host first, and
/// each host sends what one rank would. Other exchanges go between all ranks, as they do without it.

#include <map>

#include "comm/transport.hpp"

namespace onebit::comm {

/// Begins (ranks + 1) of the shards of a vector, one for each rank of a host: equal, of whole words of 32 elements.
std::vector<std::size_t> shard_begins(std::size_t length, int ranks);

/// The ranks of each host, ascending. \param hosts (ranks) a number of each rank's host (Communicator::hosts())
std::map<int, std::vector<int>> ranks_by_host(const std::vector<int>& hosts);

/// Whether all hosts have as many ranks as the first.
bool all_hosts_are_alike(const std::map<int, std::vector<int>>& ranks);

/// `hosts()` is not empty, and an allreduce is hierarchical: rank l of a host sums shard l of its host's vectors, then of
/// all hosts', and sends it to the others of its host. Sums are in the order of ranks and hosts.
/// Collective over `world`.
/// \param hosts (ranks) a number of each rank's host (Communicator::hosts()), in the order of the hosts
/// \throws InputError on all ranks where hosts have different numbers of them
template <class Exec>
std::unique_ptr<Transport<Exec>> make_hierarchical_transport(TransportKind kind, const Communicator& world,
                                                             const std::vector<int>& hosts, Exchange exchange);

}  // namespace onebit::comm
