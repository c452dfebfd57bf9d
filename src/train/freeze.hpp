#pragma once
/// \file freeze.hpp
/// What a run says, on the rank that calls, about the step at which the variance is frozen.

#include "config/input.hpp"
#include "optim/algorithm.hpp"

namespace onebit::train {

/// Prints one line in the step that froze the variance, unless `run.progress_interval_s` is 0.
/// \param input with what `auto` came to
void announce_freeze(const config::Input& input, const optim::StepState& state);

/// Prints a warning, with its reason and a remedy, at the end of a run that should have frozen its variance and did so
/// in no step, or in the last one alone. \param state of the last step that took place
void warn_without_freeze(const config::Input& input, const optim::StepState& state);

}  // namespace onebit::train
