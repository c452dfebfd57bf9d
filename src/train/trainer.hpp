#pragma once
/// \file trainer.hpp
/// The training run: the step loop, validation and results, whatever the algorithm and the workload are.

#include "base/error.hpp"
#include "base/kokkos.hpp"
#include "base/mpi.hpp"
#include "config/input.hpp"

namespace onebit::train {

/// Trains as `input` says and writes input.resolved.yaml, steps.csv, profile.csv, run.csv and, where asked for, the
/// final state into `run.output`; writes checkpoints and goes on from one as section `checkpoint` says. Collective.
/// `config::check` must have accepted the input.
/// Rank 0 prints progress to standard output.
/// \returns `success`, or `stopped` where SIGTERM or SIGUSR1 reached a rank: all ranks have then agreed on it, and a
///          checkpoint is written
/// \throws AgreedError (every rank) or Error (one rank; the caller must abort the others)
template <class Exec>
ExitStatus train(const Exec& exec, const config::Input& input, const Communicator& communicator);

}  // namespace onebit::train
