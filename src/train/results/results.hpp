#pragma once
/// \file results.hpp
/// The sums over a training run, and its CSV files: steps.csv and gradient_groups.csv while it runs, profile.csv and
/// run.csv at its end. Their columns are in tables.hpp.

#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/mpi.hpp"
#include "base/timer.hpp"
#include "comm/transport/transport.hpp"
#include "io/csv.hpp"
#include "nn/quantized/quantization.hpp"
#include "optim/algorithm.hpp"

namespace onebit::train {

/// What steps.csv says about one step. NaN is an empty cell.
struct StepRecord {
  long step;
  double loss;                                   ///< mean over ranks
  bool validated = false;                        ///< so the next three count, even if they are not finite
  double validation_loss = optim::no_value;      ///< only in steps that validate
  double validation_accuracy = optim::no_value;  ///< the same, for workloads with right answers
  double validation_f1 = optim::no_value;        ///< the same, for spans
  double validation_distance = optim::no_value;  ///< the same, for workloads that generate samples
  double lr;                                     ///< γ_t
  double gradient_norm;                          ///< √((1/n) Σ ‖g_i‖²)
  double tokens;                                 ///< of this step over all ranks
  bool skipped;                                  ///< because the loss or a gradient was not finite
  optim::StepState state;                        ///< after this step
  nn::QuantizationState quantization;            ///< of this rank's gradient
  comm::Traffic traffic;                         ///< that this process has handed over so far
  std::uint64_t traffic_within_host;             ///< bytes so far, not in `traffic`
  double seconds;                                ///< of the whole step, without validation
  PhaseTimes times;
  double hidden_allreduce;  ///< seconds of an average in buckets beside the passes
};

// The files that get rows while the run goes on.
inline constexpr const char* steps_file = "steps.csv";
inline constexpr const char* groups_file = "gradient_groups.csv";

/// The columns of one row: names and values.
using Columns = std::vector<std::pair<std::string, Cell>>;

/// Sums over the steps of the dense, or of the compressed, phase, or over skipped steps.
struct PhaseSums {
  long steps = 0;
  std::uint64_t bytes = 0;
  double seconds = 0, hidden_allreduce = 0;
  PhaseTimes times;
};

/// Collects a run's numbers on every rank; rank 0 writes them.
class Results {
public:
  /// \param records_groups whether there is a gradient_groups.csv
  /// \param target_loss    of a validation; 0 for none
  Results(const Communicator& communicator, const std::string& directory, bool records_groups = false,
          double target_loss = 0);

  /// Adds a step, and its rows to the files. \throws std::runtime_error on rank 0
  void add(const StepRecord& record);
  /// Adds a validation of the last step that was added, to its row too. \throws std::runtime_error on rank 0
  void add_validation(const StepRecord& record);
  /// The last step. After a restart, only its loss is known.
  const StepRecord& last() const { return m_last; }
  /// Counts a checkpoint. Called before it is written, so that the checkpoint counts itself.
  void count_checkpoint() { ++m_checkpoints; }
  /// Adds the seconds that a checkpoint took.
  void add_checkpoint_time(double seconds) { m_checkpoint_seconds += seconds; }

  /// Saves or restores the sums over all steps so far.
  void state(optim::NumberArchive& archive);
  /// The names of the files that get rows while the run goes on.
  std::vector<std::string> growing_files() const;
  /// One of them so far on rank 0; empty on the others. \throws std::runtime_error
  std::string text(const std::string& file) const;
  /// On rank 0, continues after its rows in a checkpoint. \returns false if they have other columns
  bool go_on_from(const std::string& file, const std::string& text);

  /// Tokens of the steps that were taken per second of all steps. The first step is not counted if there are others,
  /// because it allocates and warms up caches.
  double tokens_per_second() const { return m_seconds > 0 ? m_tokens / m_seconds : 0; }
  /// Seconds for each of these steps that was taken; NaN if all were skipped.
  double step_seconds() const { return m_timed > 0 ? m_seconds / static_cast<double>(m_timed) : optim::no_value; }
  /// Whether a validation has found a loss, finite or not.
  bool validated() const { return m_validated; }
  /// One line: how many steps were compressed, and how many times fewer bytes were sent than in dense averages.
  std::string compression_summary(std::size_t parameters) const;

  /// One line: when the target loss was reached; empty without a target.
  std::string target_summary() const;

  /// The columns of run.csv that are results.
  Columns columns(std::size_t parameters) const;
  /// Writes profile.csv and run.csv, and gives all files their names. Collective. \throws AgreedError
  /// \param run_columns all columns of run.csv
  void finish(const Columns& run_columns);

private:
  void take(const StepRecord& record);
  void take_validation(const StepRecord& record);
  void look_for_target(const StepRecord& record);
  /// The median of the last losses: of half of the steps that were taken, and at most 10. NaN after fewer than two.
  double end_loss() const;
  long steps_taken() const { return m_sums[0].steps + m_sums[1].steps; }
  std::uint64_t bytes_sent() const { return m_sums[0].bytes + m_sums[1].bytes + m_sums[skipped_sums].bytes; }
  double training_seconds() const { return m_sums[0].seconds + m_sums[1].seconds + m_sums[skipped_sums].seconds; }
  std::vector<std::vector<Cell>> profile_rows() const;
  /// Bytes of a dense fp32 average in each of `steps` steps, over the `bytes` that were sent; NaN if none were.
  double reduction(long steps, std::uint64_t bytes, std::size_t parameters) const;

  const Communicator& m_communicator;
  std::string m_directory;
  bool m_records_groups;
  double m_target_loss;
  std::map<std::string, CsvFile> m_files;  ///< those of `growing_files`, on rank 0
  static constexpr std::size_t skipped_sums = 2;
  std::array<PhaseSums, 3> m_sums;  ///< [compressed] of the steps that were taken; [skipped_sums]
  StepRecord m_last{};
  bool m_validated = false;
  double m_final_validation_loss = optim::no_value, m_final_validation_accuracy = optim::no_value;
  double m_final_validation_f1 = optim::no_value;
  double m_final_validation_distance = optim::no_value;
  struct {
    long step = 0;  ///< 0 before
    double seconds = 0;
    std::uint64_t bytes = 0;
  } m_target;  ///< when a validation first found the target
  double m_tokens = 0, m_seconds = 0;
  long m_count = 0;
  long m_timed = 0;  ///< steps with `m_tokens`
  double m_first_loss = optim::no_value;
  std::vector<double> m_end_losses;  ///< of the last steps that were taken, the newest last
  comm::Traffic m_earlier_traffic;   ///< before the restart
  std::uint64_t m_earlier_within_host = 0;
  long m_restarts = 0, m_checkpoints = 0;
  double m_checkpoint_seconds = 0;
};

}  // namespace onebit::train
