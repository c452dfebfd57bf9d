/// \file parts.cpp
/// See parts.hpp.

#include "optim/parts.hpp"

#include <cmath>

namespace onebit::optim {
namespace {

compress::Layout make_layout(const config::Input& input, const TensorTable& tensors, int ranks) {
  const config::NumberOrWord& group = input.compression.group;
  const compress::Grouping grouping = group.word == "vector"   ? compress::Grouping::vector
                                      : group.word == "chunk"  ? compress::Grouping::chunk
                                      : group.word == "tensor" ? compress::Grouping::tensor
                                                               : compress::Grouping::block;
  std::vector<std::size_t> offsets;
  for (const Tensor& tensor : tensors.tensors()) offsets.push_back(tensor.offset);
  return {tensors.size(), ranks, grouping, static_cast<std::size_t>(group.number), offsets};
}

compress::Scale make_scale(const config::Input& input) {
  return input.compression.scale == config::Scale::l1 ? compress::Scale::l1 : compress::Scale::l2;
}

}  // namespace

template <class Exec>
comm::CompressedAllreduce<Exec> make_compressed_allreduce(const Setup<Exec>& setup) {
  return {setup.transport, setup.rank, make_layout(setup.input, setup.tensors, setup.ranks), make_scale(setup.input),
          setup.input.compression.error_feedback};
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
void report_residuals(const Exec& exec, const OrderedSum<Exec>& sum, const comm::CompressedAllreduce<Exec>& allreduce,
                      StepState& state) {
  const auto& server = allreduce.server_residual();
  state.compressed = true;
  state.worker_residual_l2 = l2_norm(exec, sum, allreduce.worker_residual());
  state.server_residual_l2 = l2_norm(exec, OrderedSum<Exec>(server.extent(0)), server);
}

#define ONEBIT_INSTANTIATE(Exec)                                                                               \
  template comm::CompressedAllreduce<Exec> make_compressed_allreduce(const Setup<Exec>&);                      \
  template void scale(const Exec&, float, const Vector<Exec, float>&);                                         \
  template Vector<Exec, std::uint32_t> decay_bits<Exec>(const TensorTable&);                                   \
  template double l2_norm(const Exec&, const OrderedSum<Exec>&, const Vector<Exec, float>&);                   \
  template void report_residuals(const Exec&, const OrderedSum<Exec>&, const comm::CompressedAllreduce<Exec>&, \
                                 StepState&);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::optim
