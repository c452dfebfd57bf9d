#pragma once
/// \file wrapped.hpp
/// The base of what changes something of any workload.

#include <utility>

#include "workload/workload.hpp"

namespace onebit::workload {

/// Another workload, unchanged: a class that derives from it overrides what it changes.
template <class Exec>
class Wrapped : public Workload<Exec> {
public:
  explicit Wrapped(std::unique_ptr<Workload<Exec>> workload) : m_workload(std::move(workload)) {}

  const TensorTable& tensors() const override { return m_workload->tensors(); }
  void initialize(const Exec& exec, const Vector<Exec, float>& x) override { m_workload->initialize(exec, x); }
  double gradient(const Exec& exec, const Vector<Exec, float>& x, long step, const Vector<Exec, float>& g,
                  PhaseTimes& times, const GradientProgress& final_from) override {
    return m_workload->gradient(exec, x, step, g, times, final_from);
  }
  LossSum validation_loss(const Exec& exec, const Vector<Exec, float>& x) override {
    return m_workload->validation_loss(exec, x);
  }
  double tokens_per_step() const override { return m_workload->tokens_per_step(); }
  long compute_overruns() const override { return m_workload->compute_overruns(); }

private:
  std::unique_ptr<Workload<Exec>> m_workload;
};

}  // namespace onebit::workload
