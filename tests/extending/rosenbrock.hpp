#pragma once
/// \file rosenbrock.hpp
/// The workload of docs/develop/extending.md: Rosenbrock's valley (1960), the classical function that is not convex.

#include "base/device/parallel.hpp"
#include "workload/workload.hpp"

namespace onebit::workload {

/// f(x) = Σ_k (a − x_{2k})² + 100 (x_{2k+1} − x_{2k}²)², with the least value where all x are 1 for a = 1. Ranks have
/// other a, whose mean is 1.
template <class Exec>
class Rosenbrock : public Workload<Exec> {
public:
  Rosenbrock(std::size_t pairs, Share share)
      : m_a(1.0f + 0.1f * (static_cast<float>(share.rank) - 0.5f * static_cast<float>(share.ranks - 1))), m_sum(pairs) {
    m_tensors.add("x", {pairs, 2}, true);
  }

  const TensorTable& tensors() const override { return m_tensors; }
  void initialize(const Exec& exec, const Vector<Exec, float>& x) override { Kokkos::deep_copy(exec, x, -1.0f); }

  double gradient(const Exec& exec, const Vector<Exec, float>& x, long, const Vector<Exec, float>& g, PhaseTimes& times,
                  const GradientReady&) override {
    const Stopwatch watch;
    const float a = m_a;
    for_each(
        exec, "OneBit::workload::rosenbrock", x.extent(0) / 2, KOKKOS_LAMBDA(std::size_t k) {
          const float u = x(2 * k), height = x(2 * k + 1) - u * u;
          g(2 * k) = -2.0f * (a - u) - 400.0f * u * height;
          g(2 * k + 1) = 200.0f * height;
        });
    fence(exec, "OneBit::workload::rosenbrock");
    times.add(Phase::backward, watch.seconds());
    return value(exec, x, a);
  }

  LossSum validation_loss(const Exec& exec, const Vector<Exec, float>& x,
                          const std::function<bool()>& /*goes_on*/) override {
    return {value(exec, x, 1.0f), 1};
  }
  double tokens_per_step() const override { return 1; }

  double value(const Exec& exec, const Vector<Exec, float>& x, float a) const {
    return m_sum(
        exec, "OneBit::workload::rosenbrock_value", KOKKOS_LAMBDA(std::size_t k) {
          const double u = x(2 * k), height = x(2 * k + 1) - u * u;
          return (a - u) * (a - u) + 100.0 * height * height;
        });
  }

private:
  float m_a;
  TensorTable m_tensors;
  OrderedSum<Exec> m_sum;
};

}  // namespace onebit::workload
