#pragma once
/// \file averaged_momentum.hpp
/// The momentum of 1-bit Adam (Tang et al., ICML 2021, Algorithm 1).

#include <memory>

#include "optim/adam_update.hpp"
#include "optim/compression.hpp"
#include "optim/rates/residual_factor.hpp"

namespace onebit::optim {

/// m, the same on every rank: floats up to the first compressed average, and from then on the messages of the last one.
///
/// A compressed average brings all of m to every rank as messages, and m stays in them. The compressor reads them and
/// g_i, and computes m_i = β1 m + (1−β1) g_i as it goes; the update decodes them. So a step reads a bit or a few for
/// each element of m instead of reading and writing floats.
///
/// The average is one of buckets, of which there may be one. Once m is in messages, `Setup::momentum_buckets`, where
/// there are any, can average it while the backward pass computes g_i.
template <class Exec>
class AveragedMomentum {
public:
  /// m = 0. \param compressed averages by CA where the input names a compressor, else densely
  AveragedMomentum(const Setup<Exec>& setup, bool compressed)
      : m_setup(setup), m_floats("OneBit::optim::momentum", setup.tensors.size()), m_residual_factor(setup.input) {
    if (!compressed || setup.input.compression.compressor == CompressorKind::none) return;
    if (setup.momentum_buckets == nullptr) m_own_buckets = make_momentum_buckets(m_setup);
    m_buckets = m_own_buckets ? m_own_buckets.get() : setup.momentum_buckets;
  }

  /// m up to the first compressed average, which frees it.
  const Vector<Exec, float>& floats() const { return m_floats; }

  /// Begins to average m_i beside the backward pass.
  /// \returns what averages the buckets of g_i; nullptr where `average` is to be called instead
  comm::BucketAverage<Exec>* begin(const AdamUpdate& update, double lr) {
    if (m_setup.momentum_buckets == nullptr || !m_in_messages) return nullptr;
    m_buckets->begin_step(update.momentum_shares(), m_residual_factor(lr));
    return m_buckets;
  }
  /// Undoes that average.
  void roll_back() {
    m_buckets->roll_back();
    m_residual_factor.roll_back();
  }

  /// m ← CA(m_i) with m_i = β1 m + (1−β1) g_i, or the dense average of the m_i.
  /// \param g (d) g_i; overwritten \param lr γ_t, for `compression.scale_residual_by_lr`
  void average(const Exec& exec, const AdamUpdate& update, const Vector<Exec, float>& g, double lr, PhaseTimes& times) {
    if (!m_in_messages) {
      const Stopwatch watch;
      update_momentum(exec, update, g, m_floats);  // m ← m_i
      fence(exec, "OneBit::optim::local_momentum");
      times.add(Phase::compress, watch.seconds());
    }
    if (m_buckets == nullptr) return m_setup.average(exec, m_floats, times);

    m_buckets->allocate();
    m_buckets->begin_step(m_in_messages ? std::optional(update.momentum_shares()) : std::nullopt,
                          m_residual_factor(lr));
    m_buckets->average(exec, m_in_messages ? g : m_floats, times);
    m_in_messages = true;
    m_floats = {};
  }

  /// x ← x − f γ (m / (√v + η) + λ x) \param v, x (d)
  void update_parameters(const Exec& exec, const AdamUpdate& update, const Rates<Exec>& rates,
                         const Vector<Exec, float>& v, const Vector<Exec, float>& x, PhaseTimes& times) const {
    const Stopwatch watch;
    if (!m_in_messages)
      optim::update_parameters(exec, update, rates, m_floats, v, x);
    else
      for (const auto& [elements, decoder] : m_buckets->last()) {
        const auto range = std::make_pair(elements.begin, elements.end);
        optim::update_parameters<Exec>(exec, update, rates.from(elements.begin), decoder, Kokkos::subview(v, range),
                                       Kokkos::subview(x, range));
      }
    fence(exec, "OneBit::optim::frozen_update");
    times.add(Phase::update, watch.seconds());
  }

  /// Puts ‖δ_i‖₂ and ‖δ̄_k‖₂ into `state` and marks the step as compressed, unless averages are dense.
  void report(StepState& state) const {
    if (m_buckets == nullptr) return;
    state.compressed = true;
    state.worker_residual_l2 = m_buckets->worker_residual_l2();
    state.server_residual_l2 = m_buckets->server_residual_l2();
  }

  void state(Archive<Exec>& archive) {
    Vector<Exec, float> momentum = m_floats;
    if (m_in_messages) {
      momentum = make_uninitialized<Exec, float>("OneBit::optim::momentum", m_setup.tensors.size());
      m_buckets->decompress(archive.exec(), momentum);
    }
    archive.vector("momentum", momentum);
    if (archive.restores()) {
      m_floats = momentum;
      m_in_messages = false;
    }
    bool compresses = m_buckets != nullptr && m_buckets->allocated();
    archive.number("state/compresses", compresses);
    if (compresses && m_buckets != nullptr) {
      m_buckets->allocate();
      archive_residuals(archive, *m_buckets);
    }
    m_residual_factor.state(archive);
  }

private:
  Setup<Exec> m_setup;
  std::unique_ptr<comm::CompressedBuckets<Exec>> m_own_buckets;  ///< where Setup has none
  comm::CompressedBuckets<Exec>* m_buckets = nullptr;            ///< nullptr for dense averages
  Vector<Exec, float> m_floats;                                  ///< (d) m, or (0) once it is in messages
  bool m_in_messages = false;
  ResidualFactor m_residual_factor;
};

}  // namespace onebit::optim
