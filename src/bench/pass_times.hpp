#pragma once
/// \file pass_times.hpp
/// The time of each Kokkos kernel that a piece of work launches.

#include <string>
#include <vector>

namespace onebit::bench {

/// A kernel, which may run several times.
struct Pass {
  std::string region;  ///< the outermost profiling region around it, without "OneBit::"; empty without one
  std::string kernel;  ///< its label, without "OneBit::"
  double seconds = 0;  ///< of all its runs
};

/// Times kernels through the callbacks of Kokkos Tools while it exists. Each kernel is fenced, so kernels of a GPU do
/// not overlap, and work takes longer than without. A profiling tool that is loaded does not see them. There may be one
/// object at a time, and one thread may launch kernels.
class PassTimes {
public:
  PassTimes();
  ~PassTimes();
  PassTimes(const PassTimes&) = delete;
  PassTimes& operator=(const PassTimes&) = delete;

  /// The kernels since the last call, in the order of their first runs.
  std::vector<Pass> take();
};

}  // namespace onebit::bench
