#pragma once
/// \file muon.hpp
/// Muon (Jordan et al., 2024): matrices move along their orthogonalised momentum. And Muon with one bit: the ranks send
/// the signs of what changed in their momenta, and one of them orthogonalises each matrix.

#include <cmath>
#include <memory>
#include <vector>

#include "optim/compression.hpp"
#include "optim/muon/direction.hpp"
#include "optim/muon/vectors.hpp"
#include "optim/sharded/shards.hpp"

namespace onebit::optim {

/// `muon`: ĝ = average of the g_i; m ← m + (1−β1) (ĝ − m); x ← x − f γ (u + λ x) with u = MuonDirection of m. The
/// server of some tensors has the shard of m, and all ranks gather its x.
///
/// `onebit_muon`, with error feedback on the change of the momentum (EF21, Richtárik et al., NeurIPS 2021, on both
/// sides of the compressed allreduce):
///
/// 1. Worker i: m_i ← m_i + (1−β1) (g_i − m_i). It sends C(c_i) of the change c_i = m_i − h_i, where h_i ← h_i + C(c_i)
///    is what the servers know of m_i. With δ_i = m_i − h_i this is the residual of CompressedAverage, whose vector is
///    the difference of two momenta.
/// 2. The server of some tensors: m̄ ← m̄ + (1/n) Σ_i C(c_i), which is the mean of the h_i; u = MuonDirection of m̄. It
///    sends C(u + ε), ε ← u + ε − C(u + ε). With many ranks others make parts of its average and compress parts of u.
/// 3. All ranks: x ← x − f γ (C(u + ε) + λ x).
///
/// Newton–Schulz amplifies an error of what it starts from, so it stands before the server's compression. A table has a
/// β1 of its own. Vectors move by Adam of their densely averaged gradient.
template <class Exec>
class Muon : public Algorithm<Exec> {
public:
  Muon(const Setup<Exec>& setup, bool compressed)
      : m_setup(setup),
        m_parts(parts_of(setup.tensors)),
        m_shards(setup.transport, server_begins(setup)),
        m_tables(ranges_of(m_parts, TensorRole::table, {m_shards.begin(), m_shards.end()})),
        m_sum(m_shards.length()),
        m_vector_rates(setup.input, setup.tensors),
        m_rates(rates_but_of_vectors(setup.input, setup.tensors)),
        m_vectors(setup.tensors),
        m_vector_sum(m_vectors.size()),
        m_direction(setup.input, setup.tensors, {m_shards.begin(), m_shards.end()}),
        m_server_momentum("OneBit::optim::server_momentum", m_shards.length()) {
    if (!compressed || setup.input.compression.compressor == CompressorKind::none) return;
    m_tables = ranges_of(m_parts, TensorRole::table, {0, setup.tensors.size()});
    m_average = make_compressed_average(setup, {0, setup.tensors.size()});
    m_chunk_begins = chunk_begins(setup);
    m_momentum = Vector<Exec, float>("OneBit::optim::momentum", setup.tensors.size());
  }

  StepState step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                 const StepContext& context, PhaseTimes& times) override {
    const Region region("OneBit::optim::muon_step");
    ++m_count;
    StepState state;
    if (m_average) {
      compressed_step(exec, x, g, context, times);
      report_residuals(exec, *m_average, state);
    } else {
      dense_step(exec, x, g, context, times);
    }
    return state;
  }

  void state(Archive<Exec>& archive) override {
    archive.part(m_average ? "server_momentum" : "momentum", m_server_momentum, m_shards.part());
    archive.number("state/variance_updates", m_count);
    m_vectors.state(archive);
    m_direction.state(archive, m_parts);
    if (!m_average) return;
    archive.vector("momentum", m_momentum, true);
    archive_residuals(archive, *m_average);
  }

  // The parts of a step. They are public because they hold lambdas for the device.

