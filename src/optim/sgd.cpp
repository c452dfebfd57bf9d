/// \file sgd.cpp
/// See sgd.hpp.

#include "optim/sgd.hpp"

#include <cmath>

namespace onebit::optim {
namespace {

/// m ← β1 m + (1−β1) g
template <class Exec>
void accumulate(const Exec& exec, double beta1, const Vector<Exec, float>& g, const Vector<Exec, float>& m) {
  const float old_share = static_cast<float>(beta1), new_share = static_cast<float>(1.0 - beta1);
  for_each(
      exec, "OneBit::optim::momentum", m.extent(0),
      KOKKOS_LAMBDA(std::size_t i) { m(i) = old_share * m(i) + new_share * g(i); });
  fence(exec, "OneBit::optim::momentum");
}

/// x ← x − γ (direction + λ x)
template <class Exec>
void descend(const Exec& exec, double lr, double weight_decay, const Vector<Exec, std::uint32_t>& decays,
             const Vector<Exec, float>& direction, const Vector<Exec, float>& x) {
  const float gamma = static_cast<float>(lr), lambda = static_cast<float>(weight_decay);
  for_each_with_decay(
      exec, "OneBit::optim::descend", x.extent(0), decays,
      KOKKOS_LAMBDA(std::size_t i, float decaying) { x(i) -= gamma * (direction(i) + decaying * lambda * x(i)); });
  fence(exec, "OneBit::optim::descend");
}

/// CA of what `averaged` says, where it is one that is compressed.
template <class Exec>
std::optional<comm::CompressedAllreduce<Exec>> make_exchange(const Setup<Exec>& setup, Averaged averaged) {
  if (averaged == Averaged::gradient || averaged == Averaged::parameters) return {};
  config::Input input = setup.input;
  CompressorKind& compressor = input.compression.compressor;
  if (averaged == Averaged::column_gradient && compressor != CompressorKind::none) compressor = CompressorKind::column;
  return make_compressed_allreduce(Setup<Exec>{input, setup.tensors, setup.transport, setup.rank, setup.ranks});
}

}  // namespace

template <class Exec>
Sgd<Exec>::Sgd(const Setup<Exec>& setup, Averaged averaged, bool momentum)
    : m_setup(setup),
      m_averaged(averaged),
      m_has_momentum(momentum),
      m_averaging(setup.input),
      m_sum(setup.tensors.size()),
      m_momentum("OneBit::optim::momentum", momentum ? setup.tensors.size() : 0),
      m_decays(decay_bits<Exec>(setup.tensors)),
      m_compressed_allreduce(make_exchange(setup, averaged)),
      m_residual_factor(setup.input) {}

template <class Exec>
StepState Sgd<Exec>::step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                          const StepContext& context, PhaseTimes& times) {
  const Region region("OneBit::optim::sgd");
  const auto& in = m_setup.input.optimizer;
  const bool dense = m_averaged == Averaged::gradient;
  const bool compressed = m_compressed_allreduce.has_value();
  if (dense && !context.averaged) comm::average(exec, m_setup.transport, m_setup.ranks, g, times);

  Stopwatch watch;
  const double norm = in.clip <= 0 ? 0 : dense ? l2_norm(exec, m_sum, g) : std::sqrt(context.mean_square_norm);
  scale(exec, clip_factor(m_setup.input, norm), g);
  const auto exchange = [&](const Vector<Exec, float>& vector) {
    times.add(Phase::compress, watch.seconds());
    (*m_compressed_allreduce)(exec, vector, times, m_residual_factor(context.lr));
    watch.restart();
  };
  if (compressed && m_averaged != Averaged::compressed_momentum) exchange(g);
  if (m_has_momentum) accumulate(exec, in.beta1, g, m_momentum);
  if (m_averaged == Averaged::compressed_momentum) exchange(m_momentum);
  descend(exec, context.lr, in.weight_decay, m_decays, m_has_momentum ? m_momentum : g, x);
  times.add(Phase::update, watch.seconds());

  StepState state;
  if (compressed) report_residuals(exec, *m_compressed_allreduce, state);
  if (m_averaged == Averaged::parameters) {
    state.synchronised = m_synchronised = m_averaging.due(context.step);
    if (state.synchronised) {
      comm::average(exec, m_setup.transport, m_setup.ranks, x, times);
      if (m_has_momentum) comm::average(exec, m_setup.transport, m_setup.ranks, m_momentum, times);
    }
  }
  return state;
}

template <class Exec>
void Sgd<Exec>::state(Archive<Exec>& archive) {
  m_averaging.state(archive);
  archive.number("state/synchronised", m_synchronised);
  if (m_has_momentum) archive.vector("momentum", m_momentum, !m_synchronised);
  if (!m_compressed_allreduce) return;
  archive_residuals(archive, *m_compressed_allreduce);
  m_residual_factor.state(archive);
}

#define ONEBIT_INSTANTIATE(Exec) template class Sgd<Exec>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::optim
