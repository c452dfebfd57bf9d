#pragma once
/// \file sharded_momentum.hpp
/// The momentum of Adam with sharded state, and what averages it after T_w (docs/reference/algorithms/sharded.md).

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "comm/compressed_all_gather.hpp"
#include "optim/adam_update.hpp"
#include "optim/compression.hpp"
#include "optim/rates/residual_factor.hpp"
#include "optim/sharded/shards.hpp"

namespace onebit::optim {

/// u_k ← what the server of a shard makes of m_k; fences. \param m_k, u_k (shard) may be the same memory
template <class Exec>
using UpdateOfShard =
    std::function<void(const Exec& exec, const Vector<Exec, float>& m_k, const Vector<Exec, float>& u_k)>;

/// m, of which rank k has m_k; 0 at first.
template <class Exec>
class ShardedMomentum {
public:
  using Pieces = std::vector<typename comm::CompressedAverage<Exec>::Piece>;

  ShardedMomentum(const Setup<Exec>& setup, const Shards<Exec>& shards)
      : m_setup(setup), m_shards(shards), m_own("OneBit::optim::momentum", shards.length()) {}
  virtual ~ShardedMomentum() = default;

  /// m_k up to T_w.
  const Vector<Exec, float>& own() const { return m_own; }

  /// Makes what compressed averages need; to be called once, at T_w.
  virtual void begin_compressing() = 0;
  bool compresses() const { return m_compresses; }
  /// m ← its average of this step, compressed; C(u + ε) of all shards goes to all ranks.
  /// \param g (d) gradient; overwritten \param lr γ_t \returns the C(u + ε), which stay valid until the next call
  virtual Pieces send_update(const Exec& exec, const AdamUpdate& update, const Vector<Exec, float>& g, double lr,
                             const UpdateOfShard<Exec>& update_of_shard, PhaseTimes& times) = 0;
  /// ‖δ_i‖₂, and ‖δ̄_k‖₂ of m or, where the server makes the update, ‖ε_k‖₂.
  virtual void report(const Exec& exec, StepState& state) const = 0;
  virtual void state(Archive<Exec>& archive) = 0;

protected:
  const Setup<Exec>& m_setup;
  const Shards<Exec>& m_shards;
  Vector<Exec, float> m_own;  ///< (shard) m_k
  bool m_compresses = false;
};

/// m_i = β1 m + (1−β1) g_i; m ← CA(m_i). Every rank receives all of m, as messages, and needs them for its next m_i.
/// The update of each shard is gathered apart.
template <class Exec>
class GatheredMomentum final : public ShardedMomentum<Exec> {
public:
  GatheredMomentum(const Setup<Exec>& setup, const Shards<Exec>& shards)
      : ShardedMomentum<Exec>(setup, shards), m_residual_factor(setup.input) {}

  void begin_compressing() override {
    m_compresses = true;
    m_average = make_compressed_average(m_setup, {0, m_setup.tensors.size()});
    m_update_gather.emplace(m_setup.transport, m_average->compressor(), m_setup.input.compression.error_feedback);
  }

  typename ShardedMomentum<Exec>::Pieces send_update(const Exec& exec, const AdamUpdate& update,
                                                     const Vector<Exec, float>& g, double lr,
                                                     const UpdateOfShard<Exec>& update_of_shard,
                                                     PhaseTimes& times) override {
    comm::Contribution<Exec> mine{g, {}, m_residual_factor(lr), {}};
    if (!m_gathered) {
      take_local(exec, update, g, times);
    } else if (m_restored.extent(0) > 0) {
      update_momentum(exec, update, g, m_restored);
      mine.x = m_restored;
    } else {
      mine.momentum = update.momentum_shares();
    }
    m_average->begin(exec, mine, times);
    m_average->serve(exec, times);
    m_average->finish(exec, times);
    m_gathered = true;
    m_own = m_restored = {};

    Stopwatch watch;
    const Vector<Exec, float> shard = m_shards.own(g);  // the gradient is used up
    m_average->decompress_own(exec, shard);
    update_of_shard(exec, shard, shard);
    times.add(Phase::update, watch.seconds());
    (*m_update_gather)(exec, shard, times);
    return {{{0, m_setup.tensors.size()}, m_update_gather->decoder()}};
  }

  void report(const Exec& exec, StepState& state) const override { report_residuals(exec, *m_average, state); }

