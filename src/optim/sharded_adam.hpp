#pragma once
/// \file sharded_adam.hpp
/// Adam whose momentum and variance are divided among the ranks (Rajbhandari et al., *ZeRO*, SC 2020, Section 5.1).

#include "optim/adam_update.hpp"
#include "optim/compression.hpp"
#include "optim/shards.hpp"

namespace onebit::optim {

/// `sharded_adam`: rank k has shard k of m and v. It gets shard k of ĝ, updates shard k of x, and sends it to all.
template <class Exec>
class ShardedAdam : public Algorithm<Exec> {
public:
  explicit ShardedAdam(const Setup<Exec>& setup)
      : m_setup(setup),
        m_shards(setup.transport, chunk_begins(setup)),
        m_sum(m_shards.length()),
        m_momentum("OneBit::optim::momentum", m_shards.length()),
        m_variance("OneBit::optim::variance", m_shards.length()),
        m_rates(setup.input, setup.tensors) {}

  /// ĝ = average of the g_i; m ← β1 m + (1−β1) ĝ; v ← β2 v + (1−β2) ĝ²; x ← x − γ (m / (√v + η) + λ x), each for the
  /// shard of this rank; then x is gathered.
  StepState step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                 const StepContext& context, PhaseTimes& times) override {
    const Region region("OneBit::optim::sharded_step");
    m_shards.average(exec, g, times);

    const Stopwatch watch;
    const Vector<Exec, float> own_g = m_shards.own(g);
    const double norm =
        m_setup.input.optimizer.clip > 0 ? std::sqrt(m_shards.sum(exec, square_norm(exec, m_sum, own_g))) : 0;
    const double t = context.step;
    const AdamUpdate update = make_adam_update(m_setup.input, context, norm, t, t + m_earlier_steps);
    update_all(exec, update, m_rates, own_g, m_momentum, m_variance, m_shards.own(x), m_shards.begin());
    StepState state;
    state.variance_l1 = m_shards.sum(exec, variance_l1(exec, m_sum, m_variance));
    times.add(Phase::update, watch.seconds());

    m_shards.gather(exec, x, times);
    return state;
  }

  void state(Archive<Exec>& archive) override {
    archive.part("momentum", m_momentum, m_shards.part());
    archive.part("variance", m_variance, m_shards.part());
    archive.number("state/earlier_steps", m_earlier_steps);
    if (!(m_earlier_steps >= 0)) throw archive.unusable("state/earlier_steps");
  }

private:
  Setup<Exec> m_setup;
  Shards<Exec> m_shards;
  OrderedSum<Exec> m_sum;
  Vector<Exec, float> m_momentum, m_variance;  ///< (shard)
  Rates<Exec> m_rates;
  double m_earlier_steps = 0;  ///< over which v was averaged before the run (`freeze.from`); infinite where unknown
};

}  // namespace onebit::optim
