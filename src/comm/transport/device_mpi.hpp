#pragma once
/// \file device_mpi.hpp
/// Whether an MPI library says that it takes device memory. Each library says it in its own way.

#include <functional>
#include <string>

#include "comm/transport/transport.hpp"

namespace onebit::comm {

/// What is known of the MPI library.
struct MpiLibrary {
  std::string version;                                       ///< of MPI_Get_library_version
  std::string query;                                         ///< its function that says it; empty if it has none
  bool answer = false;                                       ///< of that function
  std::function<const char*(const char* name)> environment;  ///< getenv
};

/// The library that this build was linked with, and this process' environment.
MpiLibrary this_mpi_library();

/// What the library says, and how. A variable that switches support on or off goes before the function: Cray MPICH,
/// MVAPICH2 and Intel MPI take device memory only if the variable is set, whatever they were built with.
DeviceSupport said_by(const MpiLibrary& library);

}  // namespace onebit::comm
