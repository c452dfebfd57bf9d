#pragma once
/// \file checkpoint.hpp
/// Checkpoints: all that a run is between two steps, in one sealed HDF5 file that all ranks write together.
/// docs/guide/checkpoint.md describes the file and what a restart keeps.

#include <string>

#include "base/kokkos.hpp"
#include "base/mpi.hpp"
#include "base/tensor_table.hpp"
#include "config/input.hpp"
#include "optim/algorithm.hpp"
#include "optim/rates/parameter_mean.hpp"
#include "train/checkpoint/checkpoint_line.hpp"
#include "train/results/results.hpp"

namespace onebit::train {

/// A run between two steps. The references outlive it.
template <class Exec>
struct Run {
  const config::Input& input;  ///< with the choices that were made for `auto`
  const TensorTable& tensors;
  const Vector<Exec, float>& x;  ///< (d) parameters
  optim::Algorithm<Exec>& algorithm;
  Results& results;
  long step = 0;                 ///< the last complete one
  optim::StepState last = {};    ///< of the last step that was not skipped
  double mean_square_norm = 0;   ///< (1/n) Σ_i ‖g_i‖₂² of that step
  bool owes_validation = false;  ///< a signal interrupted the validation of step `step`
  optim::ParameterMean<Exec> mean = {};

  /// (d) what is validated: the mean of the parameters, if one is kept
  const Vector<Exec, float>& result() const { return mean.or_else(x); }
};

/// Writes a checkpoint: under a temporary name, which is renamed once every byte is on the disk. Collective.
/// \param label of its seal, on rank 0 (train/checkpoint/checkpoint_line.hpp)
/// \throws AgreedError
template <class Exec>
void write_checkpoint(const Exec& exec, const Communicator& communicator, const std::string& path, Run<Exec>& run,
                      const std::string& label = "");

/// The checkpoints of one run (section `checkpoint` of the input). Members are collective, unless they say otherwise,
/// and throw AgreedError.
class Checkpoints {
public:
  /// Finds and verifies the checkpoint that `checkpoint.restart` asks for; rank 0 prints which one. Refuses a
  /// checkpoint whose input differs from `input` in what is computed. Chooses the directory to write into, and makes it
  /// unless `checkpoint.every` is 0.
  Checkpoints(const config::Input& input, const Communicator& communicator);

  /// Whether this run restarts from a checkpoint. Not collective.
  bool restarts() const { return !m_restart.empty(); }
  /// Makes the input average as the checkpoint's run did: with `comm.collective: auto`, the restarted run does the
  /// same.
  void average_as_before(config::Input& input) const {
    input.comm.collective = m_saved.comm.collective;
    input.compression.compressor = m_saved.compression.compressor;
  }
  /// The precision of the checkpoint's run, which a restarted run keeps with `model.precision: auto`. Not collective.
  Precision precision() const { return m_saved.model.precision; }
  /// Restores the state of the run. Vectors that differ from rank to rank become their mean over ranks if the number of
  /// ranks has changed (docs/guide/checkpoint.md).
  template <class Exec>
  void restore(const Exec& exec, Run<Exec>& run) const;

  /// The line of checkpoints that the run writes: the label of their seals, on rank 0. Not collective.
  std::string label() const { return m_lines.line().label(); }
  /// Removes the directory that a run which is refused made for its checkpoints. For rank 0.
  void leave() const;
  /// Whether a checkpoint is due after step `step`. Not collective.
  bool due(long step) const { return m_every > 0 && step % m_every == 0; }
  /// Writes a checkpoint, then removes the oldest ones of this run's line, all but `checkpoint.keep`.
  /// \returns its path
  template <class Exec>
  std::string write(const Exec& exec, Run<Exec>& run);

private:
  void find_restart(const config::Input& input);

  const Communicator& m_communicator;
  LineDirectory m_lines;  ///< on rank 0
  long m_every;
  std::string m_restart;  ///< the file to restart from; empty to begin at step 1
  config::Input m_saved;  ///< the input of the checkpoint's run
};

/// Verifies a checkpoint and says in a few lines what it holds. Not collective. \throws InputError for a damaged one
std::string describe_checkpoint(const std::string& path);

}  // namespace onebit::train
