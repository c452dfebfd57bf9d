#pragma once
/// \file onebit_lion.hpp
/// Lion (Chen et al., *Symbolic Discovery of Optimization Algorithms*, 2023) with a compressed average of the momentum.
/// Its only non-linear part, the sign, has no state that would have to be frozen.

#include <cmath>

#include "optim/compression.hpp"
#include "optim/rates/clipping.hpp"
#include "optim/rates/rates.hpp"

namespace onebit::optim {

/// `onebit_lion`: m_i = β2 m⁻ + (1−β2) g_i; m ← CA(m_i); c = m⁻ + (1−β1)/(1−β2) (m − m⁻); x ← x − f γ (sign(c) + λ x),
/// with sign(0) = 0. c is β1 m⁻ + (1−β1) g̃ with the average gradient g̃ = (m − β2 m⁻)/(1−β2).
template <class Exec>
class OnebitLion : public Algorithm<Exec> {
public:
  explicit OnebitLion(const Setup<Exec>& setup)
      : m_setup(setup),
        m_momentum("OneBit::optim::momentum", setup.tensors.size()),
        m_rates(setup.input, setup.tensors),
        m_compressed_average(setup) {}

  StepState step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                 const StepContext& context, PhaseTimes& times) override {
    const Region region("OneBit::optim::lion_step");
    Stopwatch watch;
    const auto& in = m_setup.input.optimizer;
    const float factor = clip_factor(m_setup.input, std::sqrt(context.mean_square_norm));
    const float beta2 = static_cast<float>(in.beta2), one_minus_beta2 = static_cast<float>(1.0 - in.beta2);
    const auto m = m_momentum;
    const auto average = g;  // the gradient's memory holds m_i and then its average
    for_each(
        exec, "OneBit::optim::local_momentum", m.extent(0),
        KOKKOS_LAMBDA(std::size_t i) { average(i) = beta2 * m(i) + one_minus_beta2 * (factor * g(i)); });
    fence(exec, "OneBit::optim::local_momentum");
    times.add(Phase::compress, watch.seconds());

    m_compressed_average(exec, average, times);

    watch.restart();
    const float lr = static_cast<float>(context.lr);
    const float along = static_cast<float>((1.0 - in.beta1) / (1.0 - in.beta2));
    for_each_with_rate(
        exec, "OneBit::optim::lion", m.extent(0), m_rates, KOKKOS_LAMBDA(std::size_t i, const Rate& rate) {
          const float c = m(i) + along * (average(i) - m(i));
          const float sign = c > 0 ? 1.0f : c < 0 ? -1.0f : 0.0f;
          x(i) -= rate.lr_factor * lr * (sign + rate.weight_decay * x(i));
          m(i) = average(i);
        });
    fence(exec, "OneBit::optim::lion");
    times.add(Phase::update, watch.seconds());

    StepState state;
    m_compressed_average.report(exec, state);
    return state;
  }

  void state(Archive<Exec>& archive) override {
    archive.vector("momentum", m_momentum);
    m_compressed_average.state(archive);
  }

private:
  Setup<Exec> m_setup;
  Vector<Exec, float> m_momentum;
  Rates<Exec> m_rates;
  Average<Exec> m_compressed_average;
};

}  // namespace onebit::optim
