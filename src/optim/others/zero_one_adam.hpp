#pragma once
/// \file zero_one_adam.hpp
/// 0/1 Adam (Lu et al., *Maximizing Communication Efficiency for Large-scale Training via 0/1 Adam*, 2022, Algorithm
/// 1). It updates its variance at ever rarer steps. The other steps exchange one bit an element, and later most of them
/// exchange nothing. docs/reference/algorithms/successors.md says where it differs from DeepSpeed's.

#include <cmath>

#include "optim/adam_update.hpp"
#include "optim/compression.hpp"
#include "optim/others/zero_one_policy.hpp"

namespace onebit::optim {

/// `zero_one_adam`.
template <class Exec>
class ZeroOneAdam : public Algorithm<Exec> {
public:
  explicit ZeroOneAdam(const Setup<Exec>& setup)
      : m_setup(setup),
        m_policy(setup.input),
        m_sum(setup.tensors.size()),
        m_momentum("OneBit::optim::momentum", setup.tensors.size()),
        m_variance("OneBit::optim::variance", setup.tensors.size()),
        m_anchor("OneBit::optim::anchor", setup.tensors.size()),
        m_accumulated("OneBit::optim::accumulated", setup.tensors.size()),
        m_rates(setup.input, setup.tensors),
        m_compressed_average(setup) {}

  comm::BucketAverage<Exec>* begin(const StepContext& context) override {
    return m_policy.updates_variance(context.step) ? m_setup.gradient_buckets : nullptr;
  }

  StepState step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                 const StepContext& context, PhaseTimes& times) override {
    ++m_updates;
    StepState state = m_policy.updates_variance(context.step) ? variance_step(exec, x, g, context, times)
                                                              : linear_step(exec, x, g, context, times);
    state.variance_l1 = m_variance_l1;
    state.frozen_at = m_policy.frozen_at(context.step);
    if (state.frozen_at > 0) state.frozen_by = "zero_one.variance_freeze_step";
    return state;
  }

  void state(Archive<Exec>& archive) override {
    m_policy.state(archive);
    archive.number("state/updates", m_updates);
    archive.number("state/local_steps", m_local_steps);
    archive.number("state/lr_sum", m_lr_sum);
    archive.number("state/momentum_weight", m_momentum_weight);
    archive.number("state/variance_l1", m_variance_l1);
    archive.number("state/momentum_differs", m_momentum_differs);
    archive.vector("momentum", m_momentum, m_momentum_differs);
    archive.vector("variance", m_variance);
    if (m_local_steps > 0) {
      archive.vector("anchor", m_anchor);
      archive.vector("accumulated", m_accumulated, true);
    }
    m_compressed_average.state(archive);
  }

  // The passes of a linear step; public only because a device lambda may not stand in a private member function.

  /// m_i ← β1 m_i + (1−β1) g_i; u_i ← u_i + γ m_i. \param first after an exchange: u_i = 0 and x_{t'} = x
  void accumulate(const Exec& exec, const AdamUpdate& update, const Vector<Exec, float>& x,
                  const Vector<Exec, float>& g, float lr, bool first) {
    const auto m = m_momentum;
    const auto u = m_accumulated;
    const auto anchor = m_anchor;
    for_each(
        exec, "OneBit::optim::zero_one_local", m.extent(0), KOKKOS_LAMBDA(std::size_t i) {
          m(i) = update.momentum(m(i), update.gradient_factor * g(i));
          u(i) = (first ? 0.0f : u(i)) + lr * m(i);
          if (first) anchor(i) = x(i);
        });
  }

  /// x ← x_{t'} − f (u / (√v + η) + λ Γ x_{t'}). u is without f: CA averages it, and m is made of it.
  void move_from_anchor(const Exec& exec, const AdamUpdate& update, const Vector<Exec, float>& x) {
    const auto v = m_variance;
    const auto u = m_accumulated;
    const auto anchor = m_anchor;
    for_each_with_rate(
        exec, "OneBit::optim::zero_one_update", x.extent(0), m_rates.with_decay_times(m_lr_sum),
        KOKKOS_LAMBDA(std::size_t i, const Rate& rate) {
          x(i) = anchor(i) - rate.lr_factor * (update.quotient(u(i), v(i)) + rate.weight_decay * anchor(i));
        });
  }

