#pragma once
/// \file sharded_momentum.hpp
/// The momentum of Adam with sharded state, and what averages it after T_w (docs/reference/algorithms.md).

#include <memory>
#include <optional>

#include "comm/average_halves.hpp"
#include "optim/adam_update.hpp"
#include "optim/compression.hpp"
#include "optim/residual_factor.hpp"
#include "optim/sharded/shards.hpp"

namespace onebit::optim {

/// m, of which rank k has m_k; 0 at first.
template <class Exec>
class ShardedMomentum {
public:
  ShardedMomentum(const Setup<Exec>& setup, const Shards<Exec>& shards)
      : m_setup(setup), m_shards(shards), m_own("OneBit::optim::momentum", shards.length()) {}
  virtual ~ShardedMomentum() = default;

  /// m_k up to T_w.
  const Vector<Exec, float>& own() const { return m_own; }

  /// Makes what compressed averages need; to be called once, at T_w. \returns what compresses
  virtual std::shared_ptr<const compress::Compressor<Exec>> begin_compressing() = 0;
  /// m ← its average of this step, compressed. \param g (d) gradient; overwritten \param lr γ_t
  /// \returns m_k, which may lie in g
  virtual Vector<Exec, float> average(const Exec& exec, const AdamUpdate& update, const Vector<Exec, float>& g,
                                      double lr, PhaseTimes& times) = 0;
  /// ‖δ_i‖₂, and where this averages on a server ‖δ̄_k‖₂.
  virtual void report(const Exec& exec, StepState& state) const = 0;
  /// \param compresses whether `begin_compressing` has been called
  virtual void state(Archive<Exec>& archive, bool compresses) = 0;

protected:
  const Setup<Exec>& m_setup;
  const Shards<Exec>& m_shards;
  Vector<Exec, float> m_own;  ///< (shard) m_k
};

/// m_i = β1 m + (1−β1) g_i; m ← CA(m_i). Every rank receives all of m, as messages, and needs them for its next m_i.
template <class Exec>
class GatheredMomentum final : public ShardedMomentum<Exec> {
public:
  GatheredMomentum(const Setup<Exec>& setup, const Shards<Exec>& shards)
      : ShardedMomentum<Exec>(setup, shards), m_residual_factor(setup.input) {}

  std::shared_ptr<const compress::Compressor<Exec>> begin_compressing() override {
    m_allreduce.emplace(make_compressed_average(m_setup));
    return m_allreduce->compressor();
  }

  Vector<Exec, float> average(const Exec& exec, const AdamUpdate& update, const Vector<Exec, float>& g, double lr,
                              PhaseTimes& times) override {
    Vector<Exec, float> m_i = g;
    compress::MovingAverage<Exec> average{};
    if (!m_gathered) {
      take_local(exec, update, g, times);
    } else if (m_restored.extent(0) > 0) {
      update_momentum(exec, update, g, m_restored);
      m_i = m_restored;
    } else {
      average = {update.beta1, update.one_minus_beta1, update.gradient_factor, m_allreduce->last()};
    }
    m_allreduce->average_in_messages(exec, m_i, average, times, m_residual_factor(lr));
    m_gathered = true;
    m_own = m_restored = {};
    m_allreduce->decompress_own(exec, m_shards.own(g));
    return m_shards.own(g);
  }

  void report(const Exec& exec, StepState& state) const override { report_residuals(exec, *m_allreduce, state); }

  void state(Archive<Exec>& archive, bool compresses) override {
    archive.number("state/gathered", m_gathered);
    if (m_gathered && archive.restores()) {
      m_own = {};
      m_restored = make_uninitialized<Exec, float>("OneBit::optim::momentum", m_setup.tensors.size());
      archive.vector("momentum", m_restored);
    } else {
      archive.part("momentum", own_to_save(archive.exec()), m_shards.part());
    }
    if (compresses) archive_residuals(archive, *m_allreduce);
    m_residual_factor.state(archive);
  }

private:
  using ShardedMomentum<Exec>::m_setup, ShardedMomentum<Exec>::m_shards, ShardedMomentum<Exec>::m_own;

