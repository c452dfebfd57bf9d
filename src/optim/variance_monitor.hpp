#pragma once
/// \file variance_monitor.hpp
/// Decides when the variance is stable enough to be frozen: T_w (Tang et al., ICML 2021, Section 7.1).

#include <deque>

#include "config/input.hpp"
#include "optim/archive.hpp"

namespace onebit::optim {

/// Watches ‖v_t‖₁ from step to step.
///
/// The paper freezes at the first step, not before the learning rate's rise has ended, at which
/// r_t = ‖v_t‖₁ / ‖v_{t−Δ}‖₁ ≥ 0.96 with Δ = 1/(1−β2). Without bias correction v grows from zero, r_t ≥ 1 and that
/// holds at once; so the default asks min(r_t, 1/r_t) ≥ 0.96. Where r_t takes too long, config::latest_freeze sets T_w:
/// the paper's warm-ups are 15 to 20 % of a run.
///
/// A step that was skipped is not recorded. A freeze that falls on it happens at the next recorded step.
class VarianceMonitor {
public:
  explicit VarianceMonitor(const config::Input& input);

  /// Records ‖v_t‖₁ of step t = 1, 2, … \returns true when step t is T_w
  bool record(long step, double variance_l1);
  /// r_t of the last step; NaN while t ≤ Δ.
  double ratio() const { return m_ratio; }
  /// What made the last recorded step T_w, as a message says it; empty when it is not T_w.
  const char* reason() const { return m_reason; }
  long delta() const { return m_delta; }
  /// Saves or restores the norms of the last Δ steps.
  void state(NumberArchive& archive);

private:
  bool m_auto;
  long m_latest;  ///< step at which the variance is frozen in any case
  bool m_two_sided;
  double m_threshold;
  long m_rise;
  long m_delta;
  double m_ratio;
  const char* m_reason = "";
  std::deque<double> m_norms;  ///< ‖v‖₁ of the last Δ steps
};

}  // namespace onebit::optim
