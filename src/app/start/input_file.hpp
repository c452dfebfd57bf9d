#pragma once
/// \file input_file.hpp
/// The input of a command: read on one rank, parsed and checked on all.

#include <string>
#include <vector>

#include "base/mpi.hpp"
#include "config/input.hpp"

namespace onebit::app {

/// Rank 0 reads the file, and all ranks parse the same text. Refuses ranks with other overrides. Collective.
/// \param path of a file or a pipe \param overrides "section.key=value"
/// \throws AgreedError
config::Input read_input(const Communicator& world, const std::string& path, const std::vector<std::string>& overrides);

/// Refuses what `config::check` refuses. Rank 0 names keys without an effect on standard error, because `validate`
/// prints an input on the other one. Collective.
/// \throws AgreedError
void check(const Communicator& world, const config::Input& input, int ranks);

}  // namespace onebit::app
