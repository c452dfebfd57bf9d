#pragma once
/// \file distributed_lion.hpp
/// Votes on signs: Distributed Lion (Liu et al., *Communication Efficient Distributed Training with Distributed Lion*,
/// NeurIPS 2024, Algorithm 1), and Signum with majority vote (Bernstein et al., *signSGD: Compressed Optimisation for
/// Non-Convex Problems*, ICML 2018, Algorithm 2, and *signSGD with Majority Vote is Communication Efficient and Fault
/// Tolerant*, ICLR 2019, Algorithm 1). Each rank keeps a momentum of its own.

#include <cmath>

#include "comm/sign_vote.hpp"
#include "optim/algorithm.hpp"
#include "optim/rates/clipping.hpp"
#include "optim/rates/rates.hpp"

namespace onebit::optim {

/// What ranks vote on.
enum class VoteOn {
  update,   ///< c_i, by `optimizer.vote`: `distributed_lion`
  momentum  ///< the new m_i, by majority: `signum`, which is Lion with β2 = β1, so that c_i is m_i
};

/// c_i = β1 m_i + (1−β1) g_i; Δ = the vote on the signs of the c_i; m_i ← β2 m_i + (1−β2) g_i; x ← x − f γ (Δ + λ x).
/// x is the same on all ranks.
template <class Exec>
class DistributedLion : public Algorithm<Exec> {
public:
  DistributedLion(const Setup<Exec>& setup, VoteOn vote_on)
      : m_setup(setup),
        m_beta1(setup.input.optimizer.beta1),
        m_beta2(vote_on == VoteOn::momentum ? m_beta1 : setup.input.optimizer.beta2),
        m_momentum("OneBit::optim::momentum", setup.tensors.size()),
        m_rates(setup.input, setup.tensors),
        m_vote(setup.transport, setup.tensors.size(),
               vote_on == VoteOn::momentum ? Vote::majority : setup.input.optimizer.vote,
               static_cast<std::uint64_t>(setup.input.run.seed)) {}

  StepState step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                 const StepContext& context, PhaseTimes& times) override {
    const Region region("OneBit::optim::distributed_lion");
    Stopwatch watch;
    const float beta1 = static_cast<float>(m_beta1), one_minus_beta1 = static_cast<float>(1.0 - m_beta1);
    const float beta2 = static_cast<float>(m_beta2), one_minus_beta2 = static_cast<float>(1.0 - m_beta2);
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
  double m_beta1, m_beta2;
  Vector<Exec, float> m_momentum;
  Rates<Exec> m_rates;
  comm::SignVote<Exec> m_vote;
};

}  // namespace onebit::optim
