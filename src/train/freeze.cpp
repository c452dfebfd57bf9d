/// \file freeze.cpp
/// See freeze.hpp.

#include "train/freeze.hpp"

#include <cstdio>
#include <string>

namespace onebit::train {

void announce_freeze(const config::Input& input, const optim::StepState& state) {
  if (input.run.progress_interval_s <= 0) return;
  const config::AlgorithmTraits& algorithm = config::traits(input.optimizer.algorithm);
  const bool begins = algorithm.freezes() && algorithm.compresses &&
                      input.compression.compressor != CompressorKind::none;
  std::printf("variance frozen at step %ld of %d: by %s%s\n", state.frozen_at, input.train.steps, state.frozen_by,
              begins ? "; compression begins" : "");
  std::fflush(stdout);
}

void warn_without_freeze(const config::Input& input, const optim::StepState& state) {
  const config::AlgorithmTraits& algorithm = config::traits(input.optimizer.algorithm);
  const bool is_zero_one = algorithm.variance == config::Variance::frozen_at_F;
  if (!is_zero_one && !algorithm.freezes()) return;
  const long due = is_zero_one ? input.zero_one.variance_freeze_step : config::latest_freeze(input);
  const bool is_late = state.frozen_at == 0 || (!is_zero_one && state.frozen_at == input.train.steps);
  if (due == 0 || !is_late) return;

  const std::string steps = std::to_string(input.train.steps), due_step = std::to_string(due);
  std::string why, remedy;
  if (due >= input.train.steps) {
    why = "it is due at step " + due_step + ", and the run has " + steps + " step(s)";
    remedy = is_zero_one ? "lower zero_one.variance_freeze_step, or raise train.steps"
                         : "raise train.steps, of which the warm-up is the first part";
  } else {
    why = "it was due at step " + due_step + " of " + steps + ", and the steps " +
          (state.frozen_at == 0 ? "from there on" : "from there to the last one") +
          " were skipped, because their gradients were not finite";
    remedy = std::string("lower optimizer.lr, set optimizer.clip, or lower ") +
             (is_zero_one                       ? "zero_one.variance_freeze_step"
              : input.freeze.step.word.empty() ? "freeze.step"
                                                : "freeze.at_most");
  }
  std::printf("warning: the variance was %s: %s\n  remedy: %s\n",
              state.frozen_at == 0 ? "never frozen" : "frozen at the last step", why.c_str(), remedy.c_str());
}

}  // namespace onebit::train
