#pragma once
/// \file wrapped.hpp
/// Workloads that modify another one: its time, or its result.

#include <chrono>
#include <thread>
#include <utility>

#include "workload/workload.hpp"

namespace onebit::workload {

/// Another workload, unchanged. A derived class overrides what it modifies.
template <class Exec>
class Wrapped : public Workload<Exec> {
public:
  explicit Wrapped(std::unique_ptr<Workload<Exec>> workload) : m_workload(std::move(workload)) {}

  const TensorTable& tensors() const override { return m_workload->tensors(); }
  double bytes() const override { return m_workload->bytes(); }
  void initialize(const Exec& exec, const Vector<Exec, float>& x) override { m_workload->initialize(exec, x); }
  double gradient(const Exec& exec, const Vector<Exec, float>& x, long step, const Vector<Exec, float>& g,
                  PhaseTimes& times, const GradientReady& ready_from) override {
    return m_workload->gradient(exec, x, step, g, times, ready_from);
  }
  LossSum validation_loss(const Exec& exec, const Vector<Exec, float>& x,
                          const std::function<bool()>& goes_on) override {
    return m_workload->validation_loss(exec, x, goes_on);
  }
  Picture picture(const Exec& exec, const Vector<Exec, float>& x) override { return m_workload->picture(exec, x); }
  std::string samples() const override { return m_workload->samples(); }
  double tokens_per_step() const override { return m_workload->tokens_per_step(); }
  nn::QuantizationState quantization() const override { return m_workload->quantization(); }
  long compute_overruns() const override { return m_workload->compute_overruns(); }

private:
  std::unique_ptr<Workload<Exec>> m_workload;
};

/// Sets the time of a gradient to T (`workload.compute_time_ms`): the rank computes, then sleeps. For experiments on
/// networks whose ranks share cores, although in production each would have its own.
///
/// A third of T counts as the forward pass. Two thirds count as the backward pass, in which the gradient becomes
/// complete at an even rate from its end to its beginning: elements [b, d) are reported no earlier than
/// T/3 + (1 − b/d) 2T/3 after the start.
template <class Exec>
class Timed final : public Wrapped<Exec> {
public:
  /// \param seconds T
  Timed(std::unique_ptr<Workload<Exec>> workload, double seconds)
      : Wrapped<Exec>(std::move(workload)), m_seconds(seconds) {}

  double gradient(const Exec& exec, const Vector<Exec, float>& x, long step, const Vector<Exec, float>& g,
                  PhaseTimes& times, const GradientReady& ready_from) override {
    const Stopwatch watch;
    const auto sleep_until = [&](double seconds) {
      std::this_thread::sleep_for(std::chrono::duration<double>(seconds - watch.seconds()));
    };
    const double parameters = static_cast<double>(this->tensors().size());
    GradientReady timed;
    if (ready_from)
      timed = [&](std::size_t b) {
        if (b == 0) return;  // `gradient` returns then
        sleep_until(m_seconds * (1 + 2 * (1 - static_cast<double>(b) / parameters)) / 3);
        ready_from(b);
      };
    PhaseTimes computed;
    const double loss = Wrapped<Exec>::gradient(exec, x, step, g, computed, timed);
    if (watch.seconds() > m_seconds)
      ++m_overruns;
    else
      sleep_until(m_seconds);
    const double seconds = watch.seconds();
    times.add(Phase::forward, seconds / 3);
    times.add(Phase::backward, seconds * 2 / 3);
    return loss;
  }

  long compute_overruns() const override { return m_overruns; }

private:
  double m_seconds;     ///< T
  long m_overruns = 0;  ///< gradients that took longer
};

/// Fails once on purpose, to rehearse what a run then does and prints (section `faults`): in the gradient of one step,
/// makes g(0) NaN, makes x(0) differ from the other ranks', or never returns. In step 0, `initialize` never returns.
template <class Exec>
class Faulty final : public Wrapped<Exec> {
public:
  /// \param kind not `none`
  /// \param step 0 for a hang in `initialize`
  Faulty(std::unique_ptr<Workload<Exec>> workload, Fault kind, long step)
      : Wrapped<Exec>(std::move(workload)), m_kind(kind), m_step(step) {}

  void initialize(const Exec& exec, const Vector<Exec, float>& x) override {
    if (m_step == 0) hang();
    Wrapped<Exec>::initialize(exec, x);
  }

  double gradient(const Exec& exec, const Vector<Exec, float>& x, long step, const Vector<Exec, float>& g,
                  PhaseTimes& times, const GradientReady& ready_from) override {
    if (step != m_step) return Wrapped<Exec>::gradient(exec, x, step, g, times, ready_from);
    const Region region("OneBit::workload::fault");
    if (m_kind == Fault::desync) add_to_first(exec, x, 0.5f);
    if (m_kind == Fault::hang) hang();
    // Reports no elements as complete: those may be averaged at once, before the fault is in them.
    const double loss = Wrapped<Exec>::gradient(exec, x, step, g, times, {});
    if (m_kind == Fault::nan) add_to_first(exec, g, std::numeric_limits<float>::quiet_NaN());
    return loss;
  }

private:
  /// values(0) ← values(0) + value
  static void add_to_first(const Exec& exec, const Vector<Exec, float>& values, float value) {
    const auto first = Kokkos::subview(values, std::make_pair(0, 1));
    const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), first);
    host(0) += value;
    Kokkos::deep_copy(exec, first, host);
    fence(exec, "OneBit::workload::fault");
  }

  [[noreturn]] static void hang() {
    const Region region("OneBit::workload::fault");
    for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
  }

  Fault m_kind;
  long m_step;
};

}  // namespace onebit::workload
