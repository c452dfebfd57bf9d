/// \file nn_binary_convolution_test.cpp
/// 1-bit convolutions against plain loops in double, in every kind of gradient; networks of them.

#include <numeric>
#include <set>
#include <string>

#include "base/error.hpp"
#include "nn/column_sums.hpp"
#include "nn/images/image_classifier.hpp"
#include "nn/images/layers/binary_convolution.hpp"
#include "nn/images/layers/reference.hpp"
#include "nn/quantizer/dequantize.hpp"
#include "nn_support.hpp"

namespace onebit::nn {
namespace {

constexpr double tolerance = 5e-6;  // of sums of up to 20480 floats
constexpr int images = 5;

const Quantization kinds[] = {{QuantizationKind::qat},
                              {QuantizationKind::psq, 1},
                              {QuantizationKind::psq, 8},
                              {QuantizationKind::scq, 1},
                              {QuantizationKind::scq, 4},
                              {QuantizationKind::fqt, 2},
                              {QuantizationKind::fqt, 4, Pruning::bernoulli},
                              {QuantizationKind::fqt, 4, Pruning::topk}};
std::string name_of(const Quantization& one) {
  return to_string(one.kind) + "_" + std::to_string(one.bits) + "_" + to_string(one.pruning) + "_" +
         to_string(one.group);
}

/// {H, W, C, D, k, s, p}: channels of a part of a word, of one, of words, and of a word and a half; runs of channels
/// that end within words; strides; one channel; a kernel wider than the image; a mixer's patches as channels.
const ConvolutionExtents convolutions[] = {{5, 7, 8, 4, 3, 1, 1},   {6, 6, 32, 5, 3, 2, 1}, {4, 3, 64, 33, 3, 1, 1},
                                           {7, 5, 48, 3, 3, 2, 1},  {5, 4, 96, 2, 3, 1, 1}, {9, 9, 1, 3, 5, 1, 2},
                                           {2, 1, 21, 4, 3, 1, 1},  {4, 4, 70, 6, 1, 1, 0}, {8, 8, 3, 2, 4, 2, 1},
                                           {16, 1, 49, 25, 1, 1, 0}};

double sign(double t) { return t > 0 ? 1 : -1; }
double passes(double t) { return std::abs(t) < 1 ? 1 : 0; }

/// One convolution and a batch, on the host in double and on a backend in Real.
template <class Exec, class Real>
struct Layer {
  using Device = test::DeviceArray<Exec, Real>;
  static constexpr int number = 1;

  Exec exec{};
  ConvolutionExtents e;
  Quantization kind;
  int positions;
  Array<double> x, weight, gamma, d_output, before;
  Device x_device, weight_device, gamma_device, d_output_device;
  BinaryConvolutions<Exec, Real> layers;
  linalg::MatrixProduct<Exec, Real> product;
  Device output, d_input, d_weight, d_gamma;
  QuantizerKey key{3, 7, 40, number};

  Layer(const Quantization& kind_, const ConvolutionExtents& extents)
      : e(extents),
        kind(kind_),
        positions(images * e.output_pixels()),
        x(test::with_edges(test::random_array(images * e.pixels(), e.channels, 1))),
        weight(test::with_edges(test::random_array(e.outputs, e.columns(), 2))),
        gamma(test::random_array(1, e.outputs, 3, 0.1, 0.5)),
        d_output(test::random_array(positions, e.outputs, 4)),
        before(test::random_array(x.rows, x.columns, 5)),
        x_device(test::of_real<Real>(x)),
        weight_device(test::of_real<Real>(weight)),
        gamma_device(test::of_real<Real>(gamma)),
        d_output_device(test::of_real<Real>(d_output)),
        layers(kind, images, {{}, e}),
        output(positions, e.outputs),
        d_input(test::of_real<Real>(before)),
        d_weight(e.outputs, e.columns()),
        d_gamma(1, e.outputs) {}

  QuantizedParameters<Exec, Real> parameters() const { return {weight_device.matrix(), gamma_device.vector()}; }
  void run(bool add) {
    const std::size_t scratch = static_cast<std::size_t>(row_block_count<Exec>(positions)) * e.outputs;
    layers.forward(exec, number, x_device.matrix(), parameters(), output.matrix());
    layers.backward_input(exec, key, product, d_output_device.matrix(), x_device.matrix(), parameters(), add,
                          d_input.matrix());
    layers.backward_parameters(exec, key, product, d_output_device.matrix(), parameters(), add,
                               Vector<Exec, Real>("OneBit::test::scratch", scratch), d_weight.matrix(),
                               d_gamma.vector());
    fence(exec, "OneBit::test");
  }

