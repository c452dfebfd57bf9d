#pragma once
/// \file trainer.hpp
/// A training run, for any algorithm and workload.

#include <optional>

#include "base/kokkos.hpp"
#include "base/mpi.hpp"
#include "config/input.hpp"
#include "io/figures.hpp"

namespace onebit::train {

/// Trains as `input` says; `config::check` must have accepted it. Writes input.resolved.yaml, steps.csv, profile.csv
/// and run.csv into `run.output`, the final state if `run.dump_parameters` names a file, and checkpoints as section
/// `checkpoint` says. Rank 0 prints progress to standard output. Collective.
/// \returns the figures of merit and the verdict on the run, when all its files are complete; nothing if SIGTERM or
///          SIGUSR1 reached a rank: all ranks have then agreed to stop, and have written a checkpoint
/// \throws AgreedError (every rank) or another exception (one rank; the caller must abort the others)
template <class Exec>
std::optional<FiguresOfMerit> train(const Exec& exec, const config::Input& input, const Communicator& communicator);

}  // namespace onebit::train
