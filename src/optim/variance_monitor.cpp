#include "optim/variance_monitor.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace onebit::optim {

constexpr double threshold = 0.96;  // of the paper (Section 7.1)

VarianceMonitor::VarianceMonitor(const config::Input& input)
    : m_auto(!input.freeze.step.word.empty()),
      m_latest(config::latest_freeze(input)),
      m_warmup(input.schedule.warmup_steps),
      m_delta(std::lround(1.0 / (1.0 - input.optimizer.beta2))),
      m_ratio(std::numeric_limits<double>::quiet_NaN()) {}

bool VarianceMonitor::record(long step, double variance_l1) {
  if (static_cast<long>(m_norms.size()) == m_delta) {
    m_ratio = variance_l1 / m_norms.front();
    m_norms.pop_front();
  }
  m_norms.push_back(variance_l1);
  const double stability = std::min(m_ratio, 1.0 / m_ratio);
  if (m_auto && step >= m_warmup && stability >= threshold)  // false for NaN
    m_reason = "r_t";
  else if (step >= m_latest)
    m_reason = m_auto ? "freeze.at_most" : "freeze.step";
  else
    m_reason = "";
  return *m_reason != '\0';
}

void VarianceMonitor::state(NumberArchive& archive) {
  std::vector<double> norms(m_norms.begin(), m_norms.end());
  archive.numbers("state/variance_norms", norms);
  archive.number("state/variance_ratio", m_ratio);
  if (norms.size() > static_cast<std::size_t>(m_delta)) throw archive.unusable("state/variance_norms");
  m_norms.assign(norms.begin(), norms.end());
}

}  // namespace onebit::optim
