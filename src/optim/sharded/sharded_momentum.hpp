#pragma once
/// \file sharded_momentum.hpp
/// The momentum of Adam with sharded state, and what averages it after T_w (docs/reference/algorithms/sharded.md).

#include <functional>
#include <memory>
#include <vector>

#include "optim/adam_update.hpp"
#include "optim/compression.hpp"
#include "optim/rates/residual_factor.hpp"
#include "optim/sharded/shards.hpp"

namespace onebit::optim {

/// u_k ← what the server of a shard makes of m_k; fences. \param m_k, u_k (shard) may be the same memory
template <class Exec>
using UpdateOfShard =
    std::function<void(const Exec& exec, const Vector<Exec, float>& m_k, const Vector<Exec, float>& u_k)>;

/// m, of which rank k has m_k; 0 at first. After T_w one of two is compressed:
/// - the momentum: m_i = β1 m + (1−β1) g_i; m ← CA(m_i). Every rank receives all of m, as messages, and needs them for
///   its next m_i. The update of each shard is gathered apart, as the second half of a compressed average.
/// - the gradient: rank k is the server of shard k. Of the average a_k = (1/n) Σ_i C(g_i + δ_i)_k it makes
///   m_k ← β1 m_k + (1−β1) a_k and then u_k, which takes the average's way back. No rank needs another shard of m.
template <class Exec>
class ShardedMomentum {
public:
  using Pieces = std::vector<typename comm::CompressedAverage<Exec>::Piece>;

  /// \param of_gradients whether gradients are compressed
  ShardedMomentum(const Setup<Exec>& setup, const Shards<Exec>& shards, bool of_gradients)
      : m_setup(setup),
        m_shards(shards),
        m_of_gradients(of_gradients),
        m_own("OneBit::optim::momentum", shards.length()),
        m_residual_factor(setup.input) {}

  /// m_k up to T_w.
  const Vector<Exec, float>& own() const { return m_own; }

  /// Makes what compressed averages need; to be called once, at T_w.
  void begin_compressing() {
    m_average = make_compressed_average(m_setup, {0, m_setup.tensors.size()});
    if (m_of_gradients) return;
    const compress::Compressor<Exec>& compressor = *m_average->compressor();
    m_feedback = compressor.no_feedback(m_setup.transport.rank(), 1);
    m_update = Words("OneBit::comm::own_message", compressor.message_words());
    m_updates = Words("OneBit::comm::gathered_chunks", m_shards.ranks() * compressor.message_words());
  }
  bool compresses() const { return m_average != nullptr; }

  /// m ← its average of this step, compressed; C(u + ε) of all shards goes to all ranks.
  /// \param g (d) gradient; overwritten \param lr γ_t \returns the C(u + ε), which stay valid until the next call
  Pieces send_update(const Exec& exec, const AdamUpdate& update, const Vector<Exec, float>& g, double lr,
                     const UpdateOfShard<Exec>& update_of_shard, PhaseTimes& times) {
    const float residual_factor = m_residual_factor(lr);
    if (m_of_gradients) {
      average(exec, of_gradient(exec, update, g, residual_factor, update_of_shard), times);
      return m_average->last();
    }
    average(exec, of_momentum(exec, update, g, residual_factor, times), times);
    m_gathered = true;
    m_own = m_restored = {};

    const Stopwatch watch;
    const Vector<Exec, float> shard = m_shards.own(g);  // the gradient is used up
    m_average->decompress_own(exec, shard);
    update_of_shard(exec, shard, shard);
    times.add(Phase::update, watch.seconds());
    gather_updates(exec, shard, times);
    return {{{0, m_setup.tensors.size()}, m_average->compressor()->decoder(m_updates)}};
  }

  /// ‖δ_i‖₂, and ‖δ̄_k‖₂ of m or, where the server makes the update, ‖ε_k‖₂.
  void report(const Exec& exec, StepState& state) const { report_residuals(exec, *m_average, state); }