  /// m ← u / Γ; where Γ = 0, m_i stays.
  void recover_momentum(const Exec& exec) {
    const float weight = static_cast<float>(m_momentum_weight);
    if (!(weight > 0)) return;
    const auto m = m_momentum;
    const auto u = m_accumulated;
    for_each(
        exec, "OneBit::optim::zero_one_momentum", m.extent(0), KOKKOS_LAMBDA(std::size_t i) { m(i) = u(i) / weight; });
    m_momentum_differs = false;
  }

private:
  /// Adam's step with a dense average. Every step up to F exchanges, so that u = 0 and all ranks have the same x here.
  StepState variance_step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                          const StepContext& context, PhaseTimes& times) {
    const Region region("OneBit::optim::variance_step");
    if (!context.averaged) m_setup.average(exec, g, times);

    const Stopwatch watch;
    m_policy.variance_updated(context.step);
    AdamUpdate update = make_adam_update(m_setup.input, context, norm_to_clip(exec, m_setup.input, m_sum, g), m_updates,
                                         m_policy.variance_updates());
    update.zeros_rest = true;  // m is made of what was received
    update_all(exec, update, m_rates, g, m_momentum, m_variance, x);
    m_variance_l1 = variance_l1(exec, m_sum, m_variance);
    times.add(Phase::update, watch.seconds());
    return {};
  }

  /// A step that leaves the variance as it is. It exchanges u, or is local.
  StepState linear_step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                        const StepContext& context, PhaseTimes& times) {
    const Region region("OneBit::optim::linear_step");
    Stopwatch watch;
    AdamUpdate update = make_adam_update(m_setup.input, context, std::sqrt(context.mean_square_norm), m_updates,
                                         m_policy.variance_updates());
    update.zeros_rest = true;
    const double lr = context.lr * bias_correction(m_setup.input, m_setup.input.optimizer.beta1, m_updates);
    const bool first = m_local_steps == 0;
    if (first) m_lr_sum = m_momentum_weight = 0;
    m_lr_sum += context.lr;
    m_momentum_weight += lr;
    m_momentum_differs = true;
    ++m_local_steps;
    accumulate(exec, update, x, g, static_cast<float>(lr), first);

    StepState state;
    state.compressed = m_compressed_average.compresses();
    state.synchronised = m_policy.synchronises(context.step, m_local_steps);
    if (state.synchronised) {
      fence(exec, "OneBit::optim::zero_one_local");
      times.add(Phase::compress, watch.seconds());
      m_compressed_average(exec, m_accumulated, times);
      watch.restart();
    }
    move_from_anchor(exec, update, x);
    if (state.synchronised) {
      recover_momentum(exec);
      m_local_steps = 0;
    }
    fence(exec, "OneBit::optim::zero_one_update");
    times.add(Phase::update, watch.seconds());
    if (state.synchronised) m_compressed_average.report(exec, state);
    return state;
  }

  Setup<Exec> m_setup;
  ZeroOnePolicy m_policy;
  OrderedSum<Exec> m_sum;
  Vector<Exec, float> m_momentum, m_variance;
  Vector<Exec, float> m_anchor;       ///< (d) x_{t'}: the parameters after the last exchange
  Vector<Exec, float> m_accumulated;  ///< (d) u_i: Σ γ m_i since then
  Rates<Exec> m_rates;
  Average<Exec> m_compressed_average;
  long m_updates = 0;               ///< t of the momentum's bias correction; a skipped step is none
  bool m_momentum_differs = false;  ///< from rank to rank
  long m_local_steps = 0;           ///< since the last exchange
  double m_lr_sum = 0;              ///< Γ: Σ γ since then
  double m_momentum_weight = 0;     ///< Σ γ / (1 − β1ᵗ) since then; Γ without bias correction
  double m_variance_l1 = 0;
};

}  // namespace onebit::optim
