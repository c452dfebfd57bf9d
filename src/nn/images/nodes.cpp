#include "nn/images/nodes.hpp"

#include <cmath>
#include <utility>

#include "nn/flat_vectors.hpp"

namespace onebit::nn {

ImageNodes::ImageNodes(int height, int width, int channels, TensorTable before)
    : m_table(std::move(before)), m_begin(m_table.size()) {
  Node images{NodeKind::images};
  images.height = height;
  images.width = width;
  images.channels = channels;
  add(images);
}

int ImageNodes::add(const Node& node) {
  m_nodes.push_back(node);
  return static_cast<int>(m_nodes.size()) - 1;
}

Node ImageNodes::like(NodeKind kind, int from) const {
  Node node{kind, from};
  node.height = m_nodes[from].height;
  node.width = m_nodes[from].width;
  node.channels = m_nodes[from].channels;
  return node;
}

int ImageNodes::add_matrix(const std::string& name, int rows, int columns, Node node) {
  node.weight =
      m_table.add(name + ".weight", {static_cast<std::size_t>(rows), static_cast<std::size_t>(columns)}, true);
  node.weights = m_table.size() - node.weight;
  if (node.quantized) node.gamma = add_vector(name + ".gamma", rows);
  return add(node);
}

int ImageNodes::convolution(const std::string& name, int from, int outputs, const Window& window, bool quantizable) {
  const Node& input = m_nodes[from];
  const auto& [kernel, stride, padding] = window;
  Node node{NodeKind::convolution, from};
  node.convolution = {input.height, input.width, input.channels, outputs, kernel, stride, padding};
  node.height = node.convolution.output_height();
  node.width = node.convolution.output_width();
  node.channels = outputs;
  node.deviation = std::sqrt(2.0 / (kernel * kernel * outputs));
  node.number = static_cast<int>(m_convolution_names.size());
  m_convolution_names.push_back(name);
  node.quantized = m_quantization.kind != QuantizationKind::none && input.kind != NodeKind::images && quantizable &&
                   !matches_any(m_quantization.excluded, name);
  return add_matrix(name, outputs, node.convolution.columns(), node);
}

int ImageNodes::patch_dense(const std::string& name, int from, int outputs, int patch) {
  const int number = convolution(name, from, outputs, {patch, patch, 0});
  Node& node = m_nodes[number];
  node.deviation = std::sqrt(1.0 / node.convolution.columns());
  return number;
}

int ImageNodes::dense(const std::string& name, int from, int height, int width, int channels) {
  const int inputs = m_nodes[from].size();
  Node node{NodeKind::dense, from};
  node.height = height;
  node.width = width;
  node.channels = channels;
  node.deviation = std::sqrt(1.0 / inputs);
  return add_matrix(name, node.size(), inputs, node);
}

int ImageNodes::transposed(const std::string& name, int from, int outputs, int kernel) {
  constexpr int stride = 2;
  const Node& input = m_nodes[from];
  Node node{NodeKind::transposed, from};
  node.height = stride * input.height;
  node.width = stride * input.width;
  node.channels = outputs;
  node.convolution = {node.height, node.width, outputs, input.channels, kernel, stride, (kernel - 1) / 2};
  node.deviation = std::sqrt(2.0 * stride * stride / (kernel * kernel * input.channels));
  return add_matrix(name, input.channels, node.convolution.columns(), node);
}

void ImageNodes::set_deviation(double deviation) {
  for (Node& node : m_nodes)
    if (node.has_matrix()) node.deviation = deviation;
}

int ImageNodes::norm(const std::string& name, int from, bool relu, int addend) {
  Node node = like(NodeKind::norm, from);
  node.addend = addend;
  node.relu = relu;
  node.number = m_norms++;
  node.weight = add_vector(name + ".weight", node.channels);
  return add_biased(name, node);
}

int ImageNodes::add_biased(const std::string& name, Node node) {
  node.bias = add_vector(name + ".bias", node.channels);
  return add(node);
}

int ImageNodes::bias(const std::string& name, int from, int addend) {
  Node node = like(NodeKind::bias, from);
  node.addend = addend;
  return add_biased(name, node);
}

int ImageNodes::layer_norm(const std::string& name, int from) {
  Node node = like(NodeKind::layer_norm, from);
  node.weight = add_vector(name + ".weight", node.channels);
  return add_biased(name, node);
}

int ImageNodes::exchanged(int from, int addend) {
  const Node& input = m_nodes[from];
  Node node{NodeKind::exchanged, from, addend};
  node.height = input.channels;
  node.width = 1;
  node.channels = input.height * input.width;
  return add(node);
}

int ImageNodes::maximum(int from) {
  Node node = like(NodeKind::maximum, from);
  node.height /= 2;
  node.width /= 2;
  return add(node);
}

int ImageNodes::mean(int from) {
  Node node = like(NodeKind::mean, from);
  node.height = node.width = 1;
  return add(node);
}

template <class Exec, class Real>
void initialize(const Exec& exec, const ImageNodes& nodes, std::uint64_t seed, const Vector<Exec, Real>& x) {
  const Region region("OneBit::nn::initialize");
  const std::uint64_t key = stream_key(seed, Stream::initial_parameters);
  Kokkos::deep_copy(exec, Kokkos::subview(x, std::make_pair(nodes.begin(), nodes.table().size())), Real(0));
  for (const Node& node : nodes.nodes()) {
    if (node.has_matrix()) fill_normal(exec, key, node.weight, node.weights, static_cast<Real>(node.deviation), x);
    const auto set = [&](std::size_t begin, Real value) {
      Kokkos::deep_copy(exec, vector_at<Exec>(x, begin, node.channels), value);
    };
    if (node.quantized) set(node.gamma, 1 / std::sqrt(static_cast<Real>(node.convolution.columns())));
    if (node.kind == NodeKind::norm || node.kind == NodeKind::layer_norm) set(node.weight, Real(1));
  }
}

#define ONEBIT_INSTANTIATE(Exec, Real) \
  template void initialize(const Exec&, const ImageNodes&, std::uint64_t, const Vector<Exec, Real>&);
ONEBIT_INSTANTIATE_FOR_EACH_BACKEND_AND_REAL

}  // namespace onebit::nn
