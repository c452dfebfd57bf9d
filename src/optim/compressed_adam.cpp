/// \file compressed_adam.cpp
/// See compressed_adam.hpp.

#include "optim/compressed_adam.hpp"

#include <cmath>

#include "optim/adam_update.hpp"

namespace onebit::optim {

template <class Exec>
CompressedAdam<Exec>::CompressedAdam(const Setup<Exec>& setup, VarianceFrom variance_from)
    : m_setup(setup),
      m_variance_from(variance_from),
      m_monitor(setup.input),
      m_averaging(setup.input),
      m_sum(setup.tensors.size()),
      m_momentum("OneBit::optim::momentum", setup.tensors.size()),
      m_variance("OneBit::optim::variance", setup.tensors.size()),
      m_decays(decay_bits<Exec>(setup.tensors)),
      m_compressed_allreduce(make_compressed_allreduce(setup)) {
  if (variance_from == VarianceFrom::quantized_average)
    m_quantized_average.emplace(setup.transport, setup.rank, setup.ranks, setup.tensors.size(),
                                setup.input.optimizer.variance_bits, static_cast<std::uint64_t>(setup.input.run.seed));
}

template <class Exec>
StepState CompressedAdam<Exec>::step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                                     const StepContext& context, PhaseTimes& times) {
  const Region region("OneBit::optim::compressed_adam");
  Stopwatch watch;
  const AdamUpdate update = make_adam_update(m_setup.input, context, context.step, std::sqrt(context.mean_square_norm));
  scale(exec, update.gradient_factor, g);
  if (m_variance_from == VarianceFrom::compressed_gradient) {
    times.add(Phase::compress, watch.seconds());
    m_compressed_allreduce(exec, g, times);
    watch.restart();
  }

  const auto m = m_momentum;
  const auto v = m_variance;
  for_each(
      exec, "OneBit::optim::moments", m.extent(0), KOKKOS_LAMBDA(std::size_t i) {
        m(i) = update.momentum(m(i), g(i));
        v(i) = update.variance(v(i), g(i));
      });
  fence(exec, "OneBit::optim::moments");
  if (m_variance_from != VarianceFrom::compressed_gradient) {
    times.add(Phase::compress, watch.seconds());
    m_compressed_allreduce(exec, m, times);
    if (m_quantized_average) (*m_quantized_average)(exec, v, context.step, times);
    watch.restart();
  }

  StepState state;
  update_parameters(exec, update, m_decays, m, v, x);
  state.variance_l1 = variance_l1(exec, m_sum, v);
  times.add(Phase::update, watch.seconds());

  m_monitor.record(context.step, state.variance_l1);
  state.variance_ratio = m_monitor.ratio();
  report_residuals(exec, m_compressed_allreduce, state);
  if (m_variance_from == VarianceFrom::own_gradient) {
    state.synchronised = m_synchronised = m_averaging.due(context.step);
    if (state.synchronised) {
      comm::average(exec, m_setup.transport, m_setup.ranks, x, times);
      comm::average(exec, m_setup.transport, m_setup.ranks, v, times);
    }
  }
  return state;
}

template <class Exec>
void CompressedAdam<Exec>::state(Archive<Exec>& archive) {
  m_averaging.state(archive);
  archive.number("state/synchronised", m_synchronised);
  archive.vector("momentum", m_momentum);
  archive.vector("variance", m_variance, !m_synchronised);
  m_monitor.state(archive);
  archive_residuals(archive, m_compressed_allreduce);
}

#define ONEBIT_INSTANTIATE(Exec) template class CompressedAdam<Exec>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::optim
