/// \file adam.cpp
/// See adam.hpp.

#include "optim/adam.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "base/hdf5.hpp"
#include "base/seal.hpp"
#include "optim/adam_update.hpp"

namespace onebit::optim {
namespace {

/// Reads dataset `variance` of an earlier run of the same model.
template <class Exec>
void read_variance(const std::string& path, const Vector<Exec, float>& variance) {
  if (is_sealed(path)) verify_seal(path);
  const ArrayReader file(path);
  const std::vector<std::size_t> shape = {variance.extent(0)};
  if (!file.has("variance") || file.shape("variance") != shape)
    throw InputError(path, "there is no variance of " + std::to_string(shape[0]) + " parameters in it",
                     "name a checkpoint that a run of the same model with adam or onebit_adam left");
  const auto host = Kokkos::create_mirror_view(variance);
  file.read("variance", {0}, shape, host.data());
  for (std::size_t i = 0; i < shape[0]; ++i)
    if (!(host(i) >= 0 && std::isfinite(host(i))))
      throw InputError(path, "element " + std::to_string(i) + " of its variance is negative or not finite",
                       "name another checkpoint");
  Kokkos::deep_copy(variance, host);
}

}  // namespace

template <class Exec>
Adam<Exec>::Adam(const Setup<Exec>& setup, SecondPhase second_phase)
    : m_setup(setup),
      m_second_phase(second_phase),
      m_monitor(setup.input),
      m_sum(setup.tensors.size()),
      m_momentum("OneBit::optim::momentum", setup.tensors.size()),
      m_variance("OneBit::optim::variance", setup.tensors.size()),
      m_decays(decay_bits<Exec>(setup.tensors)) {
  const std::string& from = setup.input.warmup.from;
  if (from.empty()) return;
  located(setup.input.where("warmup.from"), [&] { read_variance<Exec>(from, m_variance); });
}

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
  const AdamUpdate update = make_adam_update(m_setup.input, context, context.step, norm);
  update_all(exec, update, m_decays, g, m_momentum, m_variance, x);
  m_variance_l1 = variance_l1(exec, m_sum, m_variance);
  times.add(Phase::update, watch.seconds());

  StepState state;
  const bool stable = m_monitor.record(context.step, m_variance_l1);
  if (stable && m_second_phase != SecondPhase::none) {
    m_frozen = true;
    m_frozen_at = context.step;
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
                                             std::sqrt(context.mean_square_norm));
  const bool in_messages = compressed && m_compressed_allreduce->keeps_messages();
  if (in_messages && m_momentum_in_messages) {
    m_compressed_allreduce->average_in_messages(
        exec, g, {update.beta1, update.one_minus_beta1, update.gradient_factor, m_compressed_allreduce->last()}, times);
  } else {
    update_momentum(exec, update, g, m_momentum);
    fence(exec, "OneBit::optim::local_momentum");
    times.add(Phase::compress, watch.seconds());
    if (in_messages)
      m_compressed_allreduce->average_in_messages(exec, m_momentum, {}, times);
    else if (compressed)
      (*m_compressed_allreduce)(exec, m_momentum, times);
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
  archive_residuals(archive, m_setup, m_compressed_allreduce);
  if (!archive.restores()) return;
  m_momentum = momentum;
  m_momentum_in_messages = false;
}

#define ONEBIT_INSTANTIATE(Exec) template class Adam<Exec>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::optim
