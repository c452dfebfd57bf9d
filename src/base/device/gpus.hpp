#pragma once
/// \file gpus.hpp
/// Which GPU a rank takes, and which ranks use the same memory.

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/kokkos.hpp"
#include "base/mpi.hpp"

namespace onebit {

/// Number of GPUs that this process sees; -1 in a build without GPU backends.
inline int gpu_count() {
#ifdef ONEBIT_GPU
  int count = 0;
  return ONEBIT_GPU(GetDeviceCount)(&count) == gpu::success ? count : 0;
#else
  return -1;
#endif
}

/// The GPU of a rank, or -1 without GPUs. The ranks of a host take its GPUs in turn. Where each rank sees one GPU of
/// its own, that is number 0.
inline int gpu_of_rank(int local_rank, int gpus) { return gpus > 0 ? local_rank % gpus : -1; }

/// The GPU that the calling thread has chosen (cudaSetDevice, hipSetDevice); -1 without GPUs.
inline int current_gpu() {
  int number = -1;
#ifdef ONEBIT_GPU
  if (ONEBIT_GPU(GetDevice)(&number) != gpu::success) number = -1;
#endif
  return number;
}

/// What to tell a user whose ranks share GPUs: they take turns, or they are all on one MIG instance, the only one that
/// CUDA shows to a process. Empty if there are enough GPUs, or none at all.
/// \param ranks of a host \param gpus that a rank sees
inline std::string sharing_warning(int ranks, int gpus) {
  if (gpus <= 0 || ranks <= gpus) return "";
  return std::to_string(ranks) + " ranks of a host share " + std::to_string(gpus) + (gpus == 1 ? " GPU" : " GPUs") +
         "\n  remedy: start one rank for each GPU, or give each rank its own MIG instance by "
         "CUDA_VISIBLE_DEVICES=MIG-…";
}

/// A number below 2^53 of 16 bytes, so that a double holds it.
inline double number_of(const char (&uuid)[16]) {
  std::uint64_t halves[2];
  std::memcpy(halves, uuid, sizeof halves);
  return static_cast<double>((halves[0] * 0x9e3779b97f4a7c15u ^ halves[1] * 0xc2b2ae3d27d4eb4fu) >> 11);
}

/// A number of this rank's GPU, or of its MIG instance; 0 for the memory of the host. It is the same in every process,
/// whichever GPUs CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES hides from it. It is made of the UUID, because the
/// instances of a GPU share its PCI address. HIP has UUIDs since ROCm 6.
template <class Exec>
double memory_address() {
#ifdef ONEBIT_GPU
  if constexpr (!is_host<Exec>) {
    gpu::Properties properties{};
    if (ONEBIT_GPU(GetDeviceProperties)(&properties, current_gpu()) != gpu::success)
      throw RunError(gpu::runtime, "the GPU of this rank does not tell its UUID",
                     std::string("check it with ") + gpu::monitor);
#if defined(KOKKOS_ENABLE_HIP) && HIP_VERSION_MAJOR < 6
    return 65536.0 * properties.pciDomainID + 256.0 * properties.pciBusID + properties.pciDeviceID;
#else
    return number_of(properties.uuid.bytes);
#endif
  }
#endif
  return 0;
}

/// (ranks) the lowest rank that uses the same memory as each rank.
/// \param hosts     (ranks) the number of each rank's host
/// \param addresses (ranks) the address of each rank's GPU, unique in its host; 0 for the host's memory
inline std::vector<int> lowest_sharers(const std::vector<int>& hosts, const std::vector<double>& addresses) {
  std::map<std::pair<int, double>, int> lowest;
  std::vector<int> sharers;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank)
    sharers.push_back(lowest.try_emplace({hosts[rank], addresses[rank]}, static_cast<int>(rank)).first->second);
  return sharers;
}

/// The same for the memory of `Exec`. Collective.
template <class Exec>
std::vector<int> lowest_sharers(const Communicator& communicator) {
  double address = 0;
  communicator.collectively([&] { address = memory_address<Exec>(); });
  return lowest_sharers(communicator.hosts(), communicator.gather(&address, 1));
}

}  // namespace onebit
