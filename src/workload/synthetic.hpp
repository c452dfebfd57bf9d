#pragma once
/// \file synthetic.hpp
/// No model at all: a gradient that is the same in every step, so that a step costs nothing but the time that
/// `workload.compute_time_ms` says, and its exchange and update, which are real. For experiments on networks, with models
/// whose computation does not fit onto the machine.

#include "workload/workload.hpp"

namespace onebit::workload {

/// Rank i's gradient is standard normal noise of (seed, i). The tensors have the proportions of a transformer's: an
/// embedding, then 24 layers; they become final from the last to the first. The loss is 0.
template <class Exec>
class Synthetic : public Workload<Exec> {
public:
  Synthetic(const Exec& exec, const config::Input& input, Share share);

  const TensorTable& tensors() const override { return m_tensors; }
  void initialize(const Exec& exec, const Vector<Exec, float>& x) override;
  double gradient(const Exec& exec, const Vector<Exec, float>& x, long step, const Vector<Exec, float>& g,
                  PhaseTimes& times, const GradientProgress& final_from) override;
  LossSum validation_loss(const Exec&, const Vector<Exec, float>&) override { return {}; }
  double tokens_per_step() const override { return m_batch; }

  /// Makes the gradient. Public only because a device lambda may not stand in a private member function.
  void draw(const Exec& exec, std::uint64_t seed, std::uint64_t rank);

private:
  TensorTable m_tensors;
  int m_batch;
  Vector<Exec, float> m_gradient;  ///< (d)
};

}  // namespace onebit::workload
