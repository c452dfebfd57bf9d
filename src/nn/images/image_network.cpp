#include "nn/images/image_network.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "nn/flat_vectors.hpp"
#include "nn/images/layers/image_layers.hpp"

namespace onebit::nn {
namespace {

std::size_t rows(const Node& node, int batch) { return static_cast<std::size_t>(batch) * node.height * node.width; }
std::size_t elements(const Node& node, int batch) { return static_cast<std::size_t>(batch) * node.size(); }

bool is_convolution(const Node& node) {
  return node.kind == NodeKind::convolution || node.kind == NodeKind::transposed;
}

/// (norms + 1)
std::vector<std::size_t> first_channels(const ImageNodes& nodes) {
  std::vector<std::size_t> first{0};
  for (const Node& node : nodes.nodes())
    if (node.kind == NodeKind::norm) first.push_back(first.back() + node.channels);
  return first;
}

template <class Exec, class Real>
std::vector<Convolution<Exec, Real>> convolutions(const ImageNodes& nodes, int batch) {
  std::vector<Convolution<Exec, Real>> all;
  for (const Node& node : nodes.nodes()) all.emplace_back(node.convolution, is_convolution(node) ? batch : 0);
  return all;
}

/// By the number of the convolution; without outputs for those in full precision.
std::vector<ConvolutionExtents> binary_convolutions(const ImageNodes& nodes) {
  std::vector<ConvolutionExtents> all;
  for (const Node& node : nodes.nodes())
    if (node.kind == NodeKind::convolution) all.push_back(node.quantized ? node.convolution : ConvolutionExtents());
  return all;
}

/// Elements of the scratch memory of normalisations, biases and Γ.
template <class Exec, class Real>
std::size_t scratch_elements(const ImageNodes& nodes, int batch, int groups) {
  std::size_t most = 0;
  for (const Node& node : nodes.nodes()) {
    const int all_rows = static_cast<int>(rows(node, batch));
    std::size_t blocks = 0;  // of rows, whose sums are kept
    if (node.kind == NodeKind::layer_norm)
      blocks = 3 * row_block_count<Exec>(all_rows);
    else if (node.quantized || node.kind == NodeKind::bias || node.kind == NodeKind::bias_gelu)
      blocks = row_block_count<Exec, false>(all_rows);
    most = std::max(most, blocks * node.channels);
    if (node.kind != NodeKind::norm) continue;
    most = std::max(most, BatchNorms<Exec, Real>::scratch(groups, all_rows / groups, node.channels));
  }
  return most;
}

}  // namespace

void check_binary_convolutions(const ImageNodes& nodes, int batch) {
  const QuantizationKind kind = nodes.quantization().kind;
  if (kind != QuantizationKind::scq && kind != QuantizationKind::fqt) return;  // which quantise columns
  for (const Node& node : nodes.nodes()) {
    const std::size_t positions = rows(node, batch);
    if (node.quantized && positions > largest_group)
      throw InputError("train.batch",
                       "a 1-bit convolution has " + std::to_string(positions) +
                           " positions in a round of a rank, and columns of quantised gradients have at most " +
                           std::to_string(largest_group),
                       "lower train.batch, raise train.accumulation, or run more ranks");
  }
}

double numbers_kept(const ImageNodes& nodes, int batch) {
  double outputs = 0, largest = 0;
  for (const Node& node : nodes.nodes()) {
    outputs += static_cast<double>(elements(node, batch));
    // The signs of the unfolded input along rows and columns, and sums of 16 bits.
    if (node.quantized)
      outputs += static_cast<double>(rows(node, batch)) * (2 * node.convolution.columns() + 16 * node.channels) / 32;
    if (node.kind == NodeKind::layer_norm) outputs += 2.0 * static_cast<double>(rows(node, batch));
    largest = std::max(largest, static_cast<double>(elements(node, batch)));
  }
  // Up to three gradients of the largest images live at a time, and those of smaller ones add up to as much. A mixer,
  // which alone has no batch normalisations, halves no images: besides its largest gradient only narrow ones live.
  return outputs + (nodes.norms() > 0 ? 6 : 2) * largest;
}

template <class Exec, class Real>
ImageNetwork<Exec, Real>::ImageNetwork(const Exec&, const ImageNodes& nodes, int batch, int norm_samples,
                                       Product product)
    : m_nodes(nodes),
      m_product(std::move(product)),
      m_batch(batch),
      m_groups(batch / norm_samples),
      m_convolutions(convolutions<Exec, Real>(nodes, batch)),
      m_binary(nodes.quantization(), batch, binary_convolutions(nodes)),
      m_first_channel(first_channels(nodes)) {
  const auto buffer = [](const char* name, std::size_t length) {
    return make_uninitialized<Exec, Real>(std::string("OneBit::nn::ImageNetwork::") + name, length);
  };
  std::size_t convolution_scratch = 0;
  for (std::size_t k = 0; k < nodes.nodes().size(); ++k) {
    const Node& node = nodes.nodes()[k];
    if (is_convolution(node) && !node.quantized)
      convolution_scratch = std::max(convolution_scratch, m_convolutions[k].scratch(m_product.precision()));
    // The images are the caller's.
    m_outputs.push_back(k == 0 ? Buffer() : buffer("output", elements(node, batch)));
    m_row_statistics.push_back(node.kind == NodeKind::layer_norm ? buffer("row_statistics", 2 * rows(node, batch))
                                                                 : Buffer());
  }
  m_d_output = buffer("d_output", elements(nodes.last(), batch));
  const std::size_t channels = m_first_channel.back();
  m_mean = buffer("mean", m_groups * channels);
  m_reciprocal_std = buffer("reciprocal_std", m_groups * channels);
  m_population = Buffer("OneBit::nn::ImageNetwork::population", 2 * channels);
  m_convolution_scratch = buffer("convolution_scratch", convolution_scratch);
  m_scratch = buffer("scratch", scratch_elements<Exec, Real>(nodes, batch, m_groups));
}

template <class Exec, class Real>
BatchNorm<Exec, Real> ImageNetwork<Exec, Real>::norm(const Vector<Exec, const Real>& x, int k, bool trains) const {
  const Node& node = m_nodes.nodes()[k];
  const int C = node.channels, groups = trains ? m_groups : 1;
  const std::size_t first = m_first_channel[node.number], all = m_first_channel.back();
  Real* const mean = trains ? m_mean.data() + m_groups * first : m_population.data() + first;
  Real* const reciprocal_std = trains ? m_reciprocal_std.data() + m_groups * first : m_population.data() + all + first;
  return {vector_at<Exec>(x, node.weight, C),
          vector_at<Exec>(x, node.bias, C),
          m_epsilon,
          node.relu,
          output(node.from),
          addend(k),
          output(k),
          RealMatrix(mean, groups, C),
          RealMatrix(reciprocal_std, groups, C)};
}

template <class Exec, class Real>
LayerNorm<Exec, Real> ImageNetwork<Exec, Real>::layer_norm(const Vector<Exec, const Real>& x, int k) const {
  const Node& node = m_nodes.nodes()[k];
  const int rows = output(k).extent_int(0);
  return {vector_at<Exec>(x, node.weight, node.channels),
          vector_at<Exec>(x, node.bias, node.channels),
          m_layer_epsilon,
          output(node.from),
          output(k),
          vector_at<Exec>(m_row_statistics[k], 0, rows),
          vector_at<Exec>(m_row_statistics[k], rows, rows)};
}

template <class Exec, class Real>
auto ImageNetwork<Exec, Real>::run(const Exec& exec, const Vector<Exec, const Real>& x, const Buffer& pixels,
                                   bool trains) -> const Buffer& {
  const Region region("OneBit::nn::forward");
  m_outputs[0] = pixels;
  m_product.prepare(exec, MatrixRef<Exec, const Real>(x.data(), 1, x.extent(0)), m_weights);
  for (int k = 1; k < static_cast<int>(m_nodes.nodes().size()); ++k) {
    const Node& node = m_nodes.nodes()[k];
    switch (node.kind) {
      case NodeKind::convolution:
        convolve(exec, x, k);
        break;
      case NodeKind::norm:
        if (trains) Norms::take_statistics(exec, norm(x, k, true), m_scratch);
        Norms::normalize(exec, norm(x, k, trains));
        break;
      case NodeKind::maximum: {
        const Node& from = m_nodes.nodes()[node.from];
        ImageLayers<Exec, Real>::maximum(exec, from.height, from.width, output(node.from), output(k));
        break;
      }
      case NodeKind::mean:
        Kernels::mean_rows(exec, output(node.from), output(k));
        break;
      case NodeKind::dense:
        Kernels::dense(exec, m_product, samples(m_outputs[node.from], node.from),
                       m_weights.part(node.weight, node.size(), m_nodes.nodes()[node.from].size()),
                       samples(m_outputs[k], k));
        break;
      case NodeKind::transposed:
        m_convolutions[k].backward_input(
            exec, m_product, output(node.from),
            m_weights.part(node.weight, node.convolution.outputs, node.convolution.columns()), m_convolution_scratch,
            false, output(k));
        break;
      case NodeKind::leaky_relu:
        ImageLayers<Exec, Real>::leaky_relu(exec, m_outputs[node.from], m_outputs[k]);
        break;
      case NodeKind::tanh:
        ImageLayers<Exec, Real>::tanh(exec, m_outputs[node.from], m_outputs[k]);
        break;
      case NodeKind::bias:
        Kernels::add_bias(exec, vector_at<Exec>(x, node.bias, node.channels), output(node.from), addend(k), output(k));
        break;
      case NodeKind::bias_gelu:
        Kernels::bias_gelu(exec, vector_at<Exec>(x, node.bias, node.channels), output(node.from), output(k));
        break;
      case NodeKind::layer_norm:
        Kernels::layer_norm(exec, layer_norm(x, k));
        break;
      case NodeKind::exchanged:
        ImageLayers<Exec, Real>::exchange(exec, output(node.from), addend(k), output(k));
        break;
      case NodeKind::images:
        break;
    }
  }
  return m_outputs.back();
}

template <class Exec, class Real>
void ImageNetwork<Exec, Real>::convolve(const Exec& exec, const Vector<Exec, const Real>& x, int k) {
  const Node& node = m_nodes.nodes()[k];
  if (node.quantized)
    m_binary.forward(exec, node.number, output(node.from), binary_parameters(x, node), output(k));
  else
    m_convolutions[k].forward(exec, m_product, output(node.from),
                              m_weights.part(node.weight, node.channels, node.convolution.columns()),
                              m_convolution_scratch, output(k));
}

template <class Exec, class Real>
QuantizedParameters<Exec, Real> ImageNetwork<Exec, Real>::binary_parameters(const Vector<Exec, const Real>& x,
                                                                            const Node& node) const {
  return {matrix_at<Exec>(x, node.weight, node.channels, node.convolution.columns()),
          vector_at<Exec>(x, node.gamma, node.channels)};
}

template <class Exec, class Real>
void ImageNetwork<Exec, Real>::backward(const Exec& exec, const Vector<Exec, const Real>& x, bool add, const Buffer& g,
                                        const GradientReady& ready_from, const QuantizerKey& key) {
  m_d_images = Buffer();
  m_key = key;
  m_binary.start_state(m_quantizer_measures);
  backward_through(exec, x, add, g, ready_from);
}

template <class Exec, class Real>
void ImageNetwork<Exec, Real>::backward_to_images(const Exec& exec, const Vector<Exec, const Real>& x,
                                                  const Buffer& d_images) {
  m_d_images = d_images;
  backward_through(exec, x, false, Buffer(), {});
}

template <class Exec, class Real>
void ImageNetwork<Exec, Real>::backward_through(const Exec& exec, const Vector<Exec, const Real>& x, bool add,
                                                const Buffer& g, const GradientReady& ready_from) {
  const Region region("OneBit::nn::backward");
  const int last = static_cast<int>(m_nodes.nodes().size()) - 1;
  m_gradients.assign(last + 1, Buffer());
  m_gradients[last] = m_d_output;
  for (int k = last; k > 0; --k) {
    node_backward(exec, x, k, add, g);
    m_pool.give(m_gradients[k]);
    m_gradients[k] = Buffer();
    const Node& node = m_nodes.nodes()[k];
    if (node.has_matrix() && ready_from) ready_from(node.weight);
  }
}

template <class Exec, class Real>
void ImageNetwork<Exec, Real>::node_backward(const Exec& exec, const Vector<Exec, const Real>& x, int k, bool add,
                                             const Buffer& g) {
  const Node& node = m_nodes.nodes()[k];
  const Node& from = m_nodes.nodes()[node.from];
  switch (node.kind) {
    case NodeKind::convolution:
      node.quantized ? binary_backward(exec, x, k, add, g) : convolution_backward(exec, k, add, g);
      break;
    case NodeKind::norm:
      norm_backward(exec, x, k, add, g);
      break;
    case NodeKind::maximum: {
      const bool adds = adds_to(node.from);
      ImageLayers<Exec, Real>::maximum_backward(exec, from.height, from.width, output(node.from), gradient(k), adds,
                                                gradient(node.from));
      break;
    }
    case NodeKind::mean:
      adds_to(node.from);
      Kernels::mean_rows_backward(exec, gradient(k), gradient(node.from));
      break;
    case NodeKind::dense:
      dense_backward(exec, k, add, g);
      break;
    case NodeKind::transposed:
      transposed_backward(exec, k, add, g);
      break;
    case NodeKind::leaky_relu: {
      const bool adds = adds_to(node.from);
      ImageLayers<Exec, Real>::leaky_relu_backward(exec, m_outputs[node.from], m_gradients[k], adds,
                                                   m_gradients[node.from]);
      break;
    }
    case NodeKind::tanh: {
      const bool adds = adds_to(node.from);
      ImageLayers<Exec, Real>::tanh_backward(exec, m_outputs[k], m_gradients[k], adds, m_gradients[node.from]);
      break;
    }
    case NodeKind::bias:
      bias_backward(exec, k, add, g);
      break;
    case NodeKind::bias_gelu:
      std::swap(m_gradients[node.from], m_gradients[k]);  // which this node alone reads
      Kernels::bias_gelu_backward(exec, output(node.from), gradient(node.from), m_scratch,
                                  vector_gradient(exec, g, node.bias, node.channels, add));
      break;
    case NodeKind::layer_norm:
      layer_norm_backward(exec, x, k, add, g);
      break;
    case NodeKind::exchanged:
      exchange_backward(exec, k);
      break;
    case NodeKind::images:
      break;
  }
}

template <class Exec, class Real>
void ImageNetwork<Exec, Real>::convolution_backward(const Exec& exec, int k, bool add, const Buffer& g) {
  const Node& node = m_nodes.nodes()[k];
  const Convolution<Exec, Real>& convolution = m_convolutions[k];
  const int columns = node.convolution.columns();
  if (wants_parameters(g))
    convolution.backward_weight(exec, m_product, gradient(k), output(node.from), m_convolution_scratch, add,
                                matrix_at<Exec>(g, node.weight, node.channels, columns));
  if (!wants_gradient(node.from)) return;
  const bool adds = adds_to(node.from);
  convolution.backward_input(exec, m_product, gradient(k), m_weights.part(node.weight, node.channels, columns),
                             m_convolution_scratch, adds, gradient(node.from));
}

template <class Exec, class Real>
void ImageNetwork<Exec, Real>::binary_backward(const Exec& exec, const Vector<Exec, const Real>& x, int k, bool add,
                                               const Buffer& g) {
  const Node& node = m_nodes.nodes()[k];
  const QuantizerKey key{m_key.seed, m_key.step, m_key.first_sample, node.number};
  const QuantizedParameters<Exec, Real> parameters = binary_parameters(x, node);
  const auto d_gamma = vector_gradient(exec, g, node.gamma, node.channels, add);
  m_binary.backward_parameters(exec, key, m_product, gradient(k), parameters, add, m_scratch,
                               matrix_at<Exec>(g, node.weight, node.channels, node.convolution.columns()), d_gamma);
  const bool adds = adds_to(node.from);
  m_binary.backward_input(exec, key, m_product, gradient(k), output(node.from), parameters, adds, gradient(node.from));
}

template <class Exec, class Real>
QuantizationState ImageNetwork<Exec, Real>::quantization() const {
  QuantizationState state = m_binary.state();
  for (GradientGroups& gradient : state.gradients) gradient.layer = m_nodes.convolution_names()[gradient.number];
  return state;
}

template <class Exec, class Real>
void ImageNetwork<Exec, Real>::dense_backward(const Exec& exec, int k, bool add, const Buffer& g) {
  const Node& node = m_nodes.nodes()[k];
  const int outputs = node.size(), inputs = m_nodes.nodes()[node.from].size();
  const RealMatrix d_output = samples(m_gradients[k], k);
  if (wants_parameters(g))
    Kernels::dense_backward_weight(exec, m_product, d_output, samples(m_outputs[node.from], node.from), add,
                                   matrix_at<Exec>(g, node.weight, outputs, inputs));
  if (!wants_gradient(node.from)) return;
  const bool adds = adds_to(node.from);
  Kernels::dense_backward_input(exec, m_product, d_output, m_weights.part(node.weight, outputs, inputs), adds,
                                samples(m_gradients[node.from], node.from));
}

/// Of the convolution whose backward pass this is, `output(from)` is the gradient at the output and `output(k)` that at
/// the input. So the gradient at `from` is the convolution of that at k, which no other node may have written to.
template <class Exec, class Real>
void ImageNetwork<Exec, Real>::transposed_backward(const Exec& exec, int k, bool add, const Buffer& g) {
  const Node& node = m_nodes.nodes()[k];
  const Convolution<Exec, Real>& convolution = m_convolutions[k];
  const int rows = node.convolution.outputs, columns = node.convolution.columns();
  if (wants_parameters(g))
    convolution.backward_weight(exec, m_product, output(node.from), gradient(k), m_convolution_scratch, add,
                                matrix_at<Exec>(g, node.weight, rows, columns));
  if (!wants_gradient(node.from)) return;
  adds_to(node.from);
  convolution.forward(exec, m_product, gradient(k), m_weights.part(node.weight, rows, columns), m_convolution_scratch,
                      gradient(node.from));
}

/// This node alone reads `from`, so the gradient there may take the place of that at k. With an addend, whose gradient
/// is what Norms::backward leaves at k, that one takes it: no later node reads the addend, so nothing is there yet.
template <class Exec, class Real>
void ImageNetwork<Exec, Real>::norm_backward(const Exec& exec, const Vector<Exec, const Real>& x, int k, bool add,
                                             const Buffer& g) {
  const Node& node = m_nodes.nodes()[k];
  BatchNormGradient<Exec, Real> parameters;
  if (wants_parameters(g))
    parameters = {vector_gradient(exec, g, node.weight, node.channels, add),
                  vector_gradient(exec, g, node.bias, node.channels, add)};
  const RealMatrix d_output = gradient(k);
  if (node.addend > 0) {
    adds_to(node.from);
    std::swap(m_gradients[node.addend], m_gradients[k]);
  } else {
    std::swap(m_gradients[node.from], m_gradients[k]);
  }
  Norms::backward(exec, norm(x, k, true), d_output, gradient(node.from), m_scratch, parameters);
}

template <class Exec, class Real>
VectorRef<Exec, Real> ImageNetwork<Exec, Real>::vector_gradient(const Exec& exec, const Buffer& g, std::size_t begin,
                                                                int length, bool add) {
  const VectorRef<Exec, Real> gradient = vector_at<Exec>(g, begin, length);
  if (!add) Kokkos::deep_copy(exec, gradient, Real(0));
  return gradient;
}

template <class Exec, class Real>
void ImageNetwork<Exec, Real>::layer_norm_backward(const Exec& exec, const Vector<Exec, const Real>& x, int k, bool add,
                                                   const Buffer& g) {
  const Node& node = m_nodes.nodes()[k];
  const bool adds = adds_to(node.from);
  Kernels::layer_norm_backward(exec, layer_norm(x, k), gradient(k), adds, gradient(node.from), Dropout<Real>(),
                               gradient(node.from), m_scratch,
                               {vector_gradient(exec, g, node.weight, node.channels, add),
                                vector_gradient(exec, g, node.bias, node.channels, add),
                                {}});
}

/// `from` and the addend get the gradient at k, as norm_backward gives it to them.
template <class Exec, class Real>
void ImageNetwork<Exec, Real>::bias_backward(const Exec& exec, int k, bool add, const Buffer& g) {
  const Node& node = m_nodes.nodes()[k];
  Kernels::add_bias_backward(exec, gradient(k), m_scratch, vector_gradient(exec, g, node.bias, node.channels, add));
  std::swap(m_gradients[node.from], m_gradients[k]);
  if (node.addend == 0) return;
  adds_to(node.addend);
  Kokkos::deep_copy(exec, m_gradients[node.addend], m_gradients[node.from]);
}

/// The inverse exchange, as a matrix of the images before it. The addend takes the gradient at k.
template <class Exec, class Real>
void ImageNetwork<Exec, Real>::exchange_backward(const Exec& exec, int k) {
  const Node& node = m_nodes.nodes()[k];
  const bool adds = adds_to(node.from);
  const RealMatrix d_input = gradient(node.from);
  ImageLayers<Exec, Real>::exchange(exec, gradient(k), adds ? d_input : RealMatrix(), d_input);
  if (node.addend > 0) std::swap(m_gradients[node.addend], m_gradients[k]);
}

template <class Exec, class Real>
void ImageNetwork<Exec, Real>::add_statistics(const Exec& exec, Real factor) {
  const std::size_t all = m_first_channel.back();
  const Buffer population = m_population;
  const Real epsilon = m_epsilon;
  const int groups = m_groups;
  for (const Node& node : m_nodes.nodes()) {
    if (node.kind != NodeKind::norm) continue;
    const std::size_t first = m_first_channel[node.number];
    const RealMatrix mean(m_mean.data() + groups * first, groups, node.channels);
    const RealMatrix reciprocal_std(m_reciprocal_std.data() + groups * first, groups, node.channels);
    const Real R = static_cast<Real>(m_batch / groups * node.height * node.width);
    const Real unbiased = R > 1 ? R / (R - 1) : Real(1), of_group = factor / Real(groups);
    for_each(
        exec, "OneBit::nn::add_statistics", node.channels, KOKKOS_LAMBDA(std::size_t j) {
          for (int g = 0; g < groups; ++g) {
            const Real r = reciprocal_std(g, j);
            population(first + j) += of_group * mean(g, j);
            population(all + first + j) += of_group * unbiased * (1 / (r * r) - epsilon);
          }
        });
  }
}

template <class Exec, class Real>
void ImageNetwork<Exec, Real>::set_population(const Exec& exec) {
  const std::size_t all = m_first_channel.back();
  const Buffer population = m_population;
  const Real epsilon = m_epsilon;
  for_each(
      exec, "OneBit::nn::set_population", all, KOKKOS_LAMBDA(std::size_t j) {
        const Real variance = population(all + j);
        population(all + j) = 1 / math::sqrt((variance < 0 ? Real(0) : variance) + epsilon);
      });
}

#define ONEBIT_INSTANTIATE(Exec, Real) template class ImageNetwork<Exec, Real>;
ONEBIT_INSTANTIATE_FOR_EACH_BACKEND_AND_REAL

}  // namespace onebit::nn
