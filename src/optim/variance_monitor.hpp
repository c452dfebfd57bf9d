#pragma once
/// \file variance_monitor.hpp
/// Decides when the variance is stable enough to be frozen: T_w (Tang et al., ICML 2021, Section 7.1).

#include <algorithm>
#include <cmath>
#include <deque>
#include <vector>

#include "optim/algorithm.hpp"

namespace onebit::optim {

/// Watches ‖v_t‖₁ from step to step, and knows whether v is frozen.
///
/// The paper freezes at the first step, not before the learning rate's warm-up has ended, at which
/// r_t = ‖v_t‖₁ / ‖v_{t−Δ}‖₁ ≥ 0.96 with Δ = 1/(1−β2). Without bias correction v grows from zero, so that r_t ≥ 1 from
/// the start. Here min(r_t, 1/r_t) ≥ 0.96 is asked. Where r_t does not settle, config::latest_freeze sets T_w.
///
/// A skipped step is not recorded. A freeze that is due at it happens at the next recorded step.
class VarianceMonitor {
public:
  /// \param freezes false for an algorithm that has no T_w
  explicit VarianceMonitor(const config::Input& input, bool freezes = true)
      : m_freezes(freezes),
        m_auto(!input.freeze.step.word.empty()),
        m_latest(config::latest_freeze(input)),
        m_warmup(input.schedule.warmup_steps),
        m_delta(std::lround(1.0 / (1.0 - input.optimizer.beta2))) {}

  /// Whether v stays as it is: after T_w.
  bool is_frozen() const { return m_frozen; }
  /// T_w = 0: v is to be frozen before the first step, at 0 or as `freeze.from` left it.
  bool starts_frozen() const { return m_freezes && !m_frozen && !m_auto && m_latest == 0; }
  /// Freezes v before the first step. \param variance_l1 ‖v‖₁
  void start_frozen(double variance_l1) {
    m_frozen = true;
    m_variance_l1 = variance_l1;
  }
  /// Records ‖v_t‖₁ of step t = 1, 2, …, which freezes v if t is T_w. \returns what the step reports of v
  StepState record(long step, double variance_l1) {
    constexpr double threshold = 0.96;  // of the paper
    m_variance_l1 = variance_l1;
    if (static_cast<long>(m_norms.size()) == m_delta) {
      m_ratio = variance_l1 / m_norms.front();
      m_norms.pop_front();
    }
    m_norms.push_back(variance_l1);
    const bool is_stable = std::min(m_ratio, 1.0 / m_ratio) >= threshold;  // false for NaN
    StepState state;
    if (m_freezes && m_auto && step >= m_warmup && is_stable)
      state.frozen_by = "r_t";
    else if (m_freezes && step >= m_latest)
      state.frozen_by = m_auto ? "freeze.at_most" : "freeze.step";
    m_frozen = *state.frozen_by != '\0';
    if (m_frozen) m_frozen_at = step;
    state.variance_l1 = m_variance_l1;
    state.variance_ratio = m_ratio;
    state.frozen_at = m_frozen_at;
    return state;
  }
  /// What a step reports of a frozen v.
  StepState report_frozen() const {
    StepState state;
    state.variance_l1 = m_variance_l1;
    state.variance_ratio = 1;
    state.frozen_at = m_frozen_at;
    return state;
  }
  long delta() const { return m_delta; }

  /// Saves or restores the norms of the last Δ steps.
  void state(NumberArchive& archive) {
    std::vector<double> norms(m_norms.begin(), m_norms.end());
    archive.numbers("state/variance_norms", norms);
    archive.number("state/variance_ratio", m_ratio);
    if (norms.size() > static_cast<std::size_t>(m_delta)) throw archive.unusable("state/variance_norms");
    m_norms.assign(norms.begin(), norms.end());
  }
  /// The same, and whether v is frozen. \param is_frozen name of that
  void state_with_freeze(NumberArchive& archive, const char* is_frozen = "state/frozen") {
    state(archive);
    archive.number("state/variance_l1", m_variance_l1);
    archive.number(is_frozen, m_frozen);
    archive.number("state/frozen_at", m_frozen_at);
  }

private:
  bool m_freezes, m_auto;
  long m_latest;  ///< the variance is frozen at this step in any case
  long m_warmup;
  long m_delta;
  double m_ratio = no_value;   ///< r_t of the last step; NaN while t ≤ Δ
  std::deque<double> m_norms;  ///< ‖v‖₁ of the last Δ steps
  double m_variance_l1 = 0;    ///< ‖v‖₁ of the last step that moved v
  long m_frozen_at = 0;        ///< T_w
  bool m_frozen = false;
};

}  // namespace onebit::optim
