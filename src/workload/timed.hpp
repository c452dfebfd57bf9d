#pragma once
/// \file timed.hpp
/// Any workload, with the time that its gradient takes set by the input (`workload.compute_time_ms`): for experiments in
/// which ranks share cores that each would have for itself, so that only what the network carries is real.

#include "workload/wrapped.hpp"

namespace onebit::workload {

/// A gradient takes the time T: the rank computes, and sleeps for the rest. A third of T counts as the forward pass, two
/// thirds as the backward pass, in which the gradient becomes final evenly from its end to its beginning: elements [b, d)
/// are reported no earlier than T/3 + (1 − b/d) 2T/3 after the begin.
template <class Exec>
class Timed final : public Wrapped<Exec> {
public:
  /// \param seconds T
  Timed(std::unique_ptr<Workload<Exec>> workload, double seconds);

  double gradient(const Exec& exec, const Vector<Exec, float>& x, long step, const Vector<Exec, float>& g,
                  PhaseTimes& times, const GradientProgress& final_from) override;
  long compute_overruns() const override { return m_overruns; }

private:
  double m_seconds;
  long m_overruns = 0;
};

}  // namespace onebit::workload
