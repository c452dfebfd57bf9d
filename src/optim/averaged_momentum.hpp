#pragma once
/// \file averaged_momentum.hpp
/// The momentum of 1-bit Adam (Tang et al., ICML 2021, Algorithm 1).

#include <optional>

#include "optim/adam_update.hpp"
#include "optim/compression.hpp"
#include "optim/residual_factor.hpp"

namespace onebit::optim {

/// m_i: a vector, or the moving average of messages and this vector, which the compressor computes as it reads both.
template <class Exec>
struct LocalMomentum {
  Vector<Exec, float> vector;
  compress::MovingAverage<Exec> average;
};

/// m, the same on every rank.
///
/// A flat compressed allreduce brings all of m to every rank as messages, and m then stays in them. The kernels decode
/// them, so that a step reads a bit or a few for each element of m instead of reading and writing floats.
template <class Exec>
class AveragedMomentum {
public:
  /// m = 0. \param compressed averages by CA, else densely
  AveragedMomentum(const Setup<Exec>& setup, bool compressed)
      : m_setup(setup),
        m_compressed(compressed),
        m_floats("OneBit::optim::momentum", setup.tensors.size()),
        m_residual_factor(setup.input) {}

  /// m as floats; (0) once it is in messages.
  const Vector<Exec, float>& floats() const { return m_floats; }

  /// m_i = β1 m + (1−β1) g_i. It shares the memory of m or g.
  LocalMomentum<Exec> local(const Exec& exec, const AdamUpdate& update, const Vector<Exec, float>& g,
                            PhaseTimes& times) {
    const Stopwatch watch;
    if (m_compressed && !m_allreduce) m_allreduce.emplace(make_compressed_allreduce(m_setup));
    if (is_in_messages())
      return {g, {update.beta1, update.one_minus_beta1, update.gradient_factor, m_allreduce->last()}};
    update_momentum(exec, update, g, m_floats);
    fence(exec, "OneBit::optim::local_momentum");
    times.add(Phase::compress, watch.seconds());
    return {m_floats, {}};
  }

  /// m ← CA(m_i), or the dense average of the m_i. \param lr γ_t, for `compression.scale_residual_by_lr`
  void average(const Exec& exec, const LocalMomentum<Exec>& m_i, double lr, PhaseTimes& times) {
    if (!m_compressed) return m_setup.average(exec, m_i.vector, times);
    const float residual_factor = m_residual_factor(lr);
    if (!m_allreduce->keeps_messages()) return (*m_allreduce)(exec, m_i.vector, times, residual_factor);
    m_allreduce->average_in_messages(exec, m_i.vector, m_i.average, times, residual_factor);
    m_floats = {};
  }

  /// x ← x − f γ (m / (√v + η) + λ x)
  void update_parameters(const Exec& exec, const AdamUpdate& update, const Rates<Exec>& rates,
                         const Vector<Exec, float>& v, const Vector<Exec, float>& x, PhaseTimes& times) const {
    const Stopwatch watch;
    if (is_in_messages())
      optim::update_parameters(exec, update, rates, m_allreduce->last_decoder(), v, x);
    else
      optim::update_parameters(exec, update, rates, m_floats, v, x);
    fence(exec, "OneBit::optim::frozen_update");
    times.add(Phase::update, watch.seconds());
  }

  /// As report_residuals.
  void report(const Exec& exec, StepState& state) const {
    if (m_allreduce) report_residuals(exec, *m_allreduce, state);
  }

  void state(Archive<Exec>& archive) {
    Vector<Exec, float> momentum = m_floats;
    if (is_in_messages()) {
      momentum = make_uninitialized<Exec, float>("OneBit::optim::momentum", m_setup.tensors.size());
      m_allreduce->decompress_last(archive.exec(), momentum);
      fence(archive.exec(), "OneBit::optim::momentum");
    }
    archive.vector("momentum", momentum);
    if (archive.restores()) m_floats = momentum;
    archive_residuals(archive, m_setup, m_allreduce);
    m_residual_factor.state(archive);
  }

private:
  bool is_in_messages() const { return m_floats.extent(0) == 0; }

  Setup<Exec> m_setup;
  bool m_compressed;
  Vector<Exec, float> m_floats;
  std::optional<comm::CompressedAllreduce<Exec>> m_allreduce;  ///< made by the first step that compresses, residuals 0
  ResidualFactor m_residual_factor;
};

}  // namespace onebit::optim
