#include "optim/compression.hpp"

#include <algorithm>
#include <utility>

#include "compress/layout.hpp"
#include "optim/muon/tensor_parts.hpp"

namespace onebit::optim {
namespace {

/// First element of each tensor, or of each row: the weights that lead into one output, which are a column of 1-bit SGD
/// and here a row of an (out, in) tensor. A vector is one row.
std::vector<std::size_t> group_begins(const TensorTable& tensors, bool rows) {
  std::vector<std::size_t> begins;
  for (const Tensor& tensor : tensors.tensors()) {
    const std::size_t length = rows && tensor.shape.size() > 1 ? tensor.shape.back() : tensor.size();
    for (std::size_t at = 0; at < tensor.size(); at += length) begins.push_back(tensor.offset + at);
  }
  return begins;
}

/// Chunks and groups of elements [begin, end). Where a server needs whole matrices, a chunk is what its server needs:
/// the rank that makes an average uses it. Where the longest chunk would be twice as long as the mean, chunks are cut
/// between rows instead, and Muon moves the average to its server.
compress::Layout make_layout(const config::Input& input, const TensorTable& tensors, std::size_t begin, std::size_t end,
                             int chunks) {
  using compress::Grouping;
  const bool columns = compress::by_columns(input.compression.compressor);
  const config::NumberOrWord group = config::scale_group(input);
  const Grouping grouping = columns                  ? Grouping::column
                            : group.word == "vector" ? Grouping::vector
                            : group.word == "chunk"  ? Grouping::chunk
                            : group.word.empty()     ? Grouping::fixed
                                                     : Grouping::tensor;
  const auto in_range = [&](const std::vector<std::size_t>& places) {
    std::vector<std::size_t> inside = {0};
    for (const std::size_t at : places)
      if (at > begin && at < end) inside.push_back(at - begin);
    return inside;
  };
  const auto cut_at = [&](const std::vector<std::size_t>& chunk_borders) {
    return compress::Layout(end - begin, chunks, grouping, static_cast<std::size_t>(group.number),
                            in_range(group_begins(tensors, columns || group.word == "row")), chunk_borders);
  };
  if (!config::traits(input.optimizer.algorithm).has(config::serves_tensors)) return cut_at({});
  const compress::Layout of_servers = cut_at(in_range(server_borders(tensors)));
  const bool uneven = of_servers.chunk_length() * static_cast<std::size_t>(chunks) > 2 * (end - begin);
  return uneven && group.word == "row" ? cut_at(in_range(server_borders(tensors, true))) : of_servers;
}

compress::Options make_options(const config::Input& input) {
  const auto& in = input.compression;
  return {in.compressor, in.scale, in.bits, in.reconstruction};
}

}  // namespace

template <class Exec>
std::vector<std::size_t> chunk_begins(const Setup<Exec>& setup) {
  return make_layout(setup.input, setup.tensors, 0, setup.tensors.size(), setup.transport.ranks()).chunk_begins;
}

template <class Exec>
std::vector<std::size_t> server_begins(const Setup<Exec>& setup) {
  return compress::Layout(setup.tensors.size(), setup.transport.ranks(), compress::Grouping::chunk, 0, {},
                          server_borders(setup.tensors))
      .chunk_begins;
}

template <class Exec>
std::unique_ptr<comm::CompressedAverage<Exec>> make_compressed_average(const Setup<Exec>& setup, Range range) {
  const compress::Options options = make_options(setup.input);
  const bool error_feedback = setup.input.compression.error_feedback;
  const comm::Hosts<Exec>* const hosts = setup.transport.hosts();
  if (hosts == nullptr)
    return std::make_unique<comm::CompressedAverage<Exec>>(
        setup.transport, make_layout(setup.input, setup.tensors, range.begin, range.end, setup.transport.ranks()),
        options, error_feedback);
  const std::vector<std::size_t> begins = compress::equal_chunks(range.end - range.begin, hosts->local.ranks());
  std::vector<compress::Layout> shards;
  for (std::size_t shard = 0; shard + 1 < begins.size(); ++shard)
    shards.push_back(make_layout(setup.input, setup.tensors, range.begin + begins[shard],
                                 range.begin + begins[shard + 1], hosts->across.ranks()));
  return std::make_unique<comm::CompressedAverage<Exec>>(*hosts, shards, options, error_feedback);
}

namespace {

/// (buckets + 1) first elements.
std::vector<std::size_t> bucket_begins(const config::Input& input, std::size_t d) {
  const std::size_t bytes = input.comm.compressed_bucket_bytes, length = bytes == 0 ? d : comm::bucket_length(bytes);
  std::vector<std::size_t> begins;
  for (std::size_t begin = 0; begin < d; begin += length) begins.push_back(begin);
  begins.push_back(d);
  return begins;
}

}  // namespace

template <class Exec>
std::unique_ptr<comm::CompressedBuckets<Exec>> make_momentum_buckets(const Setup<Exec>& setup) {
  comm::BucketsOptions<Exec, Exec> options;
  options.begins = bucket_begins(setup.input, setup.tensors.size());
  options.make = [setup, begins = options.begins](std::size_t k) {
    return make_compressed_average(setup, {begins[k], begins[k + 1]});
  };
  return comm::make_buckets(std::move(options));
}

template <class Exec>
std::unique_ptr<comm::CompressedBuckets<Exec>> make_overlapped_momentum_buckets(
    const config::Input& input, const TensorTable& tensors,
    std::unique_ptr<comm::Transport<comm::ForSecondThread<Exec>>> transport) {
  using On = comm::ForSecondThread<Exec>;
  comm::BucketsOptions<Exec, On> options;
  options.begins = bucket_begins(input, tensors.size());
  options.undoable = input.optimizer.on_nonfinite == OnNonfinite::skip;
  const auto layout = [&input, &tensors, begins = options.begins, ranks = transport->ranks()](std::size_t k) {
    return make_layout(input, tensors, begins[k], begins[k + 1], ranks);
  };
  options.make = [&input, layout, &transport = *transport](std::size_t k) {
    return std::make_unique<comm::CompressedAverage<On>>(transport, layout(k), make_options(input),
                                                         input.compression.error_feedback);
  };
  if (!std::is_same_v<On, Exec>)
    options.make_decoder = [&input, layout](std::size_t k) {
      return compress::make_compressor<Exec>(layout(k), make_options(input));
    };
  options.transport = std::move(transport);
  return comm::make_buckets(std::move(options));
}

template <class Exec>
void archive_residuals(Archive<Exec>& archive, comm::CompressedAverage<Exec>& average, std::size_t first,
                       const char* of_server) {
  const auto extents = average.residual_extents();
  const Vector<Exec, float> worker = average.worker_residual(archive.exec());
  const Vector<Exec, float> server = average.server_residual(archive.exec());
  archive.part("worker_residual", worker, {first + extents.begin, first + extents.end, extents.row, extents.rows});
  archive.part(of_server, server, {first + extents.server_begin, first + extents.server_end});
  if (archive.restores()) average.set_residuals(archive.exec(), worker, server);
}

template <class Exec>
void archive_residuals(Archive<Exec>& archive, comm::CompressedBuckets<Exec>& buckets) {
  for (std::size_t k = 0; k < buckets.size(); ++k) {
    const auto residuals = buckets.residuals(k);
    const auto& extents = residuals.extents;
    archive.part("worker_residual", residuals.worker, {extents.begin, extents.end, extents.row, extents.rows});
    archive.part("server_residual", residuals.server, {extents.server_begin, extents.server_end});
    if (archive.restores()) buckets.set_residuals(k, residuals);
  }
}

template <class Exec>
void report_residuals(const Exec& exec, const comm::CompressedAverage<Exec>& average, StepState& state) {
  state.compressed = true;
  state.worker_residual_l2 = average.worker_residual_l2(exec);
  state.server_residual_l2 = average.server_residual_l2(exec);
}

template <class Exec>
Average<Exec>::Average(const Setup<Exec>& setup, Range range) : m_dense(&setup.average), m_first(range.begin) {
  if (setup.input.compression.compressor != CompressorKind::none) m_compressed = make_compressed_average(setup, range);
}

template <class Exec>
void Average<Exec>::operator()(const Exec& exec, const Vector<Exec, float>& x, PhaseTimes& times,
                               float residual_factor) {
  if (m_compressed)
    (*m_compressed)(exec, x, times, residual_factor);
  else
    (*m_dense)(exec, x, times);
}

template <class Exec>
void Average<Exec>::report(const Exec& exec, StepState& state) const {
  if (m_compressed) report_residuals(exec, *m_compressed, state);
}

template <class Exec>
void Average<Exec>::state(Archive<Exec>& archive) {
  if (m_compressed) archive_residuals(archive, *m_compressed, m_first);
}

#define ONEBIT_INSTANTIATE(Exec)                                                                                \
  template std::vector<std::size_t> chunk_begins(const Setup<Exec>&);                                           \
  template std::vector<std::size_t> server_begins(const Setup<Exec>&);                                          \
  template std::unique_ptr<comm::CompressedAverage<Exec>> make_compressed_average(const Setup<Exec>&, Range);   \
  template std::unique_ptr<comm::CompressedBuckets<Exec>> make_momentum_buckets(const Setup<Exec>&);            \
  template std::unique_ptr<comm::CompressedBuckets<Exec>> make_overlapped_momentum_buckets(                     \
      const config::Input&, const TensorTable&, std::unique_ptr<comm::Transport<comm::ForSecondThread<Exec>>>); \
  template void archive_residuals(Archive<Exec>&, comm::CompressedAverage<Exec>&, std::size_t, const char*);    \
  template void archive_residuals(Archive<Exec>&, comm::CompressedBuckets<Exec>&);                              \
  template void report_residuals(const Exec&, const comm::CompressedAverage<Exec>&, StepState&);                \
  template class Average<Exec>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::optim
