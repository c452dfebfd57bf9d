#pragma once
/// \file distributed_lion.hpp
/// Distributed Lion (Liu et al., *Communication Efficient Distributed Training with Distributed Lion*, NeurIPS 2024,
/// Algorithm 1): each rank runs Lion with a momentum of its own, and the ranks vote on the sign of the update.

#include <cmath>

#include "comm/sign_vote.hpp"
#include "optim/algorithm.hpp"
#include "optim/clipping.hpp"
#include "optim/rates.hpp"

namespace onebit::optim {

/// `distributed_lion`: c_i = β1 m_i + (1−β1) g_i; Δ = the vote on the signs of the c_i (`optimizer.vote`);
/// m_i ← β2 m_i + (1−β2) g_i; x ← x − f γ (Δ + λ x). x is the same on all ranks.
template <class Exec>
class DistributedLion : public Algorithm<Exec> {
public:
  explicit DistributedLion(const Setup<Exec>& setup)
      : m_setup(setup),
        m_momentum("OneBit::optim::momentum", setup.tensors.size()),
        m_rates(setup.input, setup.tensors),
        m_vote(setup.transport, setup.tensors.size(), setup.input.optimizer.vote,
               static_cast<std::uint64_t>(setup.input.run.seed)) {}

  StepState step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                 const StepContext& context, PhaseTimes& times) override {
    const Region region("OneBit::optim::distributed_lion");
    Stopwatch watch;
    const auto& in = m_setup.input.optimizer;
    const float beta1 = static_cast<float>(in.beta1), one_minus_beta1 = static_cast<float>(1.0 - in.beta1);
    const float beta2 = static_cast<float>(in.beta2), one_minus_beta2 = static_cast<float>(1.0 - in.beta2);
    const float factor = clip_factor(m_setup.input, std::sqrt(context.mean_square_norm));
    const auto m = m_momentum;
    const auto delta = g;  // the gradient's memory holds c_i and then Δ
    for_each(
        exec, "OneBit::optim::local_lion", m.extent(0), KOKKOS_LAMBDA(std::size_t i) {
          const float gradient = factor * g(i), momentum = m(i);
          delta(i) = beta1 * momentum + one_minus_beta1 * gradient;
          m(i) = beta2 * momentum + one_minus_beta2 * gradient;
        });
    fence(exec, "OneBit::optim::local_lion");
    times.add(Phase::compress, watch.seconds());

    m_vote(exec, delta, context.step, times);

    watch.restart();
    descend(exec, m_rates, context.lr, delta, x);
    times.add(Phase::update, watch.seconds());

    StepState state;
    state.compressed = true;
    return state;
  }

  void state(Archive<Exec>& archive) override { archive.vector("momentum", m_momentum, true); }

private:
  Setup<Exec> m_setup;
  Vector<Exec, float> m_momentum;
  Rates<Exec> m_rates;
  comm::SignVote<Exec> m_vote;
};

}  // namespace onebit::optim
