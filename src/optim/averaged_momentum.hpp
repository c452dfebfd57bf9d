#pragma once
/// \file averaged_momentum.hpp
/// The momentum of 1-bit Adam (Tang et al., ICML 2021, Algorithm 1).

#include <optional>

#include "optim/adam_update.hpp"
#include "optim/compression.hpp"
#include "optim/residual_factor.hpp"

namespace onebit::optim {

/// m, the same on every rank.
///
/// A flat compressed allreduce brings all of m to every rank as messages, and m then stays in them. The compressor
/// reads them and g_i, and computes m_i = β1 m + (1−β1) g_i as it goes; the update decodes them. So a step reads a bit
/// or a few for each element of m instead of reading and writing floats.
///
/// `Setup::buckets`, where there are any, take the place of the allreduce. Once m is in messages, they can average it
/// while the backward pass computes g_i.
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

  /// m ← CA(m_i) with m_i = β1 m + (1−β1) g_i, or the dense average of the m_i.
  /// \param g (d) g_i \param lr γ_t, for `compression.scale_residual_by_lr`
  void average(const Exec& exec, const AdamUpdate& update, const Vector<Exec, float>& g, double lr, PhaseTimes& times) {
    if (m_compressed && m_setup.buckets == nullptr && !m_allreduce)
      m_allreduce.emplace(make_compressed_average(m_setup));
    if (!is_in_messages()) add_gradient(exec, update, g, times);
    if (!m_compressed) return m_setup.average(exec, m_floats, times);
    const float residual_factor = m_residual_factor(lr);
    if (m_setup.buckets != nullptr) {
      average_in_buckets(exec, update, g, residual_factor, times);
    } else if (!m_allreduce->keeps_messages()) {
      return (*m_allreduce)(exec, m_floats, times, residual_factor);
    } else if (is_in_messages()) {
      m_allreduce->average_in_messages(
          exec, g, {update.beta1, update.one_minus_beta1, update.gradient_factor, m_allreduce->last()}, times,
          residual_factor);
    } else {
      m_allreduce->average_in_messages(exec, m_floats, {}, times, residual_factor);
    }
    m_floats = {};
  }

  /// Begins the same average in `Setup::buckets`. The caller then averages each bucket with its part of g_i.
  /// \returns false without buckets, and where m is not in their messages yet
  bool begin_buckets(const AdamUpdate& update, double lr) {
    if (m_setup.buckets == nullptr || !is_in_messages()) return false;
    m_setup.buckets->begin_step(shares(update), m_residual_factor(lr));
    return true;
  }
  /// Undoes that average.
  void take_back() {
    m_setup.buckets->take_back();
    m_residual_factor.take_back();
  }

  /// x ← x − f γ (m / (√v + η) + λ x)
  void update_parameters(const Exec& exec, const AdamUpdate& update, const Rates<Exec>& rates,
                         const Vector<Exec, float>& v, const Vector<Exec, float>& x, PhaseTimes& times) const {
    if (is_in_messages() && m_setup.buckets != nullptr) {
      for (std::size_t k = 0; k < m_setup.buckets->size(); ++k)
        update_parameters_of(k, exec, update, rates, v, x, times);
      return;
    }
    const Stopwatch watch;
    if (is_in_messages())
      optim::update_parameters(exec, update, rates, m_allreduce->last_decoder(), v, x);
    else
      optim::update_parameters(exec, update, rates, m_floats, v, x);
    fence(exec, "OneBit::optim::frozen_update");
    times.add(Phase::update, watch.seconds());
  }
  /// The same for the elements of bucket k alone, once m is in the buckets' messages. \param v, x (d)
  void update_parameters_of(std::size_t k, const Exec& exec, const AdamUpdate& update, const Rates<Exec>& rates,
                            const Vector<Exec, float>& v, const Vector<Exec, float>& x, PhaseTimes& times) const {
    const Stopwatch watch;
    const Range bucket = m_setup.buckets->elements(k);
    const auto elements = std::make_pair(bucket.begin, bucket.end);
    optim::update_parameters<Exec>(exec, update, rates.from(bucket.begin), m_setup.buckets->decoder(k),
                                   Kokkos::subview(v, elements), Kokkos::subview(x, elements));
    fence(exec, "OneBit::optim::frozen_update");
    times.add(Phase::update, watch.seconds());
  }

  /// As report_residuals.
  void report(const Exec& exec, StepState& state) const {
    if (m_allreduce) report_residuals(exec, *m_allreduce, state);
    if (m_compressed && m_setup.buckets != nullptr) report_residuals(*m_setup.buckets, state);
  }

  void state(Archive<Exec>& archive) {
    Vector<Exec, float> momentum = m_floats;
    if (is_in_messages()) {
      momentum = make_uninitialized<Exec, float>("OneBit::optim::momentum", m_setup.tensors.size());
      if (m_setup.buckets != nullptr)
        m_setup.buckets->decompress(momentum);
      else
        m_allreduce->decompress_last(archive.exec(), momentum);
      fence(archive.exec(), "OneBit::optim::momentum");
    }
    archive.vector("momentum", momentum);
    if (archive.restores()) m_floats = momentum;
    if (m_compressed && m_setup.buckets != nullptr)
      archive_residuals(archive, *m_setup.buckets);
    else
      archive_residuals(archive, m_setup, m_allreduce);
    m_residual_factor.state(archive);
  }

private:
  bool is_in_messages() const { return m_floats.extent(0) == 0; }
  static comm::MomentumShares shares(const AdamUpdate& update) {
    return {update.beta1, update.one_minus_beta1, update.gradient_factor};
  }

  /// m ← m_i, in floats.
  void add_gradient(const Exec& exec, const AdamUpdate& update, const Vector<Exec, float>& g, PhaseTimes& times) {
    const Stopwatch watch;
    update_momentum(exec, update, g, m_floats);
    fence(exec, "OneBit::optim::local_momentum");
    times.add(Phase::compress, watch.seconds());
  }

  void average_in_buckets(const Exec& exec, const AdamUpdate& update, const Vector<Exec, float>& g,
                          float residual_factor, PhaseTimes& times) {
    comm::CompressedBuckets<Exec>& buckets = *m_setup.buckets;
    buckets.allocate();
    if (is_in_messages())
      buckets.begin_step(shares(update), residual_factor);
    else
      buckets.begin_step({}, residual_factor);
    buckets.average(exec, is_in_messages() ? g : m_floats, times);
  }

  Setup<Exec> m_setup;
  bool m_compressed;
  Vector<Exec, float> m_floats;
  std::optional<comm::CompressedAverage<Exec>> m_allreduce;  ///< made by the first step that compresses, residuals 0
  ResidualFactor m_residual_factor;
};

}  // namespace onebit::optim
