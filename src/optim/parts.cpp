/// \file parts.cpp
/// See parts.hpp.

#include "optim/parts.hpp"

#include <cmath>

#include "comm/hierarchical.hpp"

namespace onebit::optim {
namespace {

/// First element of each column: what leads into one output, a row of the (out, in) tensors here. A vector is one.
std::vector<std::size_t> column_begins(const TensorTable& tensors) {
  std::vector<std::size_t> begins;
  for (const Tensor& tensor : tensors.tensors()) {
    const std::size_t length = tensor.shape.size() < 2 ? tensor.size() : tensor.shape.back();
    for (std::size_t at = 0; at < tensor.size(); at += length) begins.push_back(tensor.offset + at);
  }
  return begins;
}

std::vector<std::size_t> tensor_begins(const TensorTable& tensors) {
  std::vector<std::size_t> begins;
  for (const Tensor& tensor : tensors.tensors()) begins.push_back(tensor.offset);
  return begins;
}

/// The cut of elements [begin, end) for `chunks` ranks.
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
  for (const std::size_t at : columns ? column_begins(tensors) : tensor_begins(tensors))
    if (at > begin && at < end) begins.push_back(at - begin);
  return {end - begin, chunks, grouping, static_cast<std::size_t>(group.number), begins};
}

compress::Options make_options(const config::Input& input) {
  const auto& in = input.compression;
  return {in.compressor, in.scale, in.bits, in.reconstruction};
}

}  // namespace

template <class Exec>
comm::CompressedAllreduce<Exec> make_compressed_allreduce(const Setup<Exec>& setup) {
  if (setup.input.compression.compressor == CompressorKind::none)
    return comm::CompressedAllreduce<Exec>(setup.transport);
  const std::size_t length = setup.tensors.size();
  const bool error_feedback = setup.input.compression.error_feedback;
  const comm::Hosts<Exec>* const hosts = setup.transport.hosts();
  if (hosts == nullptr)
    return {setup.transport, make_layout(setup.input, setup.tensors, 0, length, setup.ranks), make_options(setup.input),
            error_feedback};
  const std::vector<std::size_t> begins = comm::shard_begins(length, hosts->local.ranks());
  std::vector<compress::Layout> shards;
  for (std::size_t shard = 0; shard + 1 < begins.size(); ++shard)
    shards.push_back(make_layout(setup.input, setup.tensors, begins[shard], begins[shard + 1], hosts->across.ranks()));
  return {*hosts, shards, make_options(setup.input), error_feedback};
}

template <class Exec>
void archive_residuals(Archive<Exec>& archive, comm::CompressedAllreduce<Exec>& allreduce) {
  if (!allreduce.compresses()) return;
  const auto places = allreduce.places();
  const Vector<Exec, float> worker = allreduce.worker_residual(archive.exec());
  const Vector<Exec, float> server = allreduce.server_residual(archive.exec());
  archive.part("worker_residual", worker, {places.begin, places.end, places.row, places.rows});
  archive.part("server_residual", server, {places.server_begin, places.server_end});
  if (archive.restores()) allreduce.set_residuals(archive.exec(), worker, server);
}

template <class Exec>
void archive_residuals(Archive<Exec>& archive, const Setup<Exec>& setup,
                       std::optional<comm::CompressedAllreduce<Exec>>& allreduce) {
  bool compresses = allreduce.has_value();
  archive.number("state/compresses", compresses);
  if (compresses && !allreduce) allreduce.emplace(make_compressed_allreduce(setup));
  if (compresses) archive_residuals(archive, *allreduce);
}

float ResidualFactor::operator()(double lr) {
  if (!m_scales) return 1;
  const float last = m_lr;
  m_lr = static_cast<float>(lr);  // as the update of the parameters takes it
  const bool is_quotient = last > 0 && m_lr > 0;
  const float factor = is_quotient ? last / m_lr : 1.0f;
  return std::isfinite(factor) ? factor : 1.0f;
}

template <class Exec>
void scale(const Exec& exec, float factor, const Vector<Exec, float>& vector) {
  if (factor == 1) return;
  for_each(
      exec, "OneBit::optim::scale", vector.extent(0), KOKKOS_LAMBDA(std::size_t i) { vector(i) *= factor; });
  fence(exec, "OneBit::optim::scale");
}

template <class Exec>
Vector<Exec, std::uint32_t> decay_bits(const TensorTable& tensors) {
  Vector<Exec, std::uint32_t> bits("OneBit::optim::decays", (tensors.size() + 31) / 32);
  const auto host = Kokkos::create_mirror_view(bits);
  for (const Tensor& tensor : tensors.tensors())
    if (tensor.decays)
      for (std::size_t i = tensor.offset; i < tensor.offset + tensor.size(); ++i)
        host(i / 32) |= std::uint32_t{1} << (i % 32);
  Kokkos::deep_copy(bits, host);
  return bits;
}

template <class Exec>
double l2_norm(const Exec& exec, const OrderedSum<Exec>& sum, const Vector<Exec, float>& vector) {
  return std::sqrt(sum(
      exec, "OneBit::optim::l2_norm",
      KOKKOS_LAMBDA(std::size_t i) { return static_cast<double>(vector(i)) * static_cast<double>(vector(i)); }));
}

template <class Exec>
void report_residuals(const Exec& exec, const comm::CompressedAllreduce<Exec>& allreduce, StepState& state) {
  if (!allreduce.compresses()) return;
  state.compressed = true;
  state.worker_residual_l2 = allreduce.worker_residual_l2(exec);
  state.server_residual_l2 = allreduce.server_residual_l2(exec);
}

#define ONEBIT_INSTANTIATE(Exec)                                                             \
  template comm::CompressedAllreduce<Exec> make_compressed_allreduce(const Setup<Exec>&);    \
  template void archive_residuals(Archive<Exec>&, comm::CompressedAllreduce<Exec>&);         \
  template void archive_residuals(Archive<Exec>&, const Setup<Exec>&,                        \
                                  std::optional<comm::CompressedAllreduce<Exec>>&);          \
  template void scale(const Exec&, float, const Vector<Exec, float>&);                       \
  template Vector<Exec, std::uint32_t> decay_bits<Exec>(const TensorTable&);                 \
  template double l2_norm(const Exec&, const OrderedSum<Exec>&, const Vector<Exec, float>&); \
  template void report_residuals(const Exec&, const comm::CompressedAllreduce<Exec>&, StepState&);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::optim
