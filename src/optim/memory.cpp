#include "optim/memory.hpp"

#include <algorithm>
#include <cmath>

#include "comm/overlap/bucket_average.hpp"
#include "compress/codecs.hpp"
#include "optim/muon/tensor_parts.hpp"

namespace onebit::optim {
namespace {

using config::Averages;

/// The sums for one run.
class Sums {
public:
  Sums(const config::Input& input, const TensorTable& tensors, int ranks, int hosts)
      : m_in(input),
        m_traits(config::traits(input.optimizer.algorithm)),
        m_shards(m_traits.has(config::shards_state)),
        m_d(static_cast<double>(tensors.size())),
        m_n(ranks),
        m_local(input.comm.collective == Collective::hierarchical ? static_cast<double>(ranks) / hosts : 1) {
    for (const Tensor& tensor : tensors.tensors())
      m_columns += tensor.shape.size() > 1 ? static_cast<double>(tensor.size() / tensor.shape.back()) : 1;
    m_tensors = static_cast<double>(tensors.tensors().size());
    for (const Tensor& tensor : tensors.tensors())
      if (m_traits.has(config::variance_of_tables) && role_of(tensor) == TensorRole::table)
        m_tables += static_cast<double>(tensor.size());
  }

  PhaseBytes operator()() const {
    const bool freezes = m_traits.freezes(), has_dense_steps = freezes || m_traits.averages == Averages::nothing ||
                                                               m_traits.variance == config::Variance::frozen_at_F;
    const double state = m_shards ? floats / m_n : floats, mean = m_in.schedule.decay == Decay::averaging ? floats : 0;
    const double always = m_d * (2 * floats + bit + mean);  // x, g, weight decays, and the mean of x
    PhaseBytes bytes;
    const double tables = floats * m_tables / m_n;  // of the shards
    bytes.compressed = always + m_d * m_traits.vectors_after * state + tables + averages() + checkpoint();
    bytes.dense = freezes ? always + m_d * m_traits.vectors_before * state : bytes.compressed;
    if (has_dense_steps) bytes.dense += dense_average(m_shards ? m_d : bucket());
    if (!freezes)
      bytes.compressed = bytes.dense;
    else if (m_in.comm.dense_type != DenseType::fp32)
      bytes.compressed += dense_average(bucket());  // its buffers stay
    return bytes;
  }

private:
  static constexpr double floats = 4, bit = 1.0 / 8;  // bytes of an element

  /// What averages take after T_w, or in each step.
  double averages() const {
    const auto& in = m_in.compression;
    const bool compresses = in.compressor != CompressorKind::none;
    const double bits = m_in.optimizer.variance_bits, chunk = m_d / m_n;
    switch (m_traits.averages) {
      case Averages::nothing:
        return 0;
      case Averages::floats:
        return dense_average(m_d);
      case Averages::compressed:
        return compresses ? allreduce(in.compressor) + buckets() : dense_average(m_d);
      case Averages::compressed_and_floats:
        return (compresses ? allreduce(in.compressor) : 0) + dense_average(m_d);
      case Averages::columns:
        return compresses ? allreduce(CompressorKind::column) : dense_average(m_d);
      case Averages::variances:  // sent and received codes; means of the chunk and of all
        return (compresses ? allreduce(in.compressor) : dense_average(m_d)) + 2 * m_d * bits * bit +
               bundles(m_d * floats) + floats * m_d + floats * chunk;
      case Averages::votes:
        return votes(1);
      case Averages::averaged_votes:
        return votes(m_in.optimizer.vote == Vote::majority ? 1 : std::ceil(std::log2(m_n + 1)));
      case Averages::shard_momentum:  // and at the first step the momenta of a shard, to send and received
        return compresses ? allreduce(in.compressor) + update_of_shard() + floats * chunk : dense_average(m_d);
      case Averages::shard_gradients:
        return compresses ? allreduce(in.compressor) : dense_average(m_d);
      case Averages::tensors:  // and the momentum of a server's chunk
        return compresses ? allreduce(in.compressor) + floats * chunk : dense_average(m_d);
    }
    return 0;
  }