  /// m_k, wherever m is.
  Vector<Exec, float> own_to_save(const Exec& exec) const {
    if (!m_gathered) return m_own;
    if (m_restored.extent(0) > 0) return m_shards.own(m_restored);
    const auto own = make_uninitialized<Exec, float>("OneBit::optim::momentum", m_shards.length());
    m_allreduce->decompress_own(exec, own);
    fence(exec, "OneBit::optim::momentum");
    return own;
  }

  /// g ← m_i, where m is still in shards: one shard after the other goes to all ranks, so that none has all of m.
  void take_local(const Exec& exec, const AdamUpdate& update, const Vector<Exec, float>& g, PhaseTimes& times) const {
    const Stopwatch watch;
    const auto room = make_uninitialized<Exec, float>("OneBit::optim::shard", m_shards.longest());
    for (int rank = 0; rank < m_shards.ranks(); ++rank) {
      const auto m = Kokkos::subview(room, std::make_pair(std::size_t{0}, m_shards.length_of(rank)));
      m_shards.broadcast(exec, rank, m_own, m);
      const Vector<Exec, float> of_rank = m_shards.of(rank, g);
      update_momentum<Exec>(exec, update, of_rank, m);
      Kokkos::deep_copy(exec, of_rank, m);
    }
    fence(exec, "OneBit::optim::local_momentum");
    times.add(Phase::compress, watch.seconds());
  }

  std::optional<comm::CompressedAverage<Exec>> m_allreduce;
  bool m_gathered = false;         ///< every rank has m: the allreduce's last messages, or `m_restored`
  Vector<Exec, float> m_restored;  ///< (d) m after a restart, or (0); a restart exchanges nothing
  ResidualFactor m_residual_factor;
};

/// Rank k gets shard k of the compressed gradients' average, a_k = (1/n) Σ_i C(g_i + δ_i)_k, and keeps the momentum
/// itself: m_k ← β1 m_k + (1−β1) a_k. No rank needs another shard of m.
template <class Exec>
class ServerMomentum final : public ShardedMomentum<Exec> {
public:
  ServerMomentum(const Setup<Exec>& setup, const Shards<Exec>& shards)
      : ShardedMomentum<Exec>(setup, shards), m_residual_factor(setup.input) {}

  std::shared_ptr<const compress::Compressor<Exec>> begin_compressing() override {
    auto compressor = make_compressor(m_setup);
    m_scatter.emplace(m_setup.transport, compressor, m_setup.input.compression.error_feedback);
    return compressor;
  }

  Vector<Exec, float> average(const Exec& exec, const AdamUpdate& update, const Vector<Exec, float>& g, double lr,
                              PhaseTimes& times) override {
    scale(exec, update.gradient_factor, g);
    const Vector<Exec, float> average = m_shards.own(g);
    (*m_scatter)(exec, g, average, times, m_residual_factor(lr));
    AdamUpdate of_average = update;
    of_average.gradient_factor = 1;  // g_i were clipped
    update_momentum(exec, of_average, average, m_own);
    return m_own;
  }

  void report(const Exec& exec, StepState& state) const override {
    state.worker_residual_l2 = m_scatter->residual_l2(exec);
  }

  void state(Archive<Exec>& archive, bool compresses) override {
    archive.part("momentum", m_own, m_shards.part());
    if (compresses) {
      const Vector<Exec, float> residual = m_scatter->residual(archive.exec());
      archive.vector("worker_residual", residual, true);
      if (archive.restores()) m_scatter->set_residual(archive.exec(), residual);
    }
    m_residual_factor.state(archive);
  }

private:
  using ShardedMomentum<Exec>::m_setup, ShardedMomentum<Exec>::m_shards, ShardedMomentum<Exec>::m_own;

  std::optional<comm::CompressedReduceScatter<Exec>> m_scatter;
  ResidualFactor m_residual_factor;
};

}  // namespace onebit::optim
