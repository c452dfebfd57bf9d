#pragma once
/// \file adam.hpp
/// Adam, and 1-bit Adam as Adam whose variance is frozen at T_w and whose momentum is averaged compressed from then on
/// (Tang et al., ICML 2021, Algorithm 1). One class, so that both are the same bits before T_w.

#include <optional>

#include "optim/parts.hpp"
#include "optim/variance_monitor.hpp"

namespace onebit::optim {

/// What happens after T_w.
enum class SecondPhase { none, compressed_momentum, dense_momentum };

/// `adam` (none), `onebit_adam` (compressed_momentum), `onebit_adam_32bit` (dense_momentum).
///
/// Phase 1: m ← β1 m + (1−β1) ĝ; v ← β2 v + (1−β2) ĝ²; x ← x − γ (m / (√v + η) + λ x), ĝ the average of the g_i.
/// Phase 2: m_i = β1 m + (1−β1) g_i; m ← average of the m_i; the same update of x with v as it was at T_w.
template <class Exec>
class Adam : public Algorithm<Exec> {
public:
  Adam(const Setup<Exec>& setup, SecondPhase second_phase);

  bool averages_gradient(long) const override { return !m_frozen && !starts_frozen(); }
  StepState step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                 const StepContext& context, PhaseTimes& times) override;

  void state(Archive<Exec>& archive) override;

  /// The two phases' steps. Public only because a device lambda may not stand in a private member function.
  StepState dense_step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                       const StepContext& context, PhaseTimes& times);
  StepState frozen_step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                        const StepContext& context, PhaseTimes& times);

private:
  /// T_w = 0: v is frozen before the first step, at 0, the experiment without a warm-up, or as an earlier run left it.
  bool starts_frozen() const {
    const config::NumberOrWord& steps = m_setup.input.freeze.step;
    return m_second_phase != SecondPhase::none && steps.word.empty() && steps.number == 0;
  }

  Setup<Exec> m_setup;
  SecondPhase m_second_phase;
  VarianceMonitor m_monitor;
  OrderedSum<Exec> m_sum;
  /// In phase 2 the averaged momentum is the messages that brought it, where a rank has all of them: then m_momentum is empty.
  Vector<Exec, float> m_momentum, m_variance;
  bool m_momentum_in_messages = false;
  Vector<Exec, std::uint32_t> m_decays;  ///< (⌈d/32⌉) bit i % 32 of word i / 32: weight decay applies to element i
  std::optional<comm::CompressedAllreduce<Exec>> m_compressed_allreduce;  ///< made at T_w, residuals 0
  ResidualFactor m_residual_factor;
  double m_variance_l1 = 0;
  double m_earlier_steps = 0;  ///< over which `freeze.from` had averaged v; infinite where that is not known
  long m_frozen_at = 0;
  bool m_frozen = false;
};

}  // namespace onebit::optim
