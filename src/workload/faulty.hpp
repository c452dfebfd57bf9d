#pragma once
/// \file faulty.hpp
/// A workload that fails on purpose, once, so that what a run says and does then can be rehearsed (section `faults`).

#include "workload/wrapped.hpp"

namespace onebit::workload {

/// The workload, and in one step's gradient the fault: g(0) is NaN, x(0) is another than the other ranks', or it never
/// returns.
template <class Exec>
class Faulty final : public Wrapped<Exec> {
public:
  /// \param kind not `none`
  /// \param step in whose gradient it fails
  Faulty(std::unique_ptr<Workload<Exec>> workload, config::Fault kind, long step);

  double gradient(const Exec& exec, const Vector<Exec, float>& x, long step, const Vector<Exec, float>& g,
                  PhaseTimes& times, const GradientProgress& final_from) override;

private:
  config::Fault m_kind;
  long m_step;
};

}  // namespace onebit::workload