  /// The gradient as the products see it: G, or dequantised by rows or by columns.
  Array<double> gradient(GroupAxis axis) const {
    if (kind.kind == QuantizationKind::qat) {
      Array<double> values = d_output;
      for (int i = 0; i < values.rows; ++i)
        for (int j = 0; j < values.columns; ++j) values(i, j) *= gamma(0, j);
      return values;
    }
    if (kind.kind == QuantizationKind::psq) axis = GroupAxis::rows;
    std::optional<Pruning> pruning;
    if (kind.kind == QuantizationKind::fqt) pruning = kind.pruning;
    const int together = kind.group == RowGroup::image ? e.output_pixels() : 1;
    GradientQuantizer<Exec, Real> quantizer(axis, {{positions, e.outputs, together}}, kind.bits, pruning);
    Device dequantized(positions, e.outputs);
    dequantize<Exec, Real>(exec, quantizer(exec, d_output_device.matrix(), gamma_device.vector(), key, together), axis,
                           dequantized.matrix());
    return dequantized.array();
  }
};

template <class Exec>
class BinaryConvolution : public ::testing::Test {
protected:
  Exec exec;

  template <class Real>
  void compare() {
    for (const ConvolutionExtents& e : convolutions)
      for (Quantization kind : kinds)
        for (const RowGroup group : {RowGroup::image, RowGroup::position}) {
          kind.group = group;
          SCOPED_TRACE(testing::Message() << name_of(kind) << ", " << e.height << " x " << e.width << " x "
                                          << e.channels << ", k " << e.kernel << ", s " << e.stride);
          Layer<Exec, Real> layer(kind, e);
          layer.run(true);  // to what was there: ∇x to `before`, the others to 0
          expect_equal(layer, 1, 1);
          layer.run(false);
          expect_equal(layer, 0, 1);
          layer.run(true);
          expect_equal(layer, 0, 2);
        }
  }

