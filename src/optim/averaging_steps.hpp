#pragma once
/// \file averaging_steps.hpp
/// When replicas that drift apart are averaged.

#include "config/input.hpp"
#include "optim/archive.hpp"

namespace onebit::optim {

/// Every τ-th step (`optimizer.local_steps`) averages, and so does the last step of the run. When such a step is
/// skipped, the next one averages instead.
class AveragingSteps {
public:
  explicit AveragingSteps(const config::Input& input)
      : m_interval(input.optimizer.local_steps), m_last_step(input.train.steps) {}

  /// True when step `step` averages. Every step that is not skipped calls it once.
  bool due(long step) {
    if (step < m_next && step != m_last_step) return false;
    m_next = (step / m_interval + 1) * m_interval;
    return true;
  }
  void state(NumberArchive& archive) { archive.number("state/next_average", m_next); }

private:
  long m_interval, m_last_step, m_next = m_interval;
};

}  // namespace onebit::optim
