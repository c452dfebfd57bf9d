#pragma once
/// \file signum.hpp
/// Signum with majority vote (Bernstein et al., *signSGD: Compressed Optimisation for Non-Convex Problems*, ICML 2018,
/// Algorithm 2, and *signSGD with Majority Vote is Communication Efficient and Fault Tolerant*, ICLR 2019, Algorithm
/// 1).

#include <cmath>

#include "comm/sign_vote.hpp"
#include "optim/algorithm.hpp"
#include "optim/clipping.hpp"
#include "optim/rates.hpp"

namespace onebit::optim {

/// `signum`: m_i ← β1 m_i + (1−β1) g_i; s = the majority of the signs of the m_i; x ← x − f γ (s + λ x). Each rank
/// keeps its own momentum; x is the same on all ranks.
template <class Exec>
class Signum : public Algorithm<Exec> {
public:
  explicit Signum(const Setup<Exec>& setup)
      : m_setup(setup),
        m_momentum("OneBit::optim::momentum", setup.tensors.size()),
        m_rates(setup.input, setup.tensors),
        m_vote(setup.transport, setup.tensors.size(), Vote::majority,
               static_cast<std::uint64_t>(setup.input.run.seed)) {}

  StepState step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                 const StepContext& context, PhaseTimes& times) override {
    const Region region("OneBit::optim::signum");
    Stopwatch watch;
    const double beta1 = m_setup.input.optimizer.beta1;
    const float beta = static_cast<float>(beta1), one_minus_beta = static_cast<float>(1.0 - beta1);
    const float factor = clip_factor(m_setup.input, std::sqrt(context.mean_square_norm));
    const auto m = m_momentum;
    const auto s = g;  // the gradient's memory holds m_i and then the vote
    for_each(
        exec, "OneBit::optim::local_momentum", m.extent(0), KOKKOS_LAMBDA(std::size_t i) {
          m(i) = beta * m(i) + one_minus_beta * (factor * g(i));
          s(i) = m(i);
        });
    fence(exec, "OneBit::optim::local_momentum");
    times.add(Phase::compress, watch.seconds());

    m_vote(exec, s, context.step, times);

    watch.restart();
    descend(exec, m_rates, context.lr, s, x);
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
