#pragma once
/// \file timer.hpp
/// Wall-clock times of the phases of a step.

#include <array>
#include <chrono>
#include <numeric>

namespace onebit {

/// Seconds since construction or the last `restart`.
class Stopwatch {
public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - m_begin).count(); }
  /// Returns the seconds, and starts again at 0.
  double restart() {
    const auto now = Clock::now();
    const double passed = std::chrono::duration<double>(now - m_begin).count();
    m_begin = now;
    return passed;
  }

private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point m_begin = Clock::now();
};

/// Phases of a training step in their order; they divide the rows of the paper's Table 1 further.
/// `check` is what a run measures about itself: the norm of the gradient and whether it is finite, norms of residuals.
/// `agree` is the message in which the ranks tell each other about them.
enum class Phase {
  forward,
  backward,
  allreduce,
  compress,
  all_to_all,
  average,
  all_gather,
  update,
  check,
  agree,
  count
};

/// Names of the phases in CSV files.
inline constexpr std::array<const char*, static_cast<std::size_t>(Phase::count)> phase_names = {
    "forward", "backward", "allreduce", "compress", "all_to_all", "average", "all_gather", "update", "check", "agree"};

/// Seconds of each phase of a step. A caller fences before it adds, so that kernels count in the phase that ran them.
class PhaseTimes {
public:
  void add(Phase phase, double seconds) { m_seconds[static_cast<std::size_t>(phase)] += seconds; }
  void set(Phase phase, double seconds) { m_seconds[static_cast<std::size_t>(phase)] = seconds; }
  double operator[](Phase phase) const { return m_seconds[static_cast<std::size_t>(phase)]; }
  void clear() { m_seconds.fill(0); }
  /// The sum over all phases.
  double total() const { return std::accumulate(m_seconds.begin(), m_seconds.end(), 0.0); }
  /// Does `work`, and adds to `phase` what `work` takes beyond the times that it adds itself.
  template <class Work>
  void add_rest(Phase phase, const Work& work) {
    const double before = total();
    const Stopwatch watch;
    work();
    add(phase, watch.seconds() - (total() - before));
  }

private:
  std::array<double, static_cast<std::size_t>(Phase::count)> m_seconds{};
};

}  // namespace onebit
