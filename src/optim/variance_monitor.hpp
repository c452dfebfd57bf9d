#pragma once
/// \file variance_monitor.hpp
/// Decides when the variance is stable enough to be frozen: T_w (Tang et al., ICML 2021, Section 7.1).

#include <deque>

#include "config/input.hpp"
#include "optim/archive.hpp"

namespace onebit::optim {

/// Watches ‖v_t‖₁ from step to step.
///
/// The paper freezes at the first step, not before the learning rate's warm-up has ended, at which
/// r_t = ‖v_t‖₁ / ‖v_{t−Δ}‖₁ ≥ 0.96 with Δ = 1/(1−β2). Without bias correction v grows from zero, so that r_t ≥ 1 from
/// the start. Here min(r_t, 1/r_t) ≥ 0.96 is asked. Where r_t does not settle, config::latest_freeze sets T_w.
///
/// A skipped step is not recorded. A freeze that is due at it happens at the next recorded step.
class VarianceMonitor {
public:
  explicit VarianceMonitor(const config::Input& input);

  /// Records ‖v_t‖₁ of step t = 1, 2, … \returns true when step t is T_w
  bool record(long step, double variance_l1);
  /// r_t of the last step; NaN while t ≤ Δ.
  double ratio() const { return m_ratio; }
  /// What made the last recorded step T_w, for a message; empty when it is not T_w.
  const char* reason() const { return m_reason; }
  long delta() const { return m_delta; }
  /// Saves or restores the norms of the last Δ steps.
  void state(NumberArchive& archive);

private:
  bool m_auto;
  long m_latest;  ///< the variance is frozen at this step in any case
  long m_warmup;
  long m_delta;
  double m_ratio;
  const char* m_reason = "";
  std::deque<double> m_norms;  ///< ‖v‖₁ of the last Δ steps
};

}  // namespace onebit::optim