  void state(Archive<Exec>& archive) override {
    archive.number("state/gathered", m_gathered);
    if (m_gathered && archive.restores()) {
      m_own = {};
      m_restored = make_uninitialized<Exec, float>("OneBit::optim::momentum", m_setup.tensors.size());
      archive.vector("momentum", m_restored);
    } else {
      archive.part("momentum", own_to_save(archive.exec()), m_shards.part());
    }
    m_residual_factor.state(archive);
    if (!m_compresses) return;
    archive_residuals(archive, *m_average);
    const Vector<Exec, float> residual = m_update_gather->residual(archive.exec());
    archive.part("update_residual", residual, m_shards.part());
    if (archive.restores()) m_update_gather->set_residual(archive.exec(), residual);
  }

private:
  using ShardedMomentum<Exec>::m_setup, ShardedMomentum<Exec>::m_shards, ShardedMomentum<Exec>::m_own,
      ShardedMomentum<Exec>::m_compresses;

  /// m_k, wherever m is.
  Vector<Exec, float> own_to_save(const Exec& exec) const {
    if (!m_gathered) return m_own;
    if (m_restored.extent(0) > 0) return m_shards.own(m_restored);
    const auto own = make_uninitialized<Exec, float>("OneBit::optim::momentum", m_shards.length());
    m_average->decompress_own(exec, own);
    fence(exec, "OneBit::optim::momentum");
    return own;
  }

  /// g ← m_i, where m is still in shards: one shard after the other goes to all ranks, so that none has all of m.
  void take_local(const Exec& exec, const AdamUpdate& update, const Vector<Exec, float>& g, PhaseTimes& times) const {
    const Stopwatch watch;
    const auto staging = make_uninitialized<Exec, float>("OneBit::optim::shard", m_shards.longest());
    for (int rank = 0; rank < m_shards.ranks(); ++rank) {
      const auto m = Kokkos::subview(staging, std::make_pair(std::size_t{0}, m_shards.length_of(rank)));
      m_shards.broadcast(exec, rank, m_own, m);
      const Vector<Exec, float> of_rank = m_shards.of(rank, g);
      update_momentum<Exec>(exec, update, of_rank, m);
      Kokkos::deep_copy(exec, of_rank, m);
    }
    fence(exec, "OneBit::optim::local_momentum");
    times.add(Phase::compress, watch.seconds());
  }

  std::unique_ptr<comm::CompressedAverage<Exec>> m_average;
  std::optional<comm::CompressedAllGather<Exec>> m_update_gather;  ///< of u; it has ε
  bool m_gathered = false;         ///< every rank has m: the average's last messages, or `m_restored`
  Vector<Exec, float> m_restored;  ///< (d) m after a restart, or (0); a restart exchanges nothing
  ResidualFactor m_residual_factor;
};

/// Rank k is the server of shard k: of the compressed gradients' average a_k = (1/n) Σ_i C(g_i + δ_i)_k it makes
/// m_k ← β1 m_k + (1−β1) a_k and then u_k, which takes the average's way back. No rank needs another shard of m.
template <class Exec>
class ServerMomentum final : public ShardedMomentum<Exec> {
public:
  ServerMomentum(const Setup<Exec>& setup, const Shards<Exec>& shards)
      : ShardedMomentum<Exec>(setup, shards), m_residual_factor(setup.input) {}

  void begin_compressing() override {
    m_compresses = true;
    m_average = make_compressed_average(m_setup, {0, m_setup.tensors.size()});
  }

  typename ShardedMomentum<Exec>::Pieces send_update(const Exec& exec, const AdamUpdate& update,
                                                     const Vector<Exec, float>& g, double lr,
                                                     const UpdateOfShard<Exec>& update_of_shard,
                                                     PhaseTimes& times) override {
    scale(exec, update.gradient_factor, g);
    AdamUpdate of_average = update;
    of_average.gradient_factor = 1;  // g_i are clipped
    const comm::Server<Exec> server = [&](const Exec& on, const Vector<Exec, float>& chunk, PhaseTimes& of_server) {
      const Stopwatch watch;
      update_momentum(on, of_average, chunk, m_own);
      update_of_shard(on, m_own, chunk);
      of_server.add(Phase::update, watch.seconds());
    };
    m_average->begin(exec, {g, {}, m_residual_factor(lr), server}, times);
    m_average->serve(exec, times);
    m_average->finish(exec, times);
    return m_average->last();
  }

  void report(const Exec& exec, StepState& state) const override { report_residuals(exec, *m_average, state); }

  void state(Archive<Exec>& archive) override {
    archive.part("momentum", m_own, m_shards.part());
    if (m_compresses) archive_residuals(archive, *m_average, 0, "update_residual");
    m_residual_factor.state(archive);
  }

private:
  using ShardedMomentum<Exec>::m_setup, ShardedMomentum<Exec>::m_shards, ShardedMomentum<Exec>::m_own,
      ShardedMomentum<Exec>::m_compresses;

  std::unique_ptr<comm::CompressedAverage<Exec>> m_average;  ///< its δ̄_k is ε_k
  ResidualFactor m_residual_factor;
};

}  // namespace onebit::optim