  /// \param times that the gradients of input and weight were added; \param before whether to what was there at first
  template <class Real>
  void expect_equal(const Layer<Exec, Real>& layer, double before, double times) {
    const ConvolutionExtents& e = layer.e;
    const Array<double> signs = unfolded_signs_ref(e, images, layer.x);
    const Array<double> by_rows = layer.gradient(GroupAxis::rows), by_columns = layer.gradient(GroupAxis::columns);
    Array<double> output(layer.positions, e.outputs), d_input = layer.before, d_weight(e.outputs, e.columns());
    for (double& value : d_input.values) value *= before;
    for (int i = 0; i < layer.positions; ++i)
      for (int j = 0; j < e.outputs; ++j) {
        double sum = 0;
        for (int k = 0; k < e.columns(); ++k) {
          sum += signs(i, k) * sign(layer.weight(j, k));
          d_weight(j, k) += times * by_columns(i, j) * signs(i, k) * passes(layer.weight(j, k));
        }
        output(i, j) = sum * layer.gamma(0, j);
      }
    for_each_product_ref(e, images, [&](int to, int column, int from, int c) {
      for (int j = 0; j < e.outputs; ++j)
        d_input(from, c) += times * by_rows(to, j) * sign(layer.weight(j, column)) * passes(layer.x(from, c));
    });
    EXPECT_LE(test::relative_error(layer.output.array(), output), tolerance);
    EXPECT_LE(test::relative_error(layer.d_input.array(), d_input), tolerance);
    EXPECT_LE(test::relative_error(layer.d_weight.array(), d_weight), tolerance);
  }
};
TYPED_TEST_SUITE(BinaryConvolution, test::Backends, test::BackendNames);

TYPED_TEST(BinaryConvolution, equals_plain_loops_in_float) { this->template compare<float>(); }
TYPED_TEST(BinaryConvolution, equals_plain_loops_in_double) { this->template compare<double>(); }

/// ∇x is folded in several blocks of images, of some of which nothing is kept.
TYPED_TEST(BinaryConvolution, blocks_equal_plain_loops) {
  const ConvolutionExtents e{64, 64, 32, 2, 3, 1, 1};  // an unfolded gradient of an image has 4.7 MB
  if (is_host<TypeParam>) {
    EXPECT_EQ((Convolution<TypeParam, float>(e, images).block()), 1);
  }
  for (const Quantization& kind : {kinds[0], kinds[6]}) {
    SCOPED_TRACE(name_of(kind));
    Layer<TypeParam, float> layer(kind, e);
    layer.run(true);
    this->expect_equal(layer, 1, 1);
  }
}

/// ∇Γ is the gradient of y, which is linear in Γ.
TYPED_TEST(BinaryConvolution, gradient_of_gamma_equals_differences) {
  Layer<TypeParam, double> layer(kinds[5], convolutions[0]);
  layer.run(false);
  std::vector<double> gamma = layer.gamma.values;
  const auto value = [&] {
    Kokkos::deep_copy(layer.gamma_device.memory, test::to_device<TypeParam>(gamma));
    layer.layers.forward(this->exec, layer.number, layer.x_device.matrix(), layer.parameters(), layer.output.matrix());
    return test::weighted_sum(layer.d_output, layer.output.array());
  };
  EXPECT_LE(test::gradient_error(value, gamma, layer.d_gamma.array().values), 1e-9);
}

TYPED_TEST(BinaryConvolution, bits_do_not_depend_on_threads) {
  for (const Quantization& kind : kinds) {
    Layer<TypeParam, float> layer(kind, {13, 11, 40, 37, 3, 1, 1});
    layer.run(false);
    const std::string name = std::string("_") + BackendName<TypeParam>::value + "_" + name_of(kind);
    test::print_bits("output" + name, test::to_host(layer.output.memory));
    test::print_bits("d_input" + name, test::to_host(layer.d_input.memory));
    test::print_bits("d_weight" + name, test::to_host(layer.d_weight.memory));
    test::print_bits("d_gamma" + name, test::to_host(layer.d_gamma.memory));
  }
}

// ---- networks ----

ImageShape shape_of(Network network, const Quantization& quantization) {
  return {network, 8, 8, 1, 8, 3, quantization};
}

/// Losses of some steps of gradient descent on one batch.
template <class Exec>
std::vector<double> losses(Network network, const Quantization& quantization, int steps) {
  constexpr int batch = 8;
  const Exec exec;
  const ImageNodes nodes(shape_of(network, quantization));
  Vector<Exec, float> x("x", nodes.table().size()), g("g", nodes.table().size());
  initialize<Exec, float>(exec, nodes, 3, x);
  const test::DeviceArray<Exec, float> pixels(test::random_array<float>(batch * 64, 1, 21));
  const Images<Exec, float> samples{pixels.memory, test::to_device<Exec>(test::random_integers(batch, 3, 22))};
  ImageClassifier<Exec, float> model(exec, nodes, batch, batch);
  std::vector<double> found;
  for (int step = 1; step <= steps; ++step) {
    found.push_back(model.forward(exec, x, samples));
    model.backward(exec, x, {5, static_cast<std::uint64_t>(step), 0}, 1.0f, false, g);
    for_each(
        exec, "OneBit::test::descend", x.extent(0), KOKKOS_LAMBDA(std::size_t i) { x(i) -= 0.02f * g(i); });
  }
  return found;
}

TYPED_TEST(BinaryConvolution, networks_learn_with_the_same_bits_on_the_host) {
  const auto mean_of_ten = [](auto begin) { return std::accumulate(begin, begin + 10, 0.0) / 10; };
  for (const Network network : {Network::resnet18, Network::mixer})
    for (const Quantization& kind : {kinds[0], kinds[4], kinds[6]}) {
      SCOPED_TRACE(to_string(network) + " " + name_of(kind));
      const int steps = network == Network::mixer ? 120 : 60;  // no batch normalisation hastens it
      const std::vector<double> found = losses<TypeParam>(network, kind, steps);
      EXPECT_LT(mean_of_ten(found.end() - 10), 0.85 * mean_of_ten(found.begin()));
      if (is_host<TypeParam>) {
        EXPECT_EQ(found, losses<HostExec>(network, kind, steps));
      }
    }
}

TYPED_TEST(BinaryConvolution, networks_report_their_quantisers) {
  const Quantization kind{QuantizationKind::fqt, 4, Pruning::systematic, {"layer4.*"}};
  const ImageNodes nodes(shape_of(Network::resnet18, kind));
  const Vector<TypeParam, float> x("x", nodes.table().size()), g("g", nodes.table().size());
  initialize<TypeParam, float>(this->exec, nodes, 3, x);
  const test::DeviceArray<TypeParam, float> pixels(test::random_array<float>(8 * 64, 1, 21));
  ImageClassifier<TypeParam, float> model(this->exec, nodes, 8, 8);
  model.forward(this->exec, x, {pixels.memory, test::to_device<TypeParam>(test::random_integers(8, 3, 22))});
  model.measure_quantizers(QuantizerMeasures::groups);
  model.backward(this->exec, x, {5, 1, 0}, 1.0f, false, g);
  const QuantizationState state = model.quantization();
  EXPECT_NEAR(state.bits, 1, 0.2);
  EXPECT_NEAR(state.pruned_share, 0.75, 0.05);
  EXPECT_GT(state.error, 0);
  ASSERT_EQ(state.gradients.size(), 24u) << "rows and columns of two convolutions in two blocks of three stages";
  // The backward pass takes the last convolution first, and its columns before its rows.
  EXPECT_EQ(state.gradients[0].layer, "layer3.1.conv2");
  EXPECT_EQ(state.gradients[0].groups, 32) << "channels";
  EXPECT_EQ(state.gradients[1].groups, 8) << "images";
  EXPECT_EQ(state.gradients[1].elements, 2 * 2 * 32);
  EXPECT_EQ(state.gradients.back().layer, "layer1.0.conv1");
}

TEST(BinaryImageNodes, are_all_convolutions_but_the_first_the_shortcuts_and_the_excluded) {
  const Quantization kind{QuantizationKind::fqt, 4, Pruning::systematic, {"layer1.?.conv1"}};
  const ImageNodes nodes(shape_of(Network::resnet18, kind));
  std::vector<std::string> names;
  for (const Tensor& tensor : nodes.table().tensors())
    if (tensor.name.find("gamma") != std::string::npos) names.push_back(tensor.name);
  EXPECT_EQ(names.size(), 14u);
  EXPECT_EQ(names.front(), "layer1.0.conv2.gamma");
  EXPECT_EQ(names.back(), "layer4.1.conv2.gamma");
  const Quantization all{QuantizationKind::qat};
  EXPECT_EQ(ImageNodes(shape_of(Network::vgg16, all)).table().tensors().size(),
            ImageNodes(shape_of(Network::vgg16, {})).table().tensors().size() + 12);
  try {
    const ImageNodes none(shape_of(Network::resnet18, {QuantizationKind::qat, 4, Pruning::systematic, {"layer5.*"}}));
    FAIL() << "no error";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("'layer5.*' matches the name of no convolution"), std::string::npos);
  }
}

/// The four dense layers of each block, over patches and over channels.
TEST(BinaryImageNodes, of_a_mixer_are_all_but_its_stem) {
  const ImageNodes nodes(shape_of(Network::mixer, {QuantizationKind::fqt}));
  std::vector<std::string> names;
  for (const Node& node : nodes.nodes())
    if (node.quantized) names.push_back(nodes.convolution_names()[node.number]);
  ASSERT_EQ(names.size(), 16u);
  EXPECT_EQ(std::vector<std::string>(names.begin(), names.begin() + 4),
            (std::vector<std::string>{"blocks.0.mlp_tokens.fc1", "blocks.0.mlp_tokens.fc2", "blocks.0.mlp_channels.fc1",
                                      "blocks.0.mlp_channels.fc2"}));
  EXPECT_EQ(nodes.convolution_names()[0], "stem.proj");
}

/// The maximum of four pixels behind a ReLU would be positive nearly everywhere, and so would be its sign.
TEST(BinaryImageNodes, pool_before_the_norm) {
  const auto kinds_before_pooling = [](const Quantization& quantization) {
    const ImageNodes nodes(shape_of(Network::vgg16, quantization));
    std::set<NodeKind> kinds;
    for (const Node& node : nodes.nodes())
      if (node.kind == NodeKind::maximum) kinds.insert(nodes.nodes()[node.from].kind);
    return kinds;
  };
  EXPECT_EQ(kinds_before_pooling({QuantizationKind::qat}), std::set{NodeKind::convolution});
  EXPECT_EQ(kinds_before_pooling({}), std::set{NodeKind::norm});
}

TEST(BinaryImageNodes, refuse_batches_whose_gradients_have_too_long_columns) {
  const ImageNodes nodes(shape_of(Network::resnet18, {QuantizationKind::fqt}));
  try {
    check_binary_convolutions(nodes, 65536 * 8 / 64 + 1);
    FAIL() << "no error";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("524352 positions"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace onebit::nn
