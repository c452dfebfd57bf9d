#pragma once
/// \file zero_one_policy.hpp
/// The steps at which 0/1 Adam updates its variance, T_v, and at which it exchanges, T_u
/// (docs/reference/algorithms/successors.md).

#include <algorithm>

#include "config/input.hpp"
#include "optim/archive.hpp"

namespace onebit::optim {

/// Section `zero_one` of the input.
class ZeroOnePolicy {
public:
  explicit ZeroOnePolicy(const config::Input& input)
      : m_freeze_step(input.zero_one.variance_freeze_step),
        m_update_scaler(input.zero_one.variance_update_scaler),
        m_local_scaler(input.zero_one.local_step_scaler),
        m_local_clipper(input.zero_one.local_step_clipper),
        m_last_step(input.train.steps) {}

  /// True when step t updates the variance; the caller then calls `variance_updated`. An update that is due at a
  /// skipped step is due at the next one, even if that is behind F.
  bool updates_variance(long step) const { return step >= m_next_update && m_next_update <= m_freeze_step; }
  void variance_updated(long step) {
    ++m_updates;
    m_next_update = step + doubled(m_updates, m_update_scaler);
  }
  /// Updates of the variance so far.
  long variance_updates() const { return m_updates; }
  /// The step that froze the variance: F, or the later step that made up for a skipped update; 0 if the last step, t,
  /// is before it.
  long frozen_at(long step) const {
    if (step < m_freeze_step) return 0;
    const long last_update = m_next_update - doubled(m_updates, m_update_scaler);
    return std::max(m_freeze_step, last_update);
  }

  /// True when step t exchanges. \param since steps since the last exchange, t included
  bool synchronises(long step, long since) const { return since >= interval(step) || step == m_last_step; }
  /// Steps from one exchange to the next: 1 up to F, then powers of two up to H.
  long interval(long step) const {
    return step <= m_freeze_step ? 1 : std::min(m_local_clipper, doubled(step - m_freeze_step - 1, m_local_scaler));
  }

  void state(NumberArchive& archive) {
    archive.number("state/variance_updates", m_updates);
    archive.number("state/next_variance_update", m_next_update);
  }

private:
  /// 2^⌊count/scaler⌋, at most 2³², which exceeds the length of every run.
  static long doubled(long count, long scaler) { return 1L << std::min(count / scaler, 32L); }

  long m_freeze_step, m_update_scaler, m_local_scaler, m_local_clipper, m_last_step;
  long m_updates = 0;
  long m_next_update = 1;
};

}  // namespace onebit::optim
