#pragma once
/// \file commands.hpp
/// The command line: the subcommands of the program.

#include "base/error.hpp"
#include "base/mpi.hpp"

namespace onebit::app {

/// Reads the command line and runs the subcommand that it names. Collective over `world`.
/// \returns `success`, or `stopped` for a training that a signal ended
/// \throws AgreedError (all ranks), also for results that are wrong, or any other exception (this rank; the caller must
///         abort the others)
ExitStatus run_command(const Communicator& world, int argc, char** argv);

}  // namespace onebit::app