  void dense_step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                  const StepContext& context, PhaseTimes& times) {
    const Vector<Exec, float> of_vectors = m_vectors.take(exec, g), own = m_shards.own(g);
    m_setup.average(exec, of_vectors, times);
    m_shards.average(exec, g, times);
    const Stopwatch watch;
    double norm = 0;
    if (m_setup.input.optimizer.clip > 0) {
      const double of_shards = m_shards.sum(exec, square_norm(exec, m_sum, own));
      norm = std::sqrt(square_norm(exec, m_vector_sum, of_vectors) + of_shards);
    }
    const AdamUpdate update = next_update(context, norm);
    m_vectors.update(exec, update, m_vector_rates, x);
    take_change(exec, update, own, m_server_momentum);
    m_direction(exec, for_tables(update), m_server_momentum, own);
    descend(exec, m_rates.from(m_shards.begin()), context.lr, own, m_shards.own(x));
    times.add(Phase::update, watch.seconds());
    m_shards.gather(exec, x, times);
  }

  void compressed_step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                       const StepContext& context, PhaseTimes& times) {
    const AdamUpdate update = next_update(context, std::sqrt(context.mean_square_norm));
    m_setup.average(exec, m_vectors.take(exec, g), times);
    Stopwatch watch;
    m_vectors.update(exec, update, m_vector_rates, x);
    take_change(exec, update, g, m_momentum);
    fence(exec, "OneBit::optim::local_momentum");
    times.add(Phase::compress, watch.seconds());

    const comm::Server<Exec> server = [&](const Exec& on, const Vector<Exec, float>&, PhaseTimes& of_server) {
      Stopwatch watch_of_server;
      const Vector<Exec, float> own = m_shards.own(g);
      m_shards.collect(on, g, m_chunk_begins);
      of_server.add(Phase::all_to_all, watch_of_server.restart());
      add(on, own, m_server_momentum);
      m_direction(on, for_tables(update), m_server_momentum, own);
      fence(on, "OneBit::optim::muon_direction");
      of_server.add(Phase::update, watch_of_server.restart());
      m_shards.deal(on, g, m_chunk_begins);
      of_server.add(Phase::all_gather, watch_of_server.seconds());
    };
    m_average->begin(exec, {g, {}, 1, server}, times);
    m_average->serve(exec, times);
    m_average->finish(exec, times);

    watch.restart();
    for (const auto& [elements, u] : m_average->last()) descend(exec, m_rates, context.lr, u, x);
    times.add(Phase::update, watch.seconds());
  }

  /// m ← m + (1−β1) (g − m) with the β1 of each element; g ← what m changed by. Does not fence.
  /// \param g, m (shard), or (d) where averages are compressed
  void take_change(const Exec& exec, const AdamUpdate& update, const Vector<Exec, float>& g,
                   const Vector<Exec, float>& m) const {
    std::size_t begin = 0;
    for (const Range& table : m_tables) {
      take_change_of(exec, update, g, m, {begin, table.begin});
      take_change_of(exec, for_tables(update), g, m, table);
      begin = table.end;
    }
    take_change_of(exec, update, g, m, {begin, g.extent(0)});
  }
  static void take_change_of(const Exec& exec, const AdamUpdate& update, const Vector<Exec, float>& g,
                             const Vector<Exec, float>& m, Range range) {
    for_each(
        exec, "OneBit::optim::take_change", range.end - range.begin, KOKKOS_LAMBDA(std::size_t j) {
          const std::size_t i = range.begin + j;
          const float old = m(i);
          m(i) = old + update.one_minus_beta1 * (update.gradient_factor * g(i) - old);
          g(i) = m(i) - old;  // as it was rounded, so that the changes add up to m
        });
  }

  /// sum ← sum + term; does not fence.
  static void add(const Exec& exec, const Vector<Exec, float>& term, const Vector<Exec, float>& sum) {
    for_each(
        exec, "OneBit::optim::server_momentum", sum.extent(0), KOKKOS_LAMBDA(std::size_t i) { sum(i) += term(i); });
  }

private:
  /// The rates, with a learning rate of 0 for vectors: what a compressor sends for them is no direction.
  static std::vector<RateRange> rates_but_of_vectors(const config::Input& input, const TensorTable& tensors) {
    const std::vector<RateRange> all = rate_ranges(input, tensors);
    std::vector<RateRange> rates;
    auto of_tensor = all.begin();
    for (const Tensor& tensor : tensors.tensors()) {
      while (of_tensor->end <= tensor.offset) ++of_tensor;
      const double lr_factor = role_of(tensor) == TensorRole::vector ? 0 : of_tensor->lr_factor;
      rates.push_back({tensor.offset + tensor.size(), lr_factor, of_tensor->weight_decay});
    }
    return rates;
  }
  AdamUpdate next_update(const StepContext& context, double norm) const {
    const double t = m_count;
    return make_adam_update(m_setup.input, context, norm, t, t);
  }
  /// The update with the β1 of tables.
  AdamUpdate for_tables(AdamUpdate update) const {
    const double beta1 = m_setup.input.muon.table_beta1, t = m_count;
    update.beta1 = static_cast<float>(beta1);
    update.one_minus_beta1 = static_cast<float>(1.0 - beta1);
    update.momentum_correction = static_cast<float>(bias_correction(m_setup.input, beta1, t));
    return update;
  }

  Setup<Exec> m_setup;
  std::vector<TensorPart> m_parts;
  Shards<Exec> m_shards;                ///< the tensors that each rank serves
  std::vector<Range> m_tables;          ///< in what `take_change` is given
  OrderedSum<Exec> m_sum;               ///< over a shard
  Rates<Exec> m_vector_rates, m_rates;  ///< of vectors; of all else, and 0 for vectors
  AdamOfVectors<Exec> m_vectors;
  OrderedSum<Exec> m_vector_sum;                             ///< over the elements of vectors
  MuonDirection<Exec> m_direction;                           ///< of the shard
  Vector<Exec, float> m_server_momentum;                     ///< (shard) m or m̄; 0 at vectors
  std::unique_ptr<comm::CompressedAverage<Exec>> m_average;  ///< nullptr: averages are dense
  std::vector<std::size_t> m_chunk_begins;                   ///< (n + 1) of the averages
  Vector<Exec, float> m_momentum;                            ///< (d) m_i; 0 at vectors
  long m_count = 0;                                          ///< t
};

}  // namespace onebit::optim
