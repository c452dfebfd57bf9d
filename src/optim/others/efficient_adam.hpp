#pragma once
/// \file efficient_adam.hpp
/// Efficient-Adam (Chen et al., *Efficient-Adam: Communication-Efficient Distributed Adam*, 2022) with the compressed
/// allreduce. docs/reference/algorithms/successors.md says what of it follows the paper.

#include <cmath>

#include "optim/adam_update.hpp"
#include "optim/compression.hpp"
#include "optim/rates/residual_factor.hpp"
#include "optim/variance_monitor.hpp"

namespace onebit::optim {

/// `efficient_adam`: every rank makes Adam's update of its own gradients, and the updates are averaged compressed, from
/// step 1. m_i ← β1 m_i + (1−β1) g_i; v_i ← β2 v_i + (1−β2) g_i²; u ← CA(m_i / (√v_i + η)); x ← x − f γ (u + λ x).
/// The ranks' m_i and v_i differ, and their x is the same bits after every step.
template <class Exec>
class EfficientAdam : public Algorithm<Exec> {
public:
  explicit EfficientAdam(const Setup<Exec>& setup)
      : m_setup(setup),
        m_monitor(setup.input, false),
        m_updates(setup.input),
        m_sum(setup.tensors.size()),
        m_momentum("OneBit::optim::momentum", setup.tensors.size()),
        m_variance("OneBit::optim::variance", setup.tensors.size()),
        m_rates(setup.input, setup.tensors),
        m_compressed_average(setup),
        m_residual_factor(setup.input) {}

  StepState step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                 const StepContext& context, PhaseTimes& times) override {
    const Region region("OneBit::optim::efficient_adam");
    Stopwatch watch;
    const AdamUpdate update = m_updates.next(context, std::sqrt(context.mean_square_norm));
    local_update(exec, update, g);
    fence(exec, "OneBit::optim::local_update");
    times.add(Phase::compress, watch.seconds());

    const auto u = g;
    m_compressed_average(exec, u, times, m_residual_factor(context.lr));

    watch.restart();
    descend(exec, m_rates, context.lr, u, x);
    StepState state = m_monitor.record(context.step, variance_l1(exec, m_sum, m_variance));
    times.add(Phase::update, watch.seconds());

    m_compressed_average.report(exec, state);
    return state;
  }

  void state(Archive<Exec>& archive) override {
    archive.vector("momentum", m_momentum, true);
    archive.vector("variance", m_variance, true);
    m_updates.state(archive);
    m_monitor.state(archive);
    m_compressed_average.state(archive);
    m_residual_factor.state(archive);
  }

  // Public only because a device lambda may not stand in a private member function:

  /// Updates m_i and v_i, and leaves u_i = m_i / (√v_i + η) in the gradient's memory. Does not fence.
  void local_update(const Exec& exec, const AdamUpdate& update, const Vector<Exec, float>& g) {
    const auto m = m_momentum;
    const auto v = m_variance;
    for_each(
        exec, "OneBit::optim::local_update", m.extent(0), KOKKOS_LAMBDA(std::size_t i) {
          const float gradient = update.gradient_factor * g(i);
          m(i) = update.momentum(m(i), gradient);
          v(i) = update.variance(v(i), gradient);
          g(i) = update.preconditioned(m(i), v(i));
        });
  }

private:
  Setup<Exec> m_setup;
  VarianceMonitor m_monitor;  ///< for r_t alone
  AdamUpdates m_updates;
  OrderedSum<Exec> m_sum;
  Vector<Exec, float> m_momentum, m_variance;  ///< (d) m_i and v_i of this rank
  Rates<Exec> m_rates;
  Average<Exec> m_compressed_average;
  ResidualFactor m_residual_factor;
};

}  // namespace onebit::optim
