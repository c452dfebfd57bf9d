#include "optim/compression.hpp"

#include <algorithm>
#include <utility>

#include "compress/layout.hpp"

namespace onebit::optim {
namespace {

/// First element of each tensor, or of each column of 1-bit SGD: the weights that lead into one output, which here are
/// one row of an (out, in) tensor. A vector is one column.
std::vector<std::size_t> group_begins(const TensorTable& tensors, bool columns) {
  std::vector<std::size_t> begins;
  for (const Tensor& tensor : tensors.tensors()) {
    const std::size_t length = columns && tensor.shape.size() > 1 ? tensor.shape.back() : tensor.size();
    for (std::size_t at = 0; at < tensor.size(); at += length) begins.push_back(tensor.offset + at);
  }
  return begins;
}

/// Chunks and groups of elements [begin, end).
compress::Layout make_layout(const config::Input& input, const TensorTable& tensors, std::size_t begin, std::size_t end,
                             int chunks) {
  using compress::Grouping;
  const bool columns = compress::by_columns(input.compression.compressor);
  const config::NumberOrWord& group = input.compression.group;
  const Grouping grouping = columns                  ? Grouping::column
                            : group.word == "vector" ? Grouping::vector
                            : group.word == "chunk"  ? Grouping::chunk
                            : group.word == "tensor" ? Grouping::tensor
                                                     : Grouping::fixed;
  std::vector<std::size_t> begins = {0};
  for (const std::size_t at : group_begins(tensors, columns))
    if (at > begin && at < end) begins.push_back(at - begin);
  return {end - begin, chunks, grouping, static_cast<std::size_t>(group.number), begins};
}

compress::Options make_options(const config::Input& input) {
  const auto& in = input.compression;
  return {in.compressor, in.scale, in.bits, in.reconstruction};
}

}  // namespace

comm::DenseOptions dense_options(const config::Input& input) {
  return {input.comm.dense_type, input.comm.dense_rounding, static_cast<std::uint64_t>(input.run.seed)};
}

template <class Exec>
std::vector<std::size_t> chunk_begins(const Setup<Exec>& setup) {
  return make_layout(setup.input, setup.tensors, 0, setup.tensors.size(), setup.transport.ranks()).chunk_begins;
}

template <class Exec>
std::shared_ptr<const compress::Compressor<Exec>> make_compressor(const Setup<Exec>& setup) {
  return compress::make_compressor<Exec>(
      make_layout(setup.input, setup.tensors, 0, setup.tensors.size(), setup.transport.ranks()),
      make_options(setup.input));
}

template <class Exec>
comm::CompressedAverage<Exec> make_compressed_average(const Setup<Exec>& setup) {
  return make_compressed_average(setup, 0, setup.tensors.size());
}

template <class Exec>
comm::CompressedAverage<Exec> make_compressed_average(const Setup<Exec>& setup, std::size_t begin, std::size_t end) {
  if (setup.input.compression.compressor == CompressorKind::none) return comm::CompressedAverage<Exec>(setup.average);
  const bool error_feedback = setup.input.compression.error_feedback;
  const comm::Hosts<Exec>* const hosts = setup.transport.hosts();
  if (hosts == nullptr)
    return {setup.transport, make_layout(setup.input, setup.tensors, begin, end, setup.transport.ranks()),
            make_options(setup.input), error_feedback};
  const std::vector<std::size_t> begins = compress::equal_chunks(end - begin, hosts->local.ranks());
  std::vector<compress::Layout> shards;
  for (std::size_t shard = 0; shard + 1 < begins.size(); ++shard)
    shards.push_back(make_layout(setup.input, setup.tensors, begin + begins[shard], begin + begins[shard + 1],
                                 hosts->across.ranks()));
  return {*hosts, shards, make_options(setup.input), error_feedback};
}

template <class Exec>
std::shared_ptr<comm::CompressedBuckets<Exec>> make_compressed_buckets(
    const config::Input& input, const TensorTable& tensors,
    std::unique_ptr<comm::Transport<typename comm::CompressedBuckets<Exec>::On>> transport) {
  const std::size_t length = comm::bucket_length(input.comm.compressed_bucket_bytes);
  std::vector<compress::Layout> layouts;
  for (std::size_t begin = 0; begin < tensors.size(); begin += length)
    layouts.push_back(make_layout(input, tensors, begin, std::min(tensors.size(), begin + length), transport->ranks()));
  return std::make_shared<comm::CompressedBuckets<Exec>>(std::move(transport), std::move(layouts), make_options(input),
                                                         input.compression.error_feedback,
                                                         input.optimizer.on_nonfinite == OnNonfinite::skip);
}

template <class Exec>
void archive_residuals(Archive<Exec>& archive, comm::CompressedAverage<Exec>& allreduce, std::size_t first) {
  if (!allreduce.compresses()) return;
  const auto places = allreduce.places();
  const Vector<Exec, float> worker = allreduce.worker_residual(archive.exec());
  const Vector<Exec, float> server = allreduce.server_residual(archive.exec());
  archive.part("worker_residual", worker, {first + places.begin, first + places.end, places.row, places.rows});
  archive.part("server_residual", server, {first + places.server_begin, first + places.server_end});
  if (archive.restores()) allreduce.set_residuals(archive.exec(), worker, server);
}

template <class Exec>
void archive_residuals(Archive<Exec>& archive, const Setup<Exec>& setup,
                       std::optional<comm::CompressedAverage<Exec>>& allreduce) {
  bool compresses = allreduce.has_value();
  archive.number("state/compresses", compresses);
  if (compresses && !allreduce) allreduce.emplace(make_compressed_average(setup));
  if (compresses) archive_residuals(archive, *allreduce);
}

template <class Exec>
void archive_residuals(Archive<Exec>& archive, comm::CompressedBuckets<Exec>& buckets) {
  bool compresses = buckets.allocated();
  archive.number("state/compresses", compresses);
  if (!compresses) return;
  buckets.allocate();
  for (std::size_t k = 0; k < buckets.size(); ++k) {
    const auto places = buckets.places(k);
    const Vector<Exec, float> worker = buckets.worker_residual(k), server = buckets.server_residual(k);
    archive.part("worker_residual", worker, {places.begin, places.end, places.row, places.rows});
    archive.part("server_residual", server, {places.server_begin, places.server_end});
    if (archive.restores()) buckets.set_residuals(k, worker, server);
  }
}

template <class Exec>
void report_residuals(const Exec& exec, const comm::CompressedAverage<Exec>& allreduce, StepState& state) {
  if (!allreduce.compresses()) return;
  state.compressed = true;
  state.worker_residual_l2 = allreduce.worker_residual_l2(exec);
  state.server_residual_l2 = allreduce.server_residual_l2(exec);
}

template <class Exec>
void report_residuals(const comm::CompressedBuckets<Exec>& buckets, StepState& state) {
  state.compressed = true;
  state.worker_residual_l2 = buckets.worker_residual_l2();
  state.server_residual_l2 = buckets.server_residual_l2();
}

#define ONEBIT_INSTANTIATE(Exec)                                                                                      \
  template std::vector<std::size_t> chunk_begins(const Setup<Exec>&);                                                 \
  template std::shared_ptr<const compress::Compressor<Exec>> make_compressor(const Setup<Exec>&);                     \
  template comm::CompressedAverage<Exec> make_compressed_average(const Setup<Exec>&);                                 \
  template comm::CompressedAverage<Exec> make_compressed_average(const Setup<Exec>&, std::size_t, std::size_t);       \
  template std::shared_ptr<comm::CompressedBuckets<Exec>> make_compressed_buckets(                                    \
      const config::Input&, const TensorTable&,                                                                       \
      std::unique_ptr<comm::Transport<typename comm::CompressedBuckets<Exec>::On>>);                                  \
  template void archive_residuals(Archive<Exec>&, comm::CompressedAverage<Exec>&, std::size_t);                       \
  template void archive_residuals(Archive<Exec>&, const Setup<Exec>&, std::optional<comm::CompressedAverage<Exec>>&); \
  template void archive_residuals(Archive<Exec>&, comm::CompressedBuckets<Exec>&);                                    \
  template void report_residuals(const Exec&, const comm::CompressedAverage<Exec>&, StepState&);                      \
  template void report_residuals(const comm::CompressedBuckets<Exec>&, StepState&);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::optim
