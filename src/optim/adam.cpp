/// \file adam.cpp
/// See adam.hpp.

#include "optim/adam.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.hpp"
#include "io/hdf5.hpp"
#include "io/seal.hpp"
#include "optim/adam_update.hpp"

namespace onebit::optim {
namespace {

/// A checkpoint's dataset of one number.
double number_in(const ArrayReader& file, const std::string& path, const std::string& dataset) {
  const std::vector<double> values = file.reals(dataset);
  if (values.size() != 1 || !(values[0] >= 0))
    throw InputError(path, "dataset '" + dataset + "' is not a number of steps", "name another checkpoint");
  return values[0];
}

/// Steps t over which the variance of a checkpoint was averaged since it was 0; infinite where the file does not say.
/// With another β2 they are as many steps as leave the same weight β2ᵗ of that 0.
double steps_of_variance(const ArrayReader& file, const std::string& path, double beta2) {
  if (!file.has("step") || !file.has("input")) return std::numeric_limits<double>::infinity();
  const auto number = [&](const char* dataset) { return file.has(dataset) ? number_in(file, path, dataset) : 0; };
  double steps = number_in(file, path, "step");
  if (number("state/frozen") > 0 || number("state/frozen_at") > 0) steps = std::min(steps, number("state/frozen_at"));
  if (file.has("state/variance_updates")) steps = number("state/variance_updates");
  steps += number("state/earlier_steps");
  const double earlier_beta2 = config::parse(file.text("input"), path + ", its input", {}).optimizer.beta2;
  if (earlier_beta2 == beta2 || steps == 0) return steps;
  return beta2 > 0 && earlier_beta2 > 0 ? steps * std::log(earlier_beta2) / std::log(beta2)
                                        : std::numeric_limits<double>::infinity();
}

/// Reads dataset `variance` of an earlier run of the same model. \returns steps_of_variance
template <class Exec>
double read_variance(const std::string& path, const Vector<Exec, float>& variance, double beta2) {
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
  return steps_of_variance(file, path, beta2);
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
      m_decays(decay_bits<Exec>(setup.tensors)),
      m_residual_factor(setup.input) {
  const std::string& from = setup.input.freeze.from;
  if (from.empty()) return;
  located(setup.input.where("freeze.from"),
          [&] { m_earlier_steps = read_variance<Exec>(from, m_variance, setup.input.optimizer.beta2); });
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
