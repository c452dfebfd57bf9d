#pragma once
/// \file zero_one_adam.hpp
/// 0/1 Adam: Adam whose variance is updated at ever rarer steps, whose other steps exchange one bit an element, and which
/// later takes local steps that exchange nothing (Lu et al., *Maximizing Communication Efficiency for Large-scale
/// Training via 0/1 Adam*, 2022, Algorithm 1). docs/reference/algorithms.md says where it differs from DeepSpeed's.

#include <optional>

#include "optim/parts.hpp"

namespace onebit::optim {

/// When 0/1 Adam does what (section `zero_one` of the input).
class ZeroOnePolicy {
public:
  explicit ZeroOnePolicy(const config::Input& input);

  /// True when step t updates the variance; the caller then does so, and says it by `variance_updated`. An update that
  /// was due at a skipped step is due at the next one, also the last one, behind F.
  bool updates_variance(long step) const { return step >= m_next_update && m_next_update <= m_freeze_step; }
  void variance_updated(long step);
  /// Updates of the variance so far.
  long variance_updates() const { return m_updates; }
  /// The step from which on the variance does not change: F, or the later step that made up for a skipped update; 0
  /// while step t, which has taken place, is not yet there.
  long frozen_at(long step) const;

  /// True when step t exchanges. \param since steps since the last exchange, t included
  bool synchronises(long step, long since) const { return since >= interval(step) || step == m_last_step; }
  /// Steps from one exchange to the next: 1 up to F, then doubling up to H.
  long interval(long step) const;
  void state(NumberArchive& archive);

private:
  long m_freeze_step, m_update_scaler, m_local_scaler, m_local_clipper, m_last_step;
  long m_updates = 0;
  long m_next_update = 1;
};

/// `zero_one_adam`.
template <class Exec>
class ZeroOneAdam : public Algorithm<Exec> {
public:
  explicit ZeroOneAdam(const Setup<Exec>& setup);

  bool averages_gradient(long step) const override { return m_policy.updates_variance(step); }
  StepState step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                 const StepContext& context, PhaseTimes& times) override;

  void state(Archive<Exec>& archive) override;

  /// The two kinds of step. Public only because a device lambda may not stand in a private member function.
  StepState variance_step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                          const StepContext& context, PhaseTimes& times);
  StepState linear_step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                        const StepContext& context, PhaseTimes& times);

private:
  Setup<Exec> m_setup;
  ZeroOnePolicy m_policy;
  OrderedSum<Exec> m_sum;
  Vector<Exec, float> m_momentum, m_variance;
  Vector<Exec, float> m_anchor;       ///< (d) x_{t'}: the parameters after the last exchange
  Vector<Exec, float> m_accumulated;  ///< (d) u_i: Σ γ m_i since then
  Vector<Exec, std::uint32_t> m_decays;
  comm::CompressedAllreduce<Exec> m_compressed_allreduce;
  bool m_momentum_differs = false;  ///< from rank to rank: until an exchange at a learning rate that is not 0
  long m_local_steps = 0;           ///< since the last exchange
  double m_lr_sum = 0;              ///< Γ: Σ γ since then
  double m_momentum_weight = 0;     ///< Σ γ / (1 − β1ᵗ) since then; Γ without bias correction
  double m_variance_l1 = 0;
};

}  // namespace onebit::optim