  void state(Archive<Exec>& archive) {
    if (!m_of_gradients) archive.number("state/gathered", m_gathered);
    if (m_gathered && archive.restores()) {
      m_own = {};
      m_restored = make_uninitialized<Exec, float>("OneBit::optim::momentum", m_setup.tensors.size());
      archive.vector("momentum", m_restored);
    } else {
      archive.part("momentum", own_to_save(archive.exec()), m_shards.part());
    }
    m_residual_factor.state(archive);
    if (!compresses()) return;
    if (m_of_gradients) return archive_residuals(archive, *m_average, 0, "update_residual");
    archive_residuals(archive, *m_average);
    const Vector<Exec, float> residual =
        compress::residual(archive.exec(), *m_average->compressor(), m_setup.transport.rank(), 1, m_feedback);
    archive.part("update_residual", residual, m_shards.part());
    if (archive.restores()) compress::set_residual<Exec>(archive.exec(), residual, m_feedback);
  }

private:
  using Words = Vector<Exec, std::uint32_t>;

  void average(const Exec& exec, const comm::Contribution<Exec>& mine, PhaseTimes& times) {
    m_average->begin(exec, mine, times);
    m_average->serve(exec, times);
    m_average->finish(exec, times);
  }

  /// g_i, clipped, and what the server makes of their average.
  comm::Contribution<Exec> of_gradient(const Exec& exec, const AdamUpdate& update, const Vector<Exec, float>& g,
                                       float residual_factor, const UpdateOfShard<Exec>& update_of_shard) {
    scale(exec, update.gradient_factor, g);
    AdamUpdate of_average = update;
    of_average.gradient_factor = 1;  // g_i are clipped
    const comm::Server<Exec> server = [this, of_average, &update_of_shard](
                                          const Exec& on, const Vector<Exec, float>& chunk, PhaseTimes& of_server) {
      const Stopwatch watch;
      update_momentum(on, of_average, chunk, m_own);
      update_of_shard(on, m_own, chunk);
      of_server.add(Phase::update, watch.seconds());
    };
    return {g, {}, residual_factor, server};
  }

  /// m_i, of g_i and of m, wherever it is.
  comm::Contribution<Exec> of_momentum(const Exec& exec, const AdamUpdate& update, const Vector<Exec, float>& g,
                                       float residual_factor, PhaseTimes& times) const {
    if (!m_gathered) {
      take_local(exec, update, g, times);
      return {g, {}, residual_factor, {}};
    }
    if (m_restored.extent(0) == 0) return {g, update.momentum_shares(), residual_factor, {}};
    update_momentum(exec, update, g, m_restored);
    return {m_restored, {}, residual_factor, {}};
  }

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

  /// All ranks get the C(u + ε) of all ranks; ε ← u + ε − C(u + ε). \param u (shard)
  void gather_updates(const Exec& exec, const Vector<Exec, float>& u, PhaseTimes& times) {
    const Region region("OneBit::comm::compressed_all_gather");
    Stopwatch watch;
    if (!m_setup.input.compression.error_feedback) compress::clear(exec, m_feedback);
    m_average->compressor()->compress(exec, {m_setup.transport.rank(), 1, u, m_feedback, m_update});
    fence(exec, "OneBit::comm::compressed_chunk");
    times.add(Phase::average, watch.restart());
    if (m_shards.ranks() == 1)
      Kokkos::deep_copy(exec, m_updates, m_update);
    else
      m_setup.transport.all_gather(exec, m_update, m_updates);
    fence(exec, "OneBit::comm::gathered_chunks");
    times.add(Phase::all_gather, watch.seconds());
  }

  const Setup<Exec>& m_setup;
  const Shards<Exec>& m_shards;
  bool m_of_gradients;
  Vector<Exec, float> m_own;                                 ///< (shard) m_k
  std::unique_ptr<comm::CompressedAverage<Exec>> m_average;  ///< from T_w on; of gradients, its δ̄_k is ε_k
  ResidualFactor m_residual_factor;
  bool m_gathered = false;              ///< every rank has m: the average's last messages, or `m_restored`
  Vector<Exec, float> m_restored;       ///< (d) m after a restart, or (0); a restart exchanges nothing
  compress::Feedback<Exec> m_feedback;  ///< ε, and
  Words m_update, m_updates;            ///< (message) C(u + ε) of this rank, (ranks * message) of all
};

}  // namespace onebit::optim
