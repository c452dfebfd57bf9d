#pragma once
/// \file checkpoint.hpp
/// Checkpoints: all that a run is between two steps, in one sealed HDF5 file that all ranks write together.
/// docs/checkpoint.md describes the file and what a restart keeps.

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "base/kokkos.hpp"
#include "base/mpi.hpp"
#include "io/sealed_writer.hpp"
#include "base/tensor_table.hpp"
#include "base/timer.hpp"
#include "comm/transport.hpp"
#include "config/input.hpp"
#include "optim/algorithm.hpp"
#include "train/checkpoint_line.hpp"
#include "train/results.hpp"

namespace onebit::train {

/// A run between two steps. The references outlive it.
template <class Exec>
struct Run {
  const config::Input& input;  ///< with what `auto` came to
  const TensorTable& tensors;
  const Vector<Exec, float>& x;  ///< (d) parameters
  optim::Algorithm<Exec>& algorithm;
  Results& results;
  long step = 0;                          ///< the last one that is complete
  optim::StepState last = {};             ///< what it said
  comm::Traffic traffic = {};             ///< of this process so far
  std::uint64_t traffic_within_host = 0;  ///< bytes of it, not in `traffic`
  std::string label = {};                 ///< of its checkpoints' seals, on rank 0 (train/checkpoint_line.hpp)
};

/// Writes a checkpoint: under a temporary name, which is renamed once every byte is on the disk. Collective.
/// \throws AgreedError
template <class Exec>
void write_checkpoint(const Exec& exec, const Communicator& communicator, const std::string& path, Run<Exec>& run);

/// The checkpoints of one run (section `checkpoint` of the input). Members are collective and throw AgreedError.
class Checkpoints {
public:
  /// Finds, and verifies, the checkpoint from which `checkpoint.restart` asks to go on; says on rank 0 which that is.
  /// Refuses one whose input differs from `input` in what is computed. Chooses the directory to write into, and makes it
  /// if `checkpoint.every` is not 0.
  Checkpoints(const config::Input& input, const Communicator& communicator);

  /// Whether this run goes on from a checkpoint.
  bool restarts() const { return !m_restart.empty(); }
  /// Which line of checkpoints the run writes: the label of their seals, on rank 0.
  std::string label() const { return m_lines.line().label(); }
  /// Makes the input average as the checkpoint's run did, which is how `comm.collective: auto` goes on.
  void average_as_before(config::Input& input) const {
    input.comm.collective = m_saved.comm.collective;
    input.compression.compressor = m_saved.compression.compressor;
  }
  /// Restores what the checkpoint holds. Vectors that differ from rank to rank keep their mean over ranks where the
  /// number of ranks is another one (docs/checkpoint.md).
  template <class Exec>
  void restore(const Exec& exec, Run<Exec>& run) const;

  /// Whether a checkpoint is due after step `step`.
  bool due(long step) const { return m_every > 0 && step % m_every == 0; }
  /// Begins to write one when the one before is complete. `run` may go on at once. When the file is complete, the oldest
  /// of this run's line that are more than `checkpoint.keep` are removed. \returns its path
  template <class Exec>
  std::string begin(const Exec& exec, Run<Exec>& run);
  /// Whether this rank's part of what is to be written before `advance` is. Not collective; false where there is nothing.
  bool is_ready() const { return m_writer.is_ready(); }
  /// Goes on with the checkpoint that is under way: at once where all ranks are ready.
  void advance(Results& results);
  /// Waits until none is under way. The second form is for a run that failed, on all ranks, and counts nothing.
  void complete(Results& results);
  void complete();

private:
  void find_restart(const config::Input& input);
  void waited(double seconds, Results& results) const;

  const Communicator& m_communicator;
  LineDirectory m_lines;  ///< on rank 0
  long m_every;
  std::string m_restart;  ///< file to go on from; empty to begin at step 1
  config::Input m_saved;  ///< its input
  Stopwatch m_since_begin;
  SealedWriter m_writer;
};

/// x ← parameters of a checkpoint, tensor by tensor. Components, the first parts of the tensors' names, that one of the
/// two models lacks keep their values in x, or are left out: the head of another task. In the others all tensors must
/// be there and have the same shape, but for the rows of the position embeddings: there as many are taken as both have.
/// Not collective.
/// \returns what was taken and what not, in words
/// \throws InputError
template <class Exec>
std::string read_parameters(const Exec& exec, const std::string& path, const TensorTable& tensors,
                            const Vector<Exec, float>& x);

/// Verifies a checkpoint and says in a few lines what it holds. Not collective. \throws InputError for a damaged one
std::string describe_checkpoint(const std::string& path);

}  // namespace onebit::train
