#include "nn/images/nodes.hpp"

#include <cmath>

#include "nn/flat_vectors.hpp"

namespace onebit::nn {

int ImageNodes::add(const Node& node) {
  m_nodes.push_back(node);
  return static_cast<int>(m_nodes.size()) - 1;
}

int ImageNodes::convolution(const std::string& name, int from, int outputs, int kernel, int stride) {
  const Node& input = m_nodes[from];
  Node node{NodeKind::convolution, from};
  node.convolution = {input.height, input.width, input.channels, outputs, kernel, stride, kernel / 2};
  node.height = node.convolution.output_height();
  node.width = node.convolution.output_width();
  node.channels = outputs;
  const auto columns = static_cast<std::size_t>(node.convolution.columns());
  node.weight = m_table.add(name + ".weight", {static_cast<std::size_t>(outputs), columns}, true);
  return add(node);
}

int ImageNodes::norm(const std::string& name, int from, bool relu) {
  Node node = m_nodes[from];
  node.kind = NodeKind::norm;
  node.from = from;
  node.relu = relu;
  node.number = m_norms++;
  node.weight = m_table.add(name + ".weight", {static_cast<std::size_t>(node.channels)}, false);
  node.bias = m_table.add(name + ".bias", {static_cast<std::size_t>(node.channels)}, false);
  return add(node);
}

int ImageNodes::maximum(int from) {
  Node node = m_nodes[from];
  node.kind = NodeKind::maximum;
  node.from = from;
  node.height /= 2;
  node.width /= 2;
  return add(node);
}

int ImageNodes::sum(int a, int b) {
  Node node = m_nodes[a];
  node.kind = NodeKind::sum;
  node.from = a;
  node.other = b;
  return add(node);
}

int ImageNodes::mean(int from) {
  Node node = m_nodes[from];
  node.kind = NodeKind::mean;
  node.from = from;
  node.height = node.width = 1;
  return add(node);
}

template <class Exec, class Real>
void initialize(const Exec& exec, const ImageNodes& nodes, std::uint64_t seed, const Vector<Exec, Real>& x) {
  const Region region("OneBit::nn::initialize");
  const std::uint64_t key = stream_key(seed, Stream::initial_parameters);
  const auto fill = [&](std::size_t begin, std::size_t size, double variance) {
    fill_normal(exec, key, begin, size, static_cast<Real>(std::sqrt(variance)), x);
  };
  Kokkos::deep_copy(exec, x, Real(0));
  for (const Node& node : nodes.nodes()) {
    const auto channels = static_cast<std::size_t>(node.channels);
    if (node.kind == NodeKind::convolution)
      fill(node.weight, channels * node.convolution.columns(),
           2.0 / (node.convolution.kernel * node.convolution.kernel * node.channels));
    if (node.kind == NodeKind::norm)
      Kokkos::deep_copy(exec, Kokkos::subview(x, std::make_pair(node.weight, node.weight + channels)), Real(1));
  }
  fill(nodes.head_weight(), nodes.head_bias() - nodes.head_weight(), 1.0 / nodes.last().channels);
}

#define ONEBIT_INSTANTIATE(Exec)                                                                       \
  template void initialize(const Exec&, const ImageNodes&, std::uint64_t, const Vector<Exec, float>&); \
  template void initialize(const Exec&, const ImageNodes&, std::uint64_t, const Vector<Exec, double>&);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::nn
