/// \file adam.cpp
/// See adam.hpp.

#include "optim/adam.hpp"

#include <algorithm>
#include <cmath>

#include "optim/adam_update.hpp"

namespace onebit::optim {

template <class Exec>
Adam<Exec>::Adam(const Setup<Exec>& setup, SecondPhase second_phase)
    : m_setup(setup),
      m_second_phase(second_phase),
      m_monitor(setup.input),
      m_sum(setup.tensors.size()),
      m_momentum("OneBit::optim::momentum", setup.tensors.size()),
      m_variance("OneBit::optim::variance", setup.tensors.size()),
      m_decays(decay_bits<Exec>(setup.tensors)),
      m_residual_factor(setup.input) {}

template <class Exec>
StepState Adam<Exec>::step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                           const StepContext& context, PhaseTimes& times) {
  if (!m_frozen && starts_frozen()) {
    m_variance_l1 = variance_l1(exec, m_sum, m_variance);
    m_frozen = true;
  }
  return m_frozen ? frozen_step(exec, x, g, context, times) : dense_step(exec, x, g, context, times);
}

template <class Exec>
StepState Adam<Exec>::dense_step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                                 const StepContext& context, PhaseTimes& times) {
  const Region region("OneBit::optim::dense_step");
  if (!context.averaged) comm::average(exec, m_setup.transport, m_setup.ranks, g, times);

  const Stopwatch watch;
  const double norm = m_setup.input.optimizer.clip > 0 ? l2_norm(exec, m_sum, g) : 0;
  const AdamUpdate update = make_adam_update(m_setup.input, context, context.step, norm, m_earlier_steps);
  update_all(exec, update, m_decays, g, m_momentum, m_variance, x);
  m_variance_l1 = variance_l1(exec, m_sum, m_variance);
  times.add(Phase::update, watch.seconds());

  StepState state;
  const bool stable = m_monitor.record(context.step, m_variance_l1);
  if (stable && m_second_phase != SecondPhase::none) {
    m_frozen = true;
    m_frozen_at = context.step;
    state.frozen_by = m_monitor.reason();
  }
  state.variance_l1 = m_variance_l1;
  state.variance_ratio = m_monitor.ratio();
  state.frozen_at = m_frozen_at;
  return state;
}

template <class Exec>
StepState Adam<Exec>::frozen_step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                                  const StepContext& context, PhaseTimes& times) {
  const Region region("OneBit::optim::frozen_step");
  Stopwatch watch;
  const bool compressed = m_second_phase == SecondPhase::compressed_momentum;
  if (compressed && !m_compressed_allreduce) m_compressed_allreduce.emplace(make_compressed_allreduce(m_setup));

  const AdamUpdate update = make_adam_update(m_setup.input, context, std::min(context.step, m_frozen_at),
                                             std::sqrt(context.mean_square_norm), m_earlier_steps);
  const float residual_factor = compressed ? m_residual_factor(context.lr) : 1.0f;
  const bool in_messages = compressed && m_compressed_allreduce->keeps_messages();
  if (in_messages && m_momentum_in_messages) {
    m_compressed_allreduce->average_in_messages(
        exec, g, {update.beta1, update.one_minus_beta1, update.gradient_factor, m_compressed_allreduce->last()}, times,
        residual_factor);
  } else {
    update_momentum(exec, update, g, m_momentum);
    fence(exec, "OneBit::optim::local_momentum");
    times.add(Phase::compress, watch.seconds());
    if (in_messages)
      m_compressed_allreduce->average_in_messages(exec, m_momentum, {}, times, residual_factor);
    else if (compressed)
      (*m_compressed_allreduce)(exec, m_momentum, times, residual_factor);
    else
      comm::average(exec, m_setup.transport, m_setup.ranks, m_momentum, times);
  }

  watch.restart();
  if (in_messages) {
    update_parameters(exec, update, m_decays, m_compressed_allreduce->last_decoder(), m_variance, x);
    m_momentum_in_messages = true;
    m_momentum = {};
  } else {
    update_parameters(exec, update, m_decays, m_momentum, m_variance, x);
  }
  fence(exec, "OneBit::optim::frozen_update");
  times.add(Phase::update, watch.seconds());

  StepState state;
  state.variance_l1 = m_variance_l1;
  state.variance_ratio = 1;
  state.frozen_at = m_frozen_at;
  if (compressed) report_residuals(exec, *m_compressed_allreduce, state);
  return state;
}

template <class Exec>
void Adam<Exec>::state(Archive<Exec>& archive) {
  Vector<Exec, float> momentum = m_momentum;
  if (m_momentum_in_messages) {
    momentum = make_uninitialized<Exec, float>("OneBit::optim::momentum", m_variance.extent(0));
    m_compressed_allreduce->decompress_last(archive.exec(), momentum);
    fence(archive.exec(), "OneBit::optim::momentum");
  }
  archive.vector("momentum", momentum);
  archive.vector("variance", m_variance);
  m_monitor.state(archive);
  archive.number("state/variance_l1", m_variance_l1);
  archive.number("state/frozen", m_frozen);
  archive.number("state/frozen_at", m_frozen_at);
  archive.number("state/earlier_steps", m_earlier_steps);
  archive_residuals(archive, m_setup, m_compressed_allreduce);
  m_residual_factor.state(archive);
  if (!(m_earlier_steps >= 0)) throw archive.unusable("state/earlier_steps");
  if (!archive.restores()) return;
  m_momentum = momentum;
  m_momentum_in_messages = false;
}

#define ONEBIT_INSTANTIATE(Exec) template class Adam<Exec>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::optim
