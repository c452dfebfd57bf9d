#pragma once
/// \file launch.hpp
/// What a command needs of its launcher and of MPI, and ranks that were started with another program.

#include <string>

#include "base/mpi.hpp"

namespace onebit::app {

/// Whether the program must start MPI: for a command that measures, and under a launcher, whose processes agree on each
/// error. Other commands, and --help, also run where MPI does not start, such as on a cluster's login node.
bool needs_mpi(int argc, char** argv);

/// Refuses ranks with another executable or command than rank 0: they would wait for each other for ever, or compute
/// nonsense together. Collective, and the first communication of the ranks.
/// \param command subcommands of the command line, each with a space in front of it
/// \throws AgreedError that names the ranks and both programs
void check_same_program(const Communicator& world, const std::string& command);

/// Refuses a process that MPI does not connect with the others which its launcher started, where the command writes
/// files: each process would write the same ones. Elsewhere a warning says why the output comes several times.
/// Collective. \param command the first subcommand
/// \throws AgreedError
void check_launch_of(const Communicator& world, const std::string& command);

}  // namespace onebit::app
