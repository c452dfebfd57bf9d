#pragma once
/// \file identity.hpp
/// Refuses ranks that were started with another program, command or input than rank 0. Such ranks would wait for each
/// other for ever, or compute nonsense together.

#include <string>

#include "base/mpi.hpp"
#include "config/input.hpp"

namespace onebit::app {

/// Refuses ranks with another executable or command. Collective, and the first communication of the ranks.
/// \param command subcommands of the command line, each with a space in front of it
/// \throws AgreedError that names the ranks and both programs
void check_same_program(const Communicator& world, const std::string& command);

/// Refuses ranks whose resolved input differs from rank 0's: --set may differ from rank to rank. Collective.
/// \throws AgreedError that names a rank and the first key that differs
void check_same_input(const Communicator& world, const config::Input& input);

}  // namespace onebit::app
