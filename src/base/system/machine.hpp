#pragma once
/// \file machine.hpp
/// The machine in words, for the column `machine` of CSV files, which may be compared with those of another machine.

#include <string>

#include "base/kokkos.hpp"

namespace onebit {

/// The processor and the number of cores of this machine, or the environment variable ONEBIT_MACHINE where it is set.
std::string host_machine();

/// The same, behind the name of the GPU if the execution space is one.
template <class Exec>
std::string machine_name(const Exec& exec) {
#ifdef ONEBIT_GPU
  if constexpr (!is_host<Exec>) return std::string(properties_of(exec).name) + ", " + host_machine();
#endif
  (void)exec;
  return host_machine();
}

}  // namespace onebit
