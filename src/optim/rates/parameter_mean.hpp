#pragma once
/// \file parameter_mean.hpp
/// The mean of the parameters over steps, which takes the place of a falling learning rate.

#include "base/device/parallel.hpp"
#include "base/kokkos.hpp"
#include "optim/archive.hpp"

namespace onebit::optim {

/// x̄_t ← x̄_{t−1} + w (x_t − x̄_{t−1}) with w = (η + 1)/(t + η): polynomial-decay averaging (Shamir & Zhang,
/// *Stochastic gradient descent for non-smooth optimization*, ICML 2013, section 4) with η = 9.
///
/// The weight of step s in x̄_t is near 10 s⁹/t¹⁰, so x̄ is a mean over about the last tenth of the steps so far,
/// however many are to come. t counts the steps after which all ranks had the same x: x̄ is the same on all ranks.
template <class Exec>
class ParameterMean {
public:
  using Values = Vector<Exec, float>;

  static constexpr double eta = 9;

  /// mean ← mean + weight (x − mean), of an element; public because a kernel is made of it.
  struct MoveTowards {
    Values mean, x;
    float weight;
    KOKKOS_FUNCTION void operator()(std::size_t i) const { mean(i) += weight * (x(i) - mean(i)); }
  };

  /// Keeps no mean.
  ParameterMean() = default;
  /// Keeps the mean of `parameters` numbers.
  explicit ParameterMean(std::size_t parameters) : m_mean("OneBit::optim::parameter_mean", parameters) {}

  /// Takes in the x (d) of a step, the first with weight 1; fences.
  void add(const Exec& exec, const Values& x) {
    if (m_mean.extent(0) == 0) return;
    const double weight = (eta + 1) / (static_cast<double>(++m_steps) + eta);
    for_each(exec, "OneBit::optim::parameter_mean", x.extent(0), MoveTowards{m_mean, x, static_cast<float>(weight)});
    fence(exec, "OneBit::optim::parameter_mean");
  }

  /// (d) the mean; `x` where none is kept, or before the first step
  const Values& or_else(const Values& x) const { return m_steps > 0 ? m_mean : x; }

  /// Saves or restores t and the mean, if one is kept. \throws InputError for state that does not fit
  void state(Archive<Exec>& archive) {
    if (m_mean.extent(0) == 0) return;
    archive.number("parameter_mean_steps", m_steps);
    if (m_steps > 0) archive.vector("parameter_mean", m_mean, false);
  }

private:
  Values m_mean;     ///< (d), or (0) where none is kept
  long m_steps = 0;  ///< t
};

}  // namespace onebit::optim
