#pragma once
/// \file diloco.hpp
/// DiLoCo (Douillard et al., *DiLoCo: Distributed Low-Communication Training of Language Models*, 2023, Algorithm 1),
/// with the fragments of Streaming DiLoCo (Douillard et al., 2025, Algorithm 2).

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "optim/adam_update.hpp"
#include "optim/compression.hpp"
#include "optim/others/averaging_steps.hpp"

namespace onebit::optim {

/// `diloco`: every step is AdamW on each rank, m_i ← β1 m_i + (1−β1) g_i; v_i ← β2 v_i + (1−β2) g_i²;
/// x_i ← x_i − f γ (m_i / (√v_i + η) + λ x_i). Every H-th step (`optimizer.local_steps`) ends with an outer step of
/// Nesterov's momentum: Δ ← CA(x̄ − x_i); b ← μ b + Δ; x̄ ← x̄ − γ_o (Δ + μ b); x_i ← x̄.
///
/// With P fragments, ranges of x, fragment p takes its outer steps where t mod H = ⌊p H / P⌋. The last step of the run
/// ends with the outer steps of all fragments.
template <class Exec>
class Diloco : public Algorithm<Exec> {
public:
  explicit Diloco(const Setup<Exec>& setup)
      : m_setup(setup),
        m_updates(setup.input),
        m_momentum("OneBit::optim::momentum", setup.tensors.size()),
        m_variance("OneBit::optim::variance", setup.tensors.size()),
        m_anchor("OneBit::optim::anchor", setup.tensors.size()),
        m_outer_momentum("OneBit::optim::outer_momentum", setup.tensors.size()),
        m_rates(setup.input, setup.tensors),
        m_sum(setup.tensors.size()) {
    const long count = setup.input.diloco.fragments, interval = setup.input.optimizer.local_steps;
    const std::size_t length = setup.tensors.size(), words = (length + 31) / 32;
    const auto border = [&](long p) {
      return std::min(length, words * static_cast<std::size_t>(p) / static_cast<std::size_t>(count) * 32);
    };
    for (long p = 0; p < count; ++p) {
      const std::size_t begin = border(p), end = border(p + 1);
      if (begin == end) continue;  // more fragments than words
      m_fragments.push_back(
          {begin, end, AveragingSteps(setup.input, p * interval / count), Average<Exec>(setup, {begin, end})});
    }
  }

  StepState step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                 const StepContext& context, PhaseTimes& times) override {
    const Region region("OneBit::optim::diloco");
    Stopwatch watch;
    if (!m_has_anchor) Kokkos::deep_copy(exec, m_anchor, x);  // all ranks begin with the same x
    m_has_anchor = true;
    const AdamUpdate update = m_updates.next(context, std::sqrt(context.mean_square_norm));
    update_all(exec, update, m_rates, g, m_momentum, m_variance, x);
    StepState state;
    state.variance_l1 = variance_l1(exec, m_sum, m_variance);
    times.add(Phase::update, watch.seconds());

    state.compressed = m_setup.input.compression.compressor != CompressorKind::none;
    for (Fragment& fragment : m_fragments) {
      const bool due = fragment.steps.due(context.step);
      state.synchronised = state.synchronised && due;
      if (!due) continue;
      outer_step(exec, fragment, x, g, times);
      report(exec, fragment, state);
    }
    return state;
  }

  void state(Archive<Exec>& archive) override {
    archive.vector("momentum", m_momentum, true);
    archive.vector("variance", m_variance, true);
    m_updates.state(archive);
    archive.number("state/has_anchor", m_has_anchor);
    archive.vector("anchor", m_anchor);
    archive.vector("outer_momentum", m_outer_momentum);
    for (std::size_t p = 0; p < m_fragments.size(); ++p) {
      m_fragments[p].steps.state(archive, "state/next_average_" + std::to_string(p));
      m_fragments[p].average.state(archive);
    }
  }

  // Public only because a device lambda may not stand in a private member function:

  /// delta ← x̄ − x
  void pseudo_gradient(const Exec& exec, const Vector<Exec, float>& x, std::size_t begin,
                       const Vector<Exec, float>& delta) const {
    const auto anchor = m_anchor;
    for_each(
        exec, "OneBit::optim::pseudo_gradient", delta.extent(0),
        KOKKOS_LAMBDA(std::size_t j) { delta(j) = anchor(begin + j) - x(begin + j); });
    fence(exec, "OneBit::optim::pseudo_gradient");
  }

  /// b ← μ b + Δ; x̄ ← x̄ − γ_o (Δ + μ b); x ← x̄. A tensor with lr_factor 0 stays, whatever the compressor makes of
  /// its Δ = 0.
  void nesterov(const Exec& exec, const Vector<Exec, float>& delta, std::size_t begin,
                const Vector<Exec, float>& x) const {
    const float lr = static_cast<float>(m_setup.input.diloco.outer_lr);
    const float mu = static_cast<float>(m_setup.input.diloco.outer_momentum);
    const auto anchor = m_anchor;
    const auto momentum = m_outer_momentum;
    const Rates<Exec> rates = m_rates;
    for_each(
        exec, "OneBit::optim::nesterov", delta.extent(0), KOKKOS_LAMBDA(std::size_t j) {
          const std::size_t i = begin + j;
          momentum(i) = mu * momentum(i) + delta(j);
          if (rates(i).lr_factor > 0) anchor(i) -= lr * (delta(j) + mu * momentum(i));
          x(i) = anchor(i);
        });
    fence(exec, "OneBit::optim::nesterov");
  }

private:
  /// Elements [begin, end) of x.
  struct Fragment {
    std::size_t begin, end;
    AveragingSteps steps;
    Average<Exec> average;
  };

  /// \param room (d) for Δ
  void outer_step(const Exec& exec, Fragment& fragment, const Vector<Exec, float>& x, const Vector<Exec, float>& room,
                  PhaseTimes& times) {
    const Vector<Exec, float> delta = Kokkos::subview(room, std::make_pair(fragment.begin, fragment.end));
    Stopwatch watch;
    pseudo_gradient(exec, x, fragment.begin, delta);
    times.add(Phase::compress, watch.seconds());
    fragment.average(exec, delta, times);
    watch.restart();
    nesterov(exec, delta, fragment.begin, x);
    times.add(Phase::update, watch.seconds());
  }

  /// The norms are those of all fragments of this step together.
  void report(const Exec& exec, const Fragment& fragment, StepState& state) const {
    StepState own;
    fragment.average.report(exec, own);
    if (!own.compressed) return;
    const auto join = [](double& norm, double other) { norm = std::isnan(norm) ? other : std::hypot(norm, other); };
    join(state.worker_residual_l2, own.worker_residual_l2);
    join(state.server_residual_l2, own.server_residual_l2);
  }

  Setup<Exec> m_setup;
  AdamUpdates m_updates;
  bool m_has_anchor = false;
  Vector<Exec, float> m_momentum, m_variance;      ///< (d) of this rank's AdamW; they are never averaged
  Vector<Exec, float> m_anchor, m_outer_momentum;  ///< (d) x̄ and b, the same bits on every rank
  Rates<Exec> m_rates;
  OrderedSum<Exec> m_sum;
  std::vector<Fragment> m_fragments;
};

}  // namespace onebit::optim
