#pragma once
/// \file sharded_adam.hpp
/// Adam whose state is divided among the ranks (Rajbhandari et al., *ZeRO*, SC 2020, Section 5.1), and 1-bit Adam made
/// of it. docs/reference/algorithms/sharded.md says exactly what they compute.

#include <algorithm>
#include <cmath>

#include "optim/sharded/sharded_momentum.hpp"
#include "optim/variance_monitor.hpp"

namespace onebit::optim {

/// What ranks compress after T_w; `nothing` is Adam, which has no T_w.
enum class Compressed { nothing, momentum, gradient };

/// κ = max(1, (1−β1)/√(1−β2)), the bound on |m| / √v of Adam's own steps (Kingma and Ba, ICLR 2015, Section 2.1). A
/// frozen v bounds nothing, and the elements of a group share one scale: few of them, whose v is tiny, would set it.
inline double greatest_quotient(const config::Input& input) {
  const auto& in = input.optimizer;
  return std::max(1.0, (1 - in.beta1) / std::sqrt(1 - in.beta2));
}

/// `sharded_adam` (nothing), `sharded_onebit_adam` (momentum), `server_onebit_adam` (gradient). Rank k has shard k of m
/// and v, and after T_w the residual ε_k of the update.
template <class Exec>
class ShardedAdam : public Algorithm<Exec> {
public:
  ShardedAdam(const Setup<Exec>& setup, Compressed compressed)
      : m_setup(setup),
        m_shards(setup.transport, chunk_begins(setup)),
        m_monitor(setup.input, compressed != Compressed::nothing),
        m_updates(setup.input),
        m_sum(m_shards.length()),
        m_momentum(m_setup, m_shards, compressed == Compressed::gradient),
        m_variance("OneBit::optim::variance", m_shards.length()),
        m_rates(setup.input, setup.tensors) {}

  StepState step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                 const StepContext& context, PhaseTimes& times) override {
    if (m_monitor.starts_frozen()) {
      m_monitor.start_frozen(m_shards.sum(exec, variance_l1(exec, m_sum, m_variance)));
      begin_frozen();
    }
    if (!m_monitor.is_frozen()) return dense_step(exec, x, g, context, times);
    StepState state = m_monitor.report_frozen();
    if (m_momentum.compresses())
      compressed_step(exec, x, g, context, times, state);
    else
      dense_frozen_step(exec, x, g, context, times);
    return state;
  }

  void state(Archive<Exec>& archive) override {
    m_monitor.state_with_freeze(archive);
    if (m_monitor.is_frozen() && !m_momentum.compresses()) begin_frozen();
    m_momentum.state(archive);
    archive.part("variance", m_variance, m_shards.part());
    m_updates.state(archive);
  }

  // The steps are public because they hold lambdas for the device.

  /// ĝ = average of the g_i; m ← β1 m + (1−β1) ĝ; v ← β2 v + (1−β2) ĝ²; x ← x − γ (m / (√v + η) + λ x), each for the
  /// shard of this rank; then x is gathered.
  StepState dense_step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                       const StepContext& context, PhaseTimes& times) {
    const Region region("OneBit::optim::sharded_dense_step");
    m_shards.average(exec, g, times);

    const Stopwatch watch;
    const Vector<Exec, float> own_g = m_shards.own(g);
    const double norm =
        m_setup.input.optimizer.clip > 0 ? std::sqrt(m_shards.sum(exec, square_norm(exec, m_sum, own_g))) : 0;
    const AdamUpdate update = m_updates.next(context, norm);
    update_all(exec, update, m_rates.from(m_shards.begin()), own_g, m_momentum.own(), m_variance, m_shards.own(x));
    const double l1 = m_shards.sum(exec, variance_l1(exec, m_sum, m_variance));
    times.add(Phase::update, watch.seconds());
    m_shards.gather(exec, x, times);

    const StepState state = m_monitor.record(context.step, l1);
    if (m_monitor.is_frozen()) begin_frozen();
    return state;
  }

  /// After T_w: m ← its compressed average; u_k = γ [m_k / (√v_k + η)] within ±κ; x ← x − f (C(u + ε) + γ λ x).
  void compressed_step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                       const StepContext& context, PhaseTimes& times, StepState& state) {
    const Region region("OneBit::optim::sharded_compressed_step");
    const AdamUpdate update = m_updates.frozen(context);
    const auto pieces = m_momentum.send_update(
        exec, update, g, context.lr,
        [&](const Exec& on, const Vector<Exec, float>& m, const Vector<Exec, float>& u) {
          update_of_shard(on, update, m, u);
        },
        times);

    const Stopwatch watch;
    for (const auto& [elements, decoder] : pieces) apply_update(exec, update, decoder, x);
    fence(exec, "OneBit::optim::apply_update");
    times.add(Phase::update, watch.seconds());

    state.compressed = true;
    m_momentum.report(exec, state);
  }

  /// u_k ← γ [m_k / (√v_k + η)] within ±κ; fences.
  void update_of_shard(const Exec& exec, const AdamUpdate& update, const Vector<Exec, float>& m,
                       const Vector<Exec, float>& u) const {
    const Vector<Exec, float> v = m_variance;
    const float bound = static_cast<float>(greatest_quotient(m_setup.input));
    for_each(
        exec, "OneBit::optim::update_of_shard", u.extent(0), KOKKOS_LAMBDA(std::size_t i) {
          const float quotient = update.preconditioned(m(i), v(i));
          u(i) = update.lr * (quotient > bound ? bound : quotient < -bound ? -bound : quotient);
        });
    fence(exec, "OneBit::optim::update_of_shard");
  }

  /// x ← x − f (C(u + ε) + γ λ x). \param x (d)
  void apply_update(const Exec& exec, const AdamUpdate& update, const compress::AnyDecoder<Exec>& decoder,
                    const Vector<Exec, float>& x) const {
    for_each_decoded_with_rate(
        exec, "OneBit::optim::apply_update", decoder, m_rates, x,
        KOKKOS_LAMBDA(std::size_t i, float sent, const Rate& rate) {
          return x(i) - rate.lr_factor * (sent + update.lr * rate.weight_decay * x(i));
        });
  }

  /// After T_w, without a compressor: as `dense_step`, but v is frozen and g is clipped as in `compressed_step`.
  void dense_frozen_step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                         const StepContext& context, PhaseTimes& times) {
    const Region region("OneBit::optim::sharded_frozen_step");
    m_shards.average(exec, g, times);
    const Stopwatch watch;
    const AdamUpdate update = m_updates.frozen(context);
    update_momentum(exec, update, m_shards.own(g), m_momentum.own());
    update_parameters(exec, update, m_rates.from(m_shards.begin()), m_momentum.own(), m_variance, m_shards.own(x));
    fence(exec, "OneBit::optim::sharded_frozen_update");
    times.add(Phase::update, watch.seconds());
    m_shards.gather(exec, x, times);
  }

private:
  /// At T_w: what is sent is compressed from now on, if a compressor is named.
  void begin_frozen() {
    if (m_setup.input.compression.compressor == CompressorKind::none) return;
    m_setup.transport.free_sums();  // no later step sums gradients
    m_momentum.begin_compressing();
  }

  Setup<Exec> m_setup;
  Shards<Exec> m_shards;
  VarianceMonitor m_monitor;
  AdamUpdates m_updates;
  OrderedSum<Exec> m_sum;  ///< over a shard
  ShardedMomentum<Exec> m_momentum;
  Vector<Exec, float> m_variance;  ///< (shard)
  Rates<Exec> m_rates;
};

}  // namespace onebit::optim
