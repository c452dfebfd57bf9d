#pragma once
/// \file onebit_adam.hpp
/// Adam, and 1-bit Adam: Adam until T_w, then the variance is frozen and the momentum is averaged compressed (Tang et
/// al., ICML 2021, Algorithm 1). One class computes both, so that they are the same bits until T_w.

#include "optim/averaged_momentum.hpp"
#include "optim/variance_monitor.hpp"

namespace onebit::optim {

/// How the momentum is averaged after T_w; `none` is Adam, which has no T_w.
enum class SecondPhase { none, compressed_momentum, dense_momentum };

/// `adam` (none), `onebit_adam` (compressed_momentum), `onebit_adam_32bit` (dense_momentum).
template <class Exec>
class Adam : public Algorithm<Exec> {
public:
  Adam(const Setup<Exec>& setup, SecondPhase second_phase)
      : m_setup(setup),
        m_monitor(setup.input, second_phase != SecondPhase::none),
        m_updates(setup.input),
        m_sum(setup.tensors.size()),
        m_momentum(setup, second_phase == SecondPhase::compressed_momentum),
        m_variance("OneBit::optim::variance", setup.tensors.size()),
        m_rates(setup.input, setup.tensors) {}

  comm::BucketAverage<Exec>* begin(const StepContext& context) override {
    if (m_monitor.is_frozen()) return m_momentum.begin(m_updates.frozen(context), context.lr);
    return m_monitor.starts_frozen() ? nullptr : m_setup.gradient_buckets;
  }
  void roll_back() override {
    if (m_monitor.is_frozen()) m_momentum.roll_back();
  }

  StepState step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                 const StepContext& context, PhaseTimes& times) override {
    if (m_monitor.starts_frozen()) m_monitor.start_frozen(variance_l1(exec, m_sum, m_variance));
    return m_monitor.is_frozen() ? frozen_step(exec, x, g, context, times) : dense_step(exec, x, g, context, times);
  }

  void state(Archive<Exec>& archive) override {
    m_momentum.state(archive);
    archive.vector("variance", m_variance);
    m_monitor.state_with_freeze(archive);
    m_updates.state(archive);
  }

private:
  /// Line 2: ĝ = average of the g_i; m ← β1 m + (1−β1) ĝ; v ← β2 v + (1−β2) ĝ²; x ← x − γ (m / (√v + η) + λ x).
  StepState dense_step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                       const StepContext& context, PhaseTimes& times) {
    const Region region("OneBit::optim::dense_step");
    if (!context.averaged) m_setup.average(exec, g, times);

    const Stopwatch watch;
    const AdamUpdate update = m_updates.next(context, norm_to_clip(exec, m_setup.input, m_sum, g));
    update_all(exec, update, m_rates, g, m_momentum.floats(), m_variance, x);
    const StepState state = m_monitor.record(context.step, variance_l1(exec, m_sum, m_variance));
    times.add(Phase::update, watch.seconds());
    return state;
  }

  /// Lines 5 to 13 of Algorithm 1, after T_w; the average is dense for `onebit_adam_32bit`.
  StepState frozen_step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                        const StepContext& context, PhaseTimes& times) {
    const Region region("OneBit::optim::frozen_step");
    const AdamUpdate update = m_updates.frozen(context);

    // Lines 6 to 12: m ← CA(m_i) with m_i = β1 m + (1−β1) g_i
    if (!context.averaged) m_momentum.average(exec, update, g, context.lr, times);
    // Line 13: x ← x − γ (m / (√v + η) + λ x)
    m_momentum.update_parameters(exec, update, m_rates, m_variance, x, times);

    StepState state = m_monitor.report_frozen();
    m_momentum.report(state);
    return state;
  }

  Setup<Exec> m_setup;
  VarianceMonitor m_monitor;
  AdamUpdates m_updates;
  OrderedSum<Exec> m_sum;
  AveragedMomentum<Exec> m_momentum;
  Vector<Exec, float> m_variance;
  Rates<Exec> m_rates;
};

}  // namespace onebit::optim
