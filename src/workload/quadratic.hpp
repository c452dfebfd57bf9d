#pragma once
/// \file quadratic.hpp
/// A noisy convex quadratic with known optimum, for checks of theory: f(x) = ½ Σ_j h_j (x_j − 1)², h_j spread
/// log-evenly over [1/condition, 1], x₀ = 0. A sample's gradient is ∇f(x) plus σ times standard normal noise.

#include "workload/workload.hpp"

namespace onebit::workload {

template <class Exec>
class Quadratic : public Workload<Exec> {
public:
  Quadratic(const config::Input& input, Share share);

  const TensorTable& tensors() const override { return m_tensors; }
  void initialize(const Exec& exec, const Vector<Exec, float>& x) override;
  double gradient(const Exec& exec, const Vector<Exec, float>& x, long step, const Vector<Exec, float>& g,
                  PhaseTimes& times, const GradientProgress& final_from) override;
  LossSum validation_loss(const Exec& exec, const Vector<Exec, float>& x) override;
  double tokens_per_step() const override { return m_batch; }

  /// f(x), without noise.
  double value(const Exec& exec, const Vector<Exec, float>& x) const;

private:
  TensorTable m_tensors;
  std::uint64_t m_key;
  int m_batch;    ///< samples of one step over all ranks
  int m_samples;  ///< of this rank
  int m_first_sample;
  float m_noise;
  float m_log_condition;
};

}  // namespace onebit::workload
