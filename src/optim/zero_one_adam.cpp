/// \file zero_one_adam.cpp
/// See zero_one_adam.hpp.

#include "optim/zero_one_adam.hpp"

#include <algorithm>
#include <cmath>

namespace onebit::optim {
namespace {

/// 2^⌊count/scaler⌋, or a number beyond every run's length.
long doubled(long count, long scaler) { return 1L << std::min(count / scaler, 32L); }

/// 1/(1−βᵗ), or 1 without bias correction.
double correction(const config::Input& input, double beta, long count) {
  return input.optimizer.bias_correction ? 1.0 / (1.0 - std::pow(beta, static_cast<double>(count))) : 1.0;
}

}  // namespace

ZeroOnePolicy::ZeroOnePolicy(const config::Input& input)
    : m_freeze_step(input.zero_one.variance_freeze_step),
      m_update_scaler(input.zero_one.variance_update_scaler),
      m_local_scaler(input.zero_one.local_step_scaler),
      m_local_clipper(input.zero_one.local_step_clipper),
      m_last_step(input.train.steps) {}

void ZeroOnePolicy::variance_updated(long step) {
  ++m_updates;
  m_next_update = step + doubled(m_updates, m_update_scaler);
}

long ZeroOnePolicy::frozen_at(long step) const {
  if (step < m_freeze_step) return 0;
  const long last_update = m_next_update - doubled(m_updates, m_update_scaler);
  return std::max(m_freeze_step, last_update);
}

void ZeroOnePolicy::state(NumberArchive& archive) {
  archive.number("state/variance_updates", m_updates);
  archive.number("state/next_variance_update", m_next_update);
}

long ZeroOnePolicy::interval(long step) const {
  return step <= m_freeze_step ? 1 : std::min(m_local_clipper, doubled(step - m_freeze_step - 1, m_local_scaler));
}

template <class Exec>
ZeroOneAdam<Exec>::ZeroOneAdam(const Setup<Exec>& setup)
    : m_setup(setup),
      m_policy(setup.input),
      m_sum(setup.tensors.size()),
      m_momentum("OneBit::optim::momentum", setup.tensors.size()),
      m_variance("OneBit::optim::variance", setup.tensors.size()),
      m_anchor("OneBit::optim::anchor", setup.tensors.size()),
      m_accumulated("OneBit::optim::accumulated", setup.tensors.size()),
      m_decays(decay_bits<Exec>(setup.tensors)),
      m_compressed_allreduce(make_compressed_allreduce(setup)) {}

template <class Exec>
StepState ZeroOneAdam<Exec>::step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                                  const StepContext& context, PhaseTimes& times) {
  StepState state = m_policy.updates_variance(context.step) ? variance_step(exec, x, g, context, times)
                                                            : linear_step(exec, x, g, context, times);
  state.variance_l1 = m_variance_l1;
  state.frozen_at = m_policy.frozen_at(context.step);
  if (state.frozen_at > 0) state.frozen_by = "zero_one.variance_freeze_step";
  return state;
}

// The last step has exchanged, as all up to F do, so u = 0 and x is the same everywhere.
template <class Exec>
StepState ZeroOneAdam<Exec>::variance_step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                                           const StepContext& context, PhaseTimes& times) {
  const Region region("OneBit::optim::variance_step");
  if (!context.averaged) comm::average(exec, m_setup.transport, m_setup.ranks, g, times);

  const Stopwatch watch;
  m_policy.variance_updated(context.step);
  const auto& in = m_setup.input.optimizer;
  const float factor = clip_factor(m_setup.input, in.clip > 0 ? l2_norm(exec, m_sum, g) : 0);
  const float beta1 = static_cast<float>(in.beta1), one_minus_beta1 = static_cast<float>(1.0 - in.beta1);
  const float beta2 = static_cast<float>(in.beta2), one_minus_beta2 = static_cast<float>(1.0 - in.beta2);
  const float epsilon = static_cast<float>(in.epsilon), weight_decay = static_cast<float>(in.weight_decay);
  const float lr = static_cast<float>(context.lr);
  const float momentum_correction = static_cast<float>(correction(m_setup.input, in.beta1, context.step));
  const float variance_correction =
      static_cast<float>(correction(m_setup.input, in.beta2, m_policy.variance_updates()));
  const auto m = m_momentum;
  const auto v = m_variance;
  const auto decays = m_decays;
  for_each_with_decay(
      exec, "OneBit::optim::zero_one_variance", m.extent(0), decays, KOKKOS_LAMBDA(std::size_t i, float decaying) {
        const float gradient = factor * g(i);
        m(i) = beta1 * m(i) + one_minus_beta1 * gradient;
        v(i) = beta2 * v(i) + one_minus_beta2 * gradient * gradient;
        const float direction = m(i) * momentum_correction / (math::sqrt(v(i) * variance_correction) + epsilon);
        x(i) -= lr * (direction + decaying * weight_decay * x(i));
      });
  m_variance_l1 = m_sum(
      exec, "OneBit::optim::variance_l1", KOKKOS_LAMBDA(std::size_t i) { return v(i); });
  times.add(Phase::update, watch.seconds());
  return {};
}

