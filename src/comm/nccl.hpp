#pragma once
/// \file nccl.hpp
/// A transport by NCCL, which moves memory between GPUs without the host. It uses NCCL's collectives, and grouped sends
/// and receives for what NCCL has no collective for. CMake finds NCCL or leaves it out; only the CUDA backend has it.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/transport.hpp"

namespace onebit::comm {

/// Version of this build's NCCL, e.g. "2.28.9"; empty without NCCL.
std::string nccl_version();

/// Two ranks of one host that use the same GPU, if any; NCCL refuses them.
/// \param hosts (ranks) the number of each rank's host
/// \param gpus  (ranks) the number of each rank's GPU, unique in its host
std::optional<std::pair<int, int>> ranks_that_share(const std::vector<int>& hosts, const std::vector<double>& gpus);

/// Collective over `communicator`. A call works on the stream of the instance that it is given, and waits for it.
/// \throws InputError, on all ranks, if this build has no NCCL, the backend has no GPUs, or ranks share one
/// \throws RunError if NCCL fails
template <class Exec>
std::unique_ptr<Transport<Exec>> make_nccl_transport(const Communicator& communicator);

}  // namespace onebit::comm
