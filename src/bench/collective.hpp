#pragma once
/// \file collective.hpp
/// `onebit bench collective`: dense and compressed averages over ranks, by vector length. Each is checked against an
/// oracle before it is timed.

#include "base/mpi.hpp"
#include "config/input.hpp"

namespace onebit::bench {

/// Times the collectives of `bench.collectives`; writes collective.csv into `run.output` and a table to standard
/// output. Collective over `communicator`.
/// \throws AgreedError when a result is wrong, or the output cannot be written
template <class Exec>
void collective(const Exec& exec, const config::Input& input, const Communicator& communicator);

}  // namespace onebit::bench