  /// Bytes of all chunks' messages of a compressed vector.
  double message(CompressorKind kind) const {
    const auto& in = m_in.compression;
    const double planes = compress::planes({kind, in.scale, in.bits, in.reconstruction});
    const config::NumberOrWord group = config::scale_group(m_in);
    const double groups = kind == CompressorKind::column ? 2 * m_columns
                          : group.word == "tensor"       ? m_tensors
                          : group.word == "row"          ? m_columns
                          : group.word.empty()           ? m_d / static_cast<double>(group.number)
                                                         : 0;
    return planes * bit * m_d + floats * groups;
  }
  /// c of error feedback.
  static double feedback(double elements) { return floats * elements; }
  /// Words of a compressor's table.
  double tables() const { return bit * m_d; }

  /// c of the worker and of the server's chunk; messages sent, received, gathered and the last ones, and that of a
  /// chunk. By host: of the range of one place on a host, whose messages are gathered to all.
  double allreduce(CompressorKind kind) const {
    const double message = this->message(kind);
    const double last = message;  // of all shards
    return feedback(m_d / m_local) + feedback(m_d / m_n) + 3 * message / m_local + last + message / m_n + tables() +
           bundles(message / m_local) + (m_local > 1 || m_in.comm.exchange == ExchangeKind::pairwise ? terms(m_d) : 0);
  }
  /// Buckets: copies of c to take a step back, and the tables of the kernels that update.
  double buckets() const {
    if (m_in.comm.compressed_bucket_bytes == 0) return 0;
    const bool copies = m_in.optimizer.on_nonfinite == OnNonfinite::skip;
    return tables() + (copies ? feedback(m_d) + feedback(m_d / m_n) : 0);
  }
  /// c of the shard's update, its message, and those of all shards.
  double update_of_shard() const { return feedback(m_d / m_n) + message(m_in.compression.compressor) * (1 + 1 / m_n); }
  /// Votes sent and received; the elected ones of the chunk and of all.
  double votes(double planes) const { return m_d * bit * (2 + planes * (1 + 1 / m_n)) + bundles(m_d * bit); }
  /// Messages between a row and a column of a grid of ranks. \param messages bytes that a rank sends or gathers
  double bundles(double messages) const { return m_in.comm.exchange == ExchangeKind::grid ? messages : 0; }

  /// A vector that is averaged densely: in 16 bits what is sent, received and the chunk's average; in float what MPI
  /// takes, one block of Open MPI's ring for two ranks and else two, or the terms of ordered sums.
  double dense_average(double length) const {
    if (m_in.comm.dense_type != DenseType::fp32)
      return length * (floats + floats / 2 / m_n) + bundles(length * floats / 2);
    if (m_n == 1) return 0;
    const bool ordered = m_shards || m_local > 1 || m_in.comm.exchange == ExchangeKind::pairwise;
    return ordered ? terms(length) : floats * length / m_n * (m_n == 2 ? 1 : 2);
  }
  /// Two ranges of a chunk from every rank (comm::PairwiseSum).
  double terms(double length) const {
    return m_n > 1 ? 2 * floats * m_n * std::min(length / m_n, static_cast<double>(std::size_t{1} << 19)) : 0;
  }
  /// Elements that are averaged at once during the backward pass.
  double bucket() const {
    const std::size_t bytes = m_in.comm.bucket_bytes;
    return bytes == 0 ? m_d : std::min(m_d, static_cast<double>(comm::bucket_length(bytes)));
  }

  /// What a checkpoint needs as vectors, which are in messages or not kept: momentum, both residuals.
  double checkpoint() const {
    const Averages averages = m_traits.averages;
    const bool residuals = averages != Averages::nothing && averages != Averages::floats &&
                           averages != Averages::votes && averages != Averages::averaged_votes;
    const bool written = m_in.checkpoint.every > 0 || !m_in.run.dump_parameters.empty();
    return written && residuals ? m_d * (floats + floats / m_n) : 0;
  }

  const config::Input& m_in;
  const config::AlgorithmTraits& m_traits;
  bool m_shards;
  double m_d, m_n;
  double m_local;  ///< ranks of a host that average in float first
  double m_columns = 0, m_tensors = 0;
  double m_tables = 0;  ///< elements that have a variance where others have none
};

}  // namespace

PhaseBytes run_bytes(const config::Input& input, const TensorTable& tensors, int ranks, int hosts) {
  return Sums(input, tensors, ranks, hosts)();
}

}  // namespace onebit::optim
