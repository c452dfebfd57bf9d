#pragma once
/// \file messages.hpp
/// What rank 0 prints about steps.

#include "base/timer.hpp"
#include "config/input.hpp"
#include "train/results/results.hpp"

namespace onebit::train {

/// Prints a line about a step every `run.progress_interval_s` seconds, at each validation and in the last step. Where
/// the input leaves this key out and standard output is no terminal, every minute.
class Progress {
public:
  /// \param first_step of this process
  Progress(const config::Input& input, bool prints, long first_step);
  void operator()(const StepRecord& record, double tokens_per_second);

private:
  double m_interval;
  long m_first_step, m_steps;
  const char* m_unit;  ///< what the workload counts
  Stopwatch m_since_start, m_since_line;
};

/// Prints that this step froze the variance, unless `run.progress_interval_s` is 0.
void announce_freeze(const config::Input& input, const optim::StepState& state);

/// Prints a warning, with its reason and a remedy, if the run should have frozen its variance but froze it in no step
/// or only in the last one. \param state of the last step that was not skipped
void warn_without_freeze(const config::Input& input, const optim::StepState& state);

}  // namespace onebit::train
