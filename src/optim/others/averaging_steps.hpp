#pragma once
/// \file averaging_steps.hpp
/// When replicas that drift apart are averaged.

#include <string>

#include "config/input.hpp"
#include "optim/archive.hpp"

namespace onebit::optim {

/// Every τ-th step (`optimizer.local_steps`) averages, and so does the last step of the run. When such a step is
/// skipped, the next one averages instead.
class AveragingSteps {
public:
  /// \param offset less than τ; the steps t ≥ 1 with t mod τ = offset average
  explicit AveragingSteps(const config::Input& input, long offset = 0)
      : m_interval(input.optimizer.local_steps),
        m_last_step(input.train.steps),
        m_next(offset > 0 ? offset : m_interval) {}

  /// True when step `step` averages. Every step that is not skipped calls it once.
  bool due(long step) {
    if (step < m_next && step != m_last_step) return false;
    while (m_next <= step) m_next += m_interval;
    return true;
  }
  void state(NumberArchive& archive, const std::string& name = "state/next_average") { archive.number(name, m_next); }

private:
  long m_interval, m_last_step, m_next;
};

}  // namespace onebit::optim
