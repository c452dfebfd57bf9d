#pragma once
/// \file launcher.hpp
/// Whether the ranks that MPI sees are the processes that a launcher started. A launcher of another MPI library, or one
/// that knows no MPI, starts processes that MPI does not connect: each is then a run of its own, with the results of
/// one rank and the output files of the others.

#include <functional>
#include <string>

namespace onebit {

/// The value of an environment variable, or nullptr.
using Environment = std::function<const char*(const char* name)>;

/// What is wrong with how this process was started.
struct LaunchFault {
  std::string variable;  ///< that shows it; empty: nothing is wrong
  std::string what, remedy;

  explicit operator bool() const { return !variable.empty(); }
};

/// Finds a launcher that started several processes of which MPI sees one. A world of several ranks is never at fault:
/// MPI has connected them. Neither is a world of one where this MPI library's own launcher says that it started one,
/// whatever other launchers have left in the environment, nor a variable that the batch system sets outside of srun.
/// \param world_size   ranks of MPI_COMM_WORLD
/// \param has_terminal whether this process has a controlling terminal
LaunchFault launch_fault(int world_size, const Environment& environment, bool has_terminal = false);
/// The same of this process, whose MPI has been started. A process that MPI itself has spawned is not at fault.
LaunchFault launch_fault();

/// Whether a variable of a launcher, also of one that started a single process, is in this process's environment.
bool has_launcher();

/// \throws InputError for a fault of this process
void check_launch();

}  // namespace onebit
