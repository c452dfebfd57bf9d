#pragma once
/// \file memory.hpp
/// How much memory there is to take, so that a run that cannot fit is refused with a message: Linux grants memory that
/// it does not have and kills the process, often the whole job, when it is written to. And how much a run took.

#include <string>

#include "base/kokkos.hpp"

namespace onebit {

/// Bytes of host memory that processes can still take: what is free or can be freed, but no more than the control
/// groups of this process allow (that is how Slurm and containers limit memory).
double available_host_memory();

/// Bytes that can still be taken in the memory of an execution space: the host's, or this process's GPU's.
template <class Exec>
double available_memory() {
#ifdef KOKKOS_ENABLE_CUDA
  if constexpr (!is_host<Exec>) {
    std::size_t free = 0, total = 0;
    return cudaMemGetInfo(&free, &total) == cudaSuccess ? static_cast<double>(free) : 0;
  }
#endif
  return available_host_memory();
}

/// The most bytes of host memory that this process ever had (VmHWM of /proc/self/status); 0 where Linux does not tell.
double peak_host_memory();

/// Counts the bytes of all Views whose labels begin with `OneBit::`, in all memory spaces, from construction on. There is
/// one at a time; it passes what it is told on to a Kokkos Tool that was loaded before.
class ViewMemory {
public:
  ViewMemory();
  ~ViewMemory();
  ViewMemory(const ViewMemory&) = delete;
  ViewMemory& operator=(const ViewMemory&) = delete;

  /// Bytes that the Views of a folder's classes have now: those labelled `OneBit::folder::…`.
  double of(const std::string& folder) const;
  /// The most that all of them together ever had.
  double peak() const;
};

/// "12.3 GiB"
std::string gibibytes(double bytes);

}  // namespace onebit
