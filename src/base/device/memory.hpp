#pragma once
/// \file memory.hpp
/// How much memory is available, and how much a run took. A run that cannot fit must be refused with a message, because
/// Linux grants memory that it does not have and kills the process, often the whole job, that writes to it.

#include <string>

#include "base/error.hpp"
#include "base/kokkos.hpp"

namespace onebit {

/// Bytes of host memory that are free or can be freed, at most what is left of the limits of this process's control
/// groups (with which Slurm and containers limit memory).
double available_host_memory();

/// Bytes that are available in the memory of an execution space: of the host, or of this process's GPU.
template <class Exec>
double available_memory() {
#ifdef ONEBIT_GPU
  if constexpr (!is_host<Exec>) {
    std::size_t free = 0, total = 0;
    return ONEBIT_GPU(MemGetInfo)(&free, &total) == gpu::success ? static_cast<double>(free) : 0;
  }
#endif
  return available_host_memory();
}

/// Refuses a vector that is longer than a kernel can be (kokkos.hpp). \param longest length of a vector
/// \throws InputError
void check_length(std::size_t length, std::size_t longest);
template <class Exec>
void check_length(std::size_t length) {
  check_length(length, longest_vector_of<Exec>);
}

/// Peak of this process's host memory in bytes (VmHWM of /proc/self/status); 0 where it is unknown.
double peak_host_memory();

/// Counts the bytes of all Views with a label `OneBit::…`, in all memory spaces, from construction on. One object at a
/// time. It forwards the callbacks to a Kokkos Tool that was loaded before.
class ViewMemory {
public:
  ViewMemory();
  ~ViewMemory();
  ViewMemory(const ViewMemory&) = delete;
  ViewMemory& operator=(const ViewMemory&) = delete;

  /// Bytes of the Views of a folder, labelled `OneBit::folder::…`, at the moment.
  double of(const std::string& folder) const;
  /// Peak of the sum over all folders.
  double peak() const;
};

/// Peak of the bytes that one rank takes in each phase of a run.
struct PhaseBytes {
  double dense = 0;       ///< up to T_w; in all steps of an algorithm without T_w
  double compressed = 0;  ///< after T_w, in its first step; the same as `dense` without T_w

  double most() const { return dense > compressed ? dense : compressed; }
};

/// "12.3 GiB"
std::string gibibytes(double bytes);

}  // namespace onebit
