#pragma once
/// \file nccl.hpp
/// A transport by NCCL, which moves memory between GPUs without the host. It uses NCCL's collectives, and grouped sends
/// and receives for what NCCL has no collective for. CMake finds NCCL or leaves it out; only backends on GPUs have it.
/// On HIP it is RCCL, which has NCCL's interface.

#include <memory>
#include <string>
#include <vector>

#include "comm/transport/transport.hpp"

namespace onebit::comm {

/// Version of this build's NCCL, e.g. "2.28.9"; empty without NCCL.
std::string nccl_version();

/// Refuses ranks that share a GPU, as NCCL does. \param sharers (ranks) lowest rank on each rank's GPU
/// (base/device/gpus.hpp) \throws InputError
void one_rank_to_a_gpu(const std::vector<int>& sharers);

/// Collective over `communicator`. A call works on the stream of the instance that it is given, and waits for it.
/// \throws InputError, on all ranks, if this build has no NCCL, the backend has no GPUs, or ranks share one
/// \throws RunError if NCCL fails
template <class Exec>
std::unique_ptr<Transport<Exec>> make_nccl_transport(const Communicator& communicator);

}  // namespace onebit::comm
