#pragma once
/// \file nccl.hpp
/// A transport by NCCL, which moves GPU memory between GPUs without the host: its collectives, and for an all-to-all its
/// grouped sends and receives. NCCL is optional (CMake finds it or not) and for the CUDA backend alone.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/transport.hpp"

namespace onebit::comm {

/// Version of the NCCL that this build has, e.g. "2.28.9"; empty where it has none.
std::string nccl_version();

/// Two ranks of one host that use the same GPU, if there are such, which NCCL refuses.
/// \param hosts (ranks) a number of each rank's host \param gpus (ranks) a number of each rank's GPU, unique in its host
std::optional<std::pair<int, int>> ranks_that_share(const std::vector<int>& hosts, const std::vector<double>& gpus);

/// Collective over `communicator`. Work goes onto the stream of the instance that a call is given; a call returns when
/// that is done.
/// \throws InputError, on all ranks, where this build has no NCCL, for a backend without GPUs, and where ranks share one
/// \throws RunError where NCCL fails
template <class Exec>
std::unique_ptr<Transport<Exec>> make_nccl_transport(const Communicator& communicator);

}  // namespace onebit::comm
