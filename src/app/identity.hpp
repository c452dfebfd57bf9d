#pragma once
/// \file identity.hpp
/// Refuses ranks that were started with another program, command or input than rank 0: they would wait for each other
/// for ever, or compute nonsense together.

#include <string>

#include "base/mpi.hpp"
#include "config/input.hpp"

namespace onebit::app {

/// Refuses ranks of another build or command. Collective, and the first thing that ranks tell each other.
/// \param command words of the command line that say what is to be done, a space in front of each
/// \throws AgreedError naming the ranks and both identities
void check_same_program(const Communicator& world, const std::string& command);

/// Refuses ranks whose resolved input is another, which --set can make it. Collective.
/// \throws AgreedError naming a rank and the first key that differs
void check_same_input(const Communicator& world, const config::Input& input);

}  // namespace onebit::app
