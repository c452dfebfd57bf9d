#pragma once
/// \file nesterov_sgd.hpp
/// The algorithm of docs/develop/extending.md: stochastic gradient descent with Nesterov's momentum (after Sutskever et
/// al., ICML 2013), which is averaged compressed.

#include "base/device/parallel.hpp"
#include "optim/compression.hpp"

namespace onebit::optim {

/// m_i = β1 m⁻ + (1−β1) g_i; m ← CA(m_i); x ← x − γ (m + β1 (m − m⁻)), which is β1 m + (1−β1) g̃ with the average
/// gradient g̃ = (m − β1 m⁻)/(1−β1) that m stands for.
template <class Exec>
class NesterovSgd : public Algorithm<Exec> {
public:
  explicit NesterovSgd(const Setup<Exec>& setup)
      : m_setup(setup), m_momentum("OneBit::optim::momentum", setup.tensors.size()), m_compressed_average(setup) {}

  StepState step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                 const StepContext& context, PhaseTimes& times) override {
    const float beta1 = static_cast<float>(m_setup.input.optimizer.beta1), lr = static_cast<float>(context.lr);
    const auto m = m_momentum;  // a kernel must not hold `this`
    const auto average = g;     // the gradient's memory holds m_i and then its average
    for_each(
        exec, "OneBit::optim::local_momentum", m.extent(0),
        KOKKOS_LAMBDA(std::size_t i) { average(i) = beta1 * m(i) + (1.0f - beta1) * g(i); });
    m_compressed_average(exec, average, times);

    const Stopwatch watch;
    for_each(
        exec, "OneBit::optim::nesterov", m.extent(0), KOKKOS_LAMBDA(std::size_t i) {
          x(i) -= lr * (average(i) + beta1 * (average(i) - m(i)));
          m(i) = average(i);
        });
    fence(exec, "OneBit::optim::nesterov");
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
  Average<Exec> m_compressed_average;
};

}  // namespace onebit::optim