template <class Exec>
StepState ZeroOneAdam<Exec>::linear_step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                                         const StepContext& context, PhaseTimes& times) {
  const Region region("OneBit::optim::linear_step");
  Stopwatch watch;
  const auto& in = m_setup.input.optimizer;
  const bool first = m_local_steps == 0;
  if (first) m_lr_sum = m_momentum_weight = 0;
  const double momentum_lr = context.lr * correction(m_setup.input, in.beta1, context.step);
  ++m_local_steps;
  m_momentum_differs = true;
  m_lr_sum += context.lr;
  m_momentum_weight += momentum_lr;

  const float factor = clip_factor(m_setup.input, std::sqrt(context.mean_square_norm));
  const float beta1 = static_cast<float>(in.beta1), one_minus_beta1 = static_cast<float>(1.0 - in.beta1);
  const float epsilon = static_cast<float>(in.epsilon), lr = static_cast<float>(momentum_lr);
  const float decay = static_cast<float>(in.weight_decay * m_lr_sum);
  const float variance_correction =
      static_cast<float>(correction(m_setup.input, in.beta2, m_policy.variance_updates()));
  const auto m = m_momentum;
  const auto v = m_variance;
  const auto u = m_accumulated;
  const auto anchor = m_anchor;
  const auto decays = m_decays;
  // x_{t'} − u / (√v + η) − λ Γ x_{t'}
  const auto update = KOKKOS_LAMBDA(std::size_t i, float decaying) {
    const float change = u(i) / (math::sqrt(v(i) * variance_correction) + epsilon);
    x(i) = anchor(i) - (change + decaying * decay * anchor(i));
  };
  for_each(
      exec, "OneBit::optim::zero_one_local", m.extent(0), KOKKOS_LAMBDA(std::size_t i) {
        m(i) = beta1 * m(i) + one_minus_beta1 * (factor * g(i));
        u(i) = (first ? 0.0f : u(i)) + lr * m(i);
        if (first) anchor(i) = x(i);
      });
  StepState state;
  state.compressed = true;
  state.synchronised = m_policy.synchronises(context.step, m_local_steps);
  if (!state.synchronised) {
    for_each_with_decay(exec, "OneBit::optim::zero_one_update", m.extent(0), decays, update);
    fence(exec, "OneBit::optim::zero_one_local");
    times.add(Phase::update, watch.seconds());
    return state;
  }
  fence(exec, "OneBit::optim::zero_one_local");
  times.add(Phase::compress, watch.seconds());

  m_compressed_allreduce(exec, u, times);

  watch.restart();
  for_each_with_decay(exec, "OneBit::optim::zero_one_update", m.extent(0), decays, update);
  const float weight = static_cast<float>(m_momentum_weight);
  if (weight > 0) {
    for_each(
        exec, "OneBit::optim::zero_one_momentum", m.extent(0), KOKKOS_LAMBDA(std::size_t i) { m(i) = u(i) / weight; });
    m_momentum_differs = false;
  }
  m_local_steps = 0;
  fence(exec, "OneBit::optim::zero_one_update");
  times.add(Phase::update, watch.seconds());
  report_residuals(exec, m_compressed_allreduce, state);
  return state;
}

template <class Exec>
void ZeroOneAdam<Exec>::state(Archive<Exec>& archive) {
  m_policy.state(archive);
  archive.number("state/local_steps", m_local_steps);
  archive.number("state/lr_sum", m_lr_sum);
  archive.number("state/momentum_weight", m_momentum_weight);
  archive.number("state/variance_l1", m_variance_l1);
  archive.number("state/momentum_differs", m_momentum_differs);
  archive.vector("momentum", m_momentum, m_momentum_differs);
  archive.vector("variance", m_variance);
  if (m_local_steps > 0) {
    archive.vector("anchor", m_anchor);
    archive.vector("accumulated", m_accumulated, true);
  }
  archive_residuals(archive, m_compressed_allreduce);
}

#define ONEBIT_INSTANTIATE(Exec) template class ZeroOneAdam<Exec>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::optim
