#pragma once
/// \file results.hpp
/// The CSV files of a training run: steps.csv while it runs, profile.csv and run.csv at its end.
/// docs/reference/output.md describes every column.

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mpi.hpp"
#include "base/timer.hpp"
#include "comm/transport.hpp"
#include "optim/algorithm.hpp"
#include "report/csv.hpp"

namespace onebit::train {

/// One row of steps.csv. NaN is an empty cell.
struct StepRecord {
  long step;
  double loss;                 ///< mean over ranks
  double validation_loss;      ///< NaN where this step did not validate
  double validation_accuracy;  ///< the same, and for workloads without right answers
  double lr;
  double gradient_norm;  ///< √((1/n) Σ ‖g_i‖²)
  double tokens;         ///< of this step over all ranks
  bool skipped;          ///< a non-finite gradient was left out
  optim::StepState state;
  std::uint64_t bytes;  ///< that this rank handed over in this step
  double seconds;       ///< of the whole step, without validation
  PhaseTimes times;
  double hidden_allreduce;  ///< seconds of the dense average that passed beside the backward pass
};

/// Name and value of a column of run.csv.
using RunColumns = std::vector<std::pair<std::string, report::Cell>>;

/// Collects a run's numbers on every rank; rank 0 writes.
class Results {
public:
  Results(const Communicator& communicator, const std::string& directory);

  void add(const StepRecord& record);
  /// Writes profile.csv and run.csv and gives all files their names. Collective; rank 0's errors are agreed on.
  /// \param leading  columns that say what was run
  /// \param trailing columns of results that only the caller knows
  void finish(const RunColumns& leading, const RunColumns& trailing, std::size_t parameters,
              const comm::Traffic& traffic, std::uint64_t within_host);

  /// Counts a checkpoint: its number before it is written, so that it holds itself; the time that the run waited for it, and the
  /// time from its step until it was complete, afterwards.
  void count_checkpoint() { ++m_checkpoints; }
  void add_checkpoint_wait(double seconds) { m_checkpoint_seconds += seconds; }
  void add_checkpoint_writing(double seconds) { m_checkpoint_writing_seconds += seconds; }

  /// Saves or restores the sums over all steps so far. \param traffic, within_host of this process, so far
  void state(optim::NumberArchive& archive, const comm::Traffic& traffic, std::uint64_t within_host);
  /// steps.csv as it is, on rank 0; the others have none. \throws std::runtime_error
  std::string steps_text() const { return m_steps ? m_steps->text() : ""; }
  /// Goes on behind the rows of a checkpoint, on rank 0. \returns false when they have other columns
  bool go_on_from(const std::string& steps_text) { return !m_steps || m_steps->go_on_from(steps_text); }

  /// Steps that were compressed, and how much less that sent than dense averages, as a line says it.
  std::string compression_summary(std::size_t parameters) const;

  /// Tokens per second of the steps so far; the first one, which warms up, is left out once there are others.
  double tokens_per_second() const;

private:
  /// Sums over the steps of the dense, or of the compressed, phase.
  struct PhaseSums {
    long steps = 0;
    std::uint64_t bytes = 0;
    double seconds = 0, hidden_allreduce = 0;
    PhaseTimes times;
  };
  void write_profile();
  /// Bytes of a dense fp32 average in each of so many steps over those that were sent; NaN where none were.
  double reduction(long steps, std::uint64_t bytes, std::size_t parameters) const;

  const Communicator& m_communicator;
  std::string m_directory;
  std::unique_ptr<report::CsvFile> m_steps, m_profile;  ///< on rank 0
  std::array<PhaseSums, 2> m_sums;                      ///< [compressed]
  StepRecord m_last{};
  double m_final_validation_loss, m_final_validation_accuracy;
  double m_tokens = 0, m_seconds = 0;
  long m_count = 0, m_skipped = 0;
  comm::Traffic m_earlier_traffic;  ///< before the restart
  std::uint64_t m_earlier_within_host = 0;
  long m_restarts = 0, m_checkpoints = 0;
  double m_checkpoint_seconds = 0, m_checkpoint_writing_seconds = 0;
};

}  // namespace onebit::train
