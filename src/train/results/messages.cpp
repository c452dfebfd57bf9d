#include "train/results/messages.hpp"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "config/checks.hpp"

namespace onebit::train {

namespace {

/// Whether standard output is a terminal. The ranks of Open MPI's mpirun write to a terminal of its own in any case,
/// and it copies the text to its standard output.
bool prints_to_terminal() {
  if (::isatty(STDOUT_FILENO) == 0) return false;
  if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr) return true;
  char target[64] = {};
  const std::string link = "/proc/" + std::to_string(::getppid()) + "/fd/1";
  if (::readlink(link.c_str(), target, sizeof target - 1) <= 0) return false;
  const std::string file = target;
  return file.rfind("/dev/pts/", 0) == 0 || file.rfind("/dev/tty", 0) == 0;
}

/// Seconds between two lines; 0 for none.
double interval(const config::Input& input) {
  constexpr double of_log = 60;
  const double given = input.run.progress_interval_s;
  return input.given.count("run.progress_interval_s") > 0 || prints_to_terminal() ? given : of_log;
}

/// "14 h 39 min", "5 min 12 s" or "12 s"
std::string duration(double seconds) {
  const long all = std::lround(seconds), minutes = all / 60, hours = minutes / 60;
  if (hours > 0) return std::to_string(hours) + " h " + std::to_string(minutes % 60) + " min";
  return (minutes > 0 ? std::to_string(minutes) + " min " : "") + std::to_string(all % 60) + " s";
}

}  // namespace

Progress::Progress(const config::Input& input, bool prints, long first_step)
    : m_interval(prints ? interval(input) : 0),
      m_first_step(first_step),
      m_steps(input.train.steps),
      m_unit(config::has_model(input) ? "tokens" : "samples") {}

void Progress::operator()(const StepRecord& record, double tokens_per_second) {
  if (m_interval <= 0) return;
  const bool last = record.step == m_steps, validated = !std::isnan(record.validation_loss);
  if (!last && !validated && record.step > m_first_step && m_since_line.seconds() < m_interval) return;
  m_since_line.restart();
  const double left =
      m_since_start.seconds() / static_cast<double>(record.step - m_first_step + 1) * (m_steps - record.step);
  std::printf("step %ld/%ld  loss %.4f  lr %.3g  phase %s  %.0f %s/s  time left %s", record.step, m_steps, record.loss,
              record.lr, record.state.compressed ? "compressed" : "dense", tokens_per_second, m_unit,
              duration(left).c_str());
  if (validated) std::printf("  validation loss %.4f", record.validation_loss);
  if (!std::isnan(record.validation_accuracy)) std::printf("  accuracy %.4f", record.validation_accuracy);
  if (!std::isnan(record.validation_f1)) std::printf("  F1 %.4f", record.validation_f1);
  if (!std::isnan(record.validation_distance)) std::printf("  distance %.4f", record.validation_distance);
  std::printf("\n");
  std::fflush(stdout);
}

void announce_freeze(const config::Input& input, const optim::StepState& state) {
  if (input.run.progress_interval_s <= 0) return;
  const config::AlgorithmTraits& algorithm = config::traits(input.optimizer.algorithm);
  const bool begins =
      algorithm.freezes() && algorithm.compresses && input.compression.compressor != CompressorKind::none;
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

  const char* const key = is_zero_one                      ? "zero_one.variance_freeze_step"
                          : input.freeze.step.word.empty() ? "freeze.step"
                                                           : "freeze.at_most";
  const std::string steps = std::to_string(input.train.steps), due_step = std::to_string(due);
  std::string why, remedy;  // the remedy ends with the key
  if (due >= input.train.steps) {
    why = "it is due at step " + due_step + ", and the run has " + steps + " step(s)";
    remedy = "raise train.steps, or lower ";
  } else {
    why = "it was due at step " + due_step + " of " + steps + ", and the steps " +
          (state.frozen_at == 0 ? "from there on" : "from there to the last one") +
          " were skipped, because their gradients were not finite";
    remedy = "lower optimizer.lr, set optimizer.clip, or lower ";
  }
  std::printf("warning: the variance was %s: %s\n  remedy: %s%s\n",
              state.frozen_at == 0 ? "never frozen" : "frozen at the last step", why.c_str(), remedy.c_str(), key);
}

}  // namespace onebit::train
