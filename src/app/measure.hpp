#pragma once
/// \file measure.hpp
/// What the measuring commands have in common: figures of merit at the end of standard output, a JSON file, and an exit
/// status that says whether the results are right (docs/reference/output/figures_of_merit.md).

#include <functional>
#include <optional>
#include <string>

#include "base/error.hpp"
#include "base/mpi.hpp"
#include "io/figures.hpp"

namespace onebit::app {

/// Runs a measuring command. Rank 0's figures and verdict count: they are printed, and written to a JSON file if one is
/// named. Collective.
/// \param command its words, e.g. "bench kernels"
/// \param json    path of the JSON file on rank 0; empty for none
/// \param work    returns nothing if a signal stopped it: it has no figures then
/// \returns `success`, or `stopped`
/// \throws AgreedError when the results are wrong, after both, or when `work` fails or a file cannot be written
ExitStatus measure(const Communicator& world, const std::string& command, const std::string& json,
                   const std::function<std::optional<FiguresOfMerit>()>& work);

}  // namespace onebit::app
