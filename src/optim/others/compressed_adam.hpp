#pragma once
/// \file compressed_adam.hpp
/// Adam with compressed averages and without a frozen variance: the shortcuts that Tang et al., ICML 2021, show to fail
/// (Section 3.2 and Figure 1; supplement, Section 10, Figures 12 and 13).

#include <cmath>
#include <optional>

#include "comm/quantized_average.hpp"
#include "optim/adam_update.hpp"
#include "optim/compression.hpp"
#include "optim/others/averaging_steps.hpp"
#include "optim/variance_monitor.hpp"

namespace onebit::optim {

/// What the variance is made of.
enum class VarianceFrom {
  compressed_gradient,  ///< the gradients' compressed average: `adam_1bit_naive`
  quantized_average,  ///< each rank's gradient; the v_i are averaged in a few bits in every step: `adam_nbit_variance`
  own_gradient        ///< each rank's gradient; the v_i are averaged densely every τ steps: `adam_lazy_variance`
};

/// - `compressed_gradient`: ĝ = CA(g_i); m ← β1 m + (1−β1) ĝ; v ← β2 v + (1−β2) ĝ²
/// - `quantized_average`: m_i = β1 m + (1−β1) g_i; m ← CA(m_i); v_i = β2 v + (1−β2) g_i²; v ← average of the quantised
///   v_i (`optimizer.variance_bits`)
/// - `own_gradient`: m_i and m likewise; v_i ← β2 v_i + (1−β2) g_i². x and v are averaged every τ steps
///   (`optimizer.local_steps`), and the ranks' x differ in between.
///
/// Then x ← x − γ (m / (√v + η) + λ x).
template <class Exec>
class CompressedAdam : public Algorithm<Exec> {
public:
  CompressedAdam(const Setup<Exec>& setup, VarianceFrom variance_from)
      : m_setup(setup),
        m_variance_from(variance_from),
        m_monitor(setup.input, false),
        m_updates(setup.input),
        m_averaging(setup.input),
        m_sum(setup.tensors.size()),
        m_momentum("OneBit::optim::momentum", setup.tensors.size()),
        m_variance("OneBit::optim::variance", setup.tensors.size()),
        m_rates(setup.input, setup.tensors),
        m_compressed_average(setup) {
    if (variance_from == VarianceFrom::quantized_average)
      m_quantized_average.emplace(setup.transport, setup.tensors.size(), setup.input.optimizer.variance_bits,
                                  static_cast<std::uint64_t>(setup.input.run.seed));
  }

  StepState step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                 const StepContext& context, PhaseTimes& times) override {
    const Region region("OneBit::optim::compressed_adam");
    Stopwatch watch;
    const AdamUpdate update = m_updates.next(context, std::sqrt(context.mean_square_norm));
    scale(exec, update.gradient_factor, g);
    if (m_variance_from == VarianceFrom::compressed_gradient) {
      times.add(Phase::compress, watch.seconds());
      m_compressed_average(exec, g, times);
      watch.restart();
    }

    const auto m = m_momentum;
    const auto v = m_variance;
    for_each(
        exec, "OneBit::optim::moments", m.extent(0), KOKKOS_LAMBDA(std::size_t i) {
          m(i) = update.momentum(m(i), g(i));
          v(i) = update.variance(v(i), g(i));
        });
    fence(exec, "OneBit::optim::moments");
    if (m_variance_from != VarianceFrom::compressed_gradient) {
      times.add(Phase::compress, watch.seconds());
      m_compressed_average(exec, m, times);
      if (m_quantized_average) (*m_quantized_average)(exec, v, context.step, times);
      watch.restart();
    }

    update_parameters(exec, update, m_rates, m, v, x);
    StepState state = m_monitor.record(context.step, variance_l1(exec, m_sum, v));
    times.add(Phase::update, watch.seconds());

    m_compressed_average.report(exec, state);
    if (m_variance_from == VarianceFrom::own_gradient) {
      state.synchronised = m_synchronised = m_averaging.due(context.step);
      if (state.synchronised) {
        comm::average(exec, m_setup.transport, x, times);
        comm::average(exec, m_setup.transport, v, times);
      }
    }
    return state;
  }

  void state(Archive<Exec>& archive) override {
    m_averaging.state(archive);
    archive.number("state/synchronised", m_synchronised);
    archive.vector("momentum", m_momentum);
    archive.vector("variance", m_variance, !m_synchronised);
    m_updates.state(archive);
    m_monitor.state(archive);
    m_compressed_average.state(archive);
  }

private:
  Setup<Exec> m_setup;
  VarianceFrom m_variance_from;
  VarianceMonitor m_monitor;  ///< for r_t alone
  AdamUpdates m_updates;
  AveragingSteps m_averaging;
  bool m_synchronised = true;  ///< the ranks' x are the same bits
  OrderedSum<Exec> m_sum;
  Vector<Exec, float> m_momentum, m_variance;
  Rates<Exec> m_rates;
  Average<Exec> m_compressed_average;
  std::optional<comm::QuantizedAverage<Exec>> m_quantized_average;
};

}  // namespace onebit::optim
