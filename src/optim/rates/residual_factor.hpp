#pragma once
/// \file residual_factor.hpp
/// Residuals under a learning rate that changes (docs/reference/algorithms/residuals.md).

#include <cmath>

#include "config/input.hpp"
#include "optim/archive.hpp"

namespace onebit::optim {

/// f_t = γ_{t−1}/γ_t, by which `compression.scale_residual_by_lr` multiplies both residuals of step t. γ_{t−1} is the
/// learning rate of the last step that compressed; a skipped step does not count.
class ResidualFactor {
public:
  explicit ResidualFactor(const config::Input& input) : m_scales(input.compression.scale_residual_by_lr) {}

  /// f_t for γ_t = lr. Every step that compresses calls it once. It is 1 without the key, in the first such step, where
  /// γ_{t−1} or γ_t is 0, and where the quotient exceeds single precision.
  float operator()(double lr) {
    if (!m_scales) return 1;
    m_last_lr = m_lr;
    m_lr = static_cast<float>(lr);  // the update of the parameters rounds it too
    const float factor = m_last_lr > 0 && m_lr > 0 ? m_last_lr / m_lr : 1.0f;
    return std::isfinite(factor) ? factor : 1.0f;
  }
  /// Undoes the last call: its step is skipped.
  void roll_back() { m_lr = m_last_lr; }
  void state(NumberArchive& archive) {
    if (m_scales) archive.number("state/compressed_lr", m_lr);
  }

private:
  bool m_scales;
  float m_lr = 0;       ///< of the last step that compressed; 0 before the first
  float m_last_lr = 0;  ///< of the one before it
};

}  // namespace onebit::optim
