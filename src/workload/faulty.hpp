#pragma once
/// \file faulty.hpp
/// A workload that fails on purpose, once, so that what a run says and does then can be rehearsed (section `faults`).

#include "workload/wrapped.hpp"

namespace onebit::workload {

/// The workload, and in one step's gradient the fault: g(0) is NaN, x(0) is another than the other ranks', or it never
/// returns. In step 0 it is `initialize` that does not.
template <class Exec>
class Faulty final : public Wrapped<Exec> {
public:
  /// \param kind not `none`
  /// \param step in whose gradient it fails; 0 for a hang in `initialize`
  Faulty(std::unique_ptr<Workload<Exec>> workload, Fault kind, long step);

  void initialize(const Exec& exec, const Vector<Exec, float>& x) override;
  double gradient(const Exec& exec, const Vector<Exec, float>& x, long step, const Vector<Exec, float>& g,
                  PhaseTimes& times, const GradientProgress& final_from) override;

private:
  Fault m_kind;
  long m_step;
};

}  // namespace onebit::workload
