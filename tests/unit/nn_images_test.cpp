/// \file nn_images_test.cpp
/// The kernels of images against the plain loops of nn/images/layers/reference.hpp, in float and double; their
/// gradients, and those of whole networks, in double against central differences.

#include "base/sixteen_bits.hpp"
#include "nn/images/image_classifier.hpp"
#include "nn/images/layers/batch_norm.hpp"
#include "nn/images/layers/convolution.hpp"
#include "nn/images/layers/image_layers.hpp"
#include "nn/images/layers/reference.hpp"
#include "nn_support.hpp"

namespace onebit::nn {
namespace {

using test::DeviceArray;
using test::gradient_error;
using test::in_double;
using test::random_array;
using test::random_integers;
using test::relative_error;
using test::rounding;
using test::weighted_sum;

template <class Exec>
class Image : public ::testing::Test {
protected:
  Exec exec;
};
TYPED_TEST_SUITE(Image, test::Backends, test::BackendNames);

/// {H, W, C, D, k, s, p}: odd extents, strides that leave pixels out, one channel, a kernel of one pixel, a kernel
/// wider than the image, patches that do not overlap.
const ConvolutionExtents convolutions[] = {{5, 7, 3, 4, 3, 1, 1},  {6, 6, 2, 5, 3, 2, 1}, {7, 5, 1, 3, 3, 2, 1},
                                           {4, 4, 6, 7, 1, 1, 0},  {5, 5, 6, 7, 1, 2, 0}, {9, 9, 2, 3, 5, 1, 2},
                                           {8, 8, 33, 9, 3, 1, 1}, {2, 1, 3, 4, 3, 1, 1}, {8, 8, 3, 2, 4, 2, 1},
                                           {8, 12, 3, 5, 4, 4, 0}};

/// Factors of products in this precision, which rounding to it does not change.
template <class Real>
Array<Real> random_factors(int rows, int columns, int seed, Precision precision) {
  Array<Real> factors = random_array<Real>(rows, columns, seed);
  if (precision == Precision::bf16)
    for (Real& value : factors.values) value = Bfloat16::widened(Bfloat16::nearest(static_cast<float>(value)));
  return factors;
}

template <class Exec, class Real>
void expect_convolution_equals_reference(const Exec& exec, const ConvolutionExtents& e, int images,
                                         Precision precision) {
  const auto factors = [&](int rows, int columns, int seed) {
    return random_factors<Real>(rows, columns, seed, precision);
  };
  const Array<Real> input = factors(images * e.pixels(), e.channels, 1), weight = factors(e.outputs, e.columns(), 2);
  const Array<Real> d_output = factors(images * e.output_pixels(), e.outputs, 3);
  const Array<Real> before = random_array<Real>(input.rows, input.columns, 4);

  const Convolution<Exec, Real> convolution(e, images);
  linalg::MatrixProduct<Exec, Real> product(precision);
  const Vector<Exec, Real> unfolded("unfolded", convolution.scratch(product.precision()));
  const DeviceArray<Exec, Real> x(input), w(weight), d(d_output), y(d_output.rows, d_output.columns);
  const DeviceArray<Exec, Real> d_input(before), d_weight(weight);
  const linalg::Factor<Exec, Real> factor(w.matrix());
  convolution.forward(exec, product, x.matrix(), factor, unfolded, y.matrix());
  EXPECT_LE(relative_error(y.array(), convolution_ref(e, images, in_double(input), in_double(weight))), rounding<Real>);

  Array<double> d_input_ref = in_double(before), d_weight_ref(weight.rows, weight.columns);
  convolution_backward_ref(e, images, in_double(input), in_double(weight), in_double(d_output), d_input_ref,
                           d_weight_ref);
  convolution.backward_input(exec, product, d.matrix(), factor, unfolded, true, d_input.matrix());
  convolution.backward_weight(exec, product, d.matrix(), x.matrix(), unfolded, false, d_weight.matrix());
  EXPECT_LE(relative_error(d_input.array(), d_input_ref), rounding<Real>);
  EXPECT_LE(relative_error(d_weight.array(), d_weight_ref), rounding<Real>);
  convolution.backward_weight(exec, product, d.matrix(), x.matrix(), unfolded, true, d_weight.matrix());
  for (double& value : d_weight_ref.values) value *= 2;
  EXPECT_LE(relative_error(d_weight.array(), d_weight_ref), rounding<Real>);
}

/// The numbers of images give one group of oneDNN, and several. Double is never rounded.
TYPED_TEST(Image, convolution_equals_reference) {
  using Exec = TypeParam;
  for (const ConvolutionExtents& e : convolutions)
    for (const int images : {3, 16}) {
      SCOPED_TRACE(testing::Message() << e.height << "x" << e.width << " k " << e.kernel << " s " << e.stride);
      expect_convolution_equals_reference<Exec, double>(this->exec, e, images, Precision::fp32);
      for (const Precision precision : {Precision::fp32, Precision::bf16})
        if (linalg::missing<Exec>(precision).empty())
          expect_convolution_equals_reference<Exec, float>(this->exec, e, images, precision);
    }
}

/// Blocks of images give the gradient of all images, and what was there before is added to.
TYPED_TEST(Image, convolution_in_blocks_equals_reference) {
  using Exec = TypeParam;
  const ConvolutionExtents e{64, 64, 16, 2, 3, 1, 1};  // an unfolded image has 4.7 MB
  const int images = 3;
  const Array<double> input = random_array(images * e.pixels(), e.channels, 1);
  const Array<double> d_output = random_array(images * e.output_pixels(), e.outputs, 3);
  const Array<double> weight = random_array(e.outputs, e.columns(), 2);
  const Convolution<Exec, double> convolution(e, images);
  linalg::MatrixProduct<Exec, double> product;
  const Vector<Exec, double> unfolded("unfolded", convolution.scratch(product.precision()));
  if (is_host<Exec>) {
    EXPECT_LT(convolution.scratch(product.precision()), std::size_t{2} * e.output_pixels() * e.columns());
  }
  const DeviceArray<Exec, double> x(input), d(d_output), d_weight(weight), y(d_output.rows, d_output.columns);
  const DeviceArray<Exec, double> w(weight);
  convolution.forward(this->exec, product, x.matrix(), w.matrix(), unfolded, y.matrix());
  convolution.backward_weight(this->exec, product, d.matrix(), x.matrix(), unfolded, true, d_weight.matrix());
  Array<double> d_input_ref(input.rows, input.columns), d_weight_ref = weight;
  convolution_backward_ref(e, images, input, weight, d_output, d_input_ref, d_weight_ref);
  EXPECT_LE(relative_error(y.array(), convolution_ref(e, images, input, weight)), 1e-14);
  EXPECT_LE(relative_error(d_weight.array(), d_weight_ref), 1e-13);
}

/// The arrays of a batch normalisation on a backend.
template <class Exec, class Real>
struct NormArrays {
  DeviceArray<Exec, Real> input, weight, bias, addend, output, mean, reciprocal_std;
  Vector<Exec, Real> scratch;
  BatchNorm<Exec, Real> norm;

  NormArrays(const Array<Real>& input_, int groups, bool relu)
      : input(input_),
        weight(random_array<Real>(1, input_.columns, 11, 0.2, 1)),
        bias(random_array<Real>(1, input_.columns, 12, 0.3)),
        addend(random_array<Real>(input_.rows, input_.columns, 13)),
        output(input_.rows, input_.columns),
        mean(groups, input_.columns),
        reciprocal_std(groups, input_.columns),
        scratch("scratch", BatchNorms<Exec, Real>::scratch(groups, input_.rows / groups, input_.columns)),
        norm{weight.vector(),        bias.vector(),   Real(1e-5),      relu,
             input.matrix(),         addend.matrix(), output.matrix(), mean.matrix(),
             reciprocal_std.matrix()} {}
};

struct NormExtents {
  int groups, rows, columns;
};
constexpr NormExtents norms[] = {{1, 2, 1}, {3, 7, 5}, {2, 65, 33}, {4, 100, 70}};

TYPED_TEST(Image, batch_norm_equals_reference) {
  using Exec = TypeParam;
  test::for_both_types([&](auto zero) {
    using Real = decltype(zero);
    for (const NormExtents& e : norms)
      for (const bool relu : {false, true}) {
        SCOPED_TRACE(testing::Message() << e.groups << " groups of " << e.rows << ", " << e.columns << " columns");
        const Array<Real> input = random_array<Real>(e.groups * e.rows, e.columns, 5, 2, 3);
        NormArrays<Exec, Real> arrays(input, e.groups, relu);
        BatchNorms<Exec, Real>::take_statistics(this->exec, arrays.norm, arrays.scratch);
        BatchNorms<Exec, Real>::normalize(this->exec, arrays.norm);
        const auto expected = [&](const Array<double>& addend) {
          return batch_norm_ref(in_double(input), e.rows, arrays.weight.array(), arrays.bias.array(),
                                double(Real(1e-5)), addend, relu);
        };
        EXPECT_LE(relative_error(arrays.output.array(), expected(arrays.addend.array())), 10 * rounding<Real>);
        arrays.norm.addend = {};
        BatchNorms<Exec, Real>::normalize(this->exec, arrays.norm);
        EXPECT_LE(relative_error(arrays.output.array(), expected(Array<double>(input.rows, input.columns))),
                  10 * rounding<Real>);
      }
  });
}

TYPED_TEST(Image, batch_norm_gradients_equal_differences) {
  using Exec = TypeParam;
  for (const NormExtents& e : norms) {
    if (e.rows < 3) continue;  // of two rows the result is ±1, whatever they are
    SCOPED_TRACE(testing::Message() << e.groups << " groups of " << e.rows << ", " << e.columns << " columns");
    Array<double> input = random_array(e.groups * e.rows, e.columns, 5, 2, 3);
    NormArrays<Exec, double> arrays(input, e.groups, true);
    const Array<double> d_output = random_array(input.rows, input.columns, 6);
    const DeviceArray<Exec, double> d(d_output), d_input(input.rows, input.columns);
    const DeviceArray<Exec, double> d_weight(1, e.columns), d_bias(1, e.columns);
    BatchNorms<Exec, double>::take_statistics(this->exec, arrays.norm, arrays.scratch);
    BatchNorms<Exec, double>::normalize(this->exec, arrays.norm);
    BatchNorms<Exec, double>::backward(this->exec, arrays.norm, d.matrix(), d_input.matrix(), arrays.scratch,
                                       {d_weight.vector(), d_bias.vector()});
    Array<double> weight = arrays.weight.array(), bias = arrays.bias.array(), addend = arrays.addend.array();
    const auto value = [&] {
      return weighted_sum(d_output, batch_norm_ref(input, e.rows, weight, bias, 1e-5, addend, true));
    };
    EXPECT_LE(gradient_error(value, weight.values, d_weight.array().values, 2, 1e-6), 1e-6);
    EXPECT_LE(gradient_error(value, bias.values, d_bias.array().values, 2, 1e-6), 1e-6);
    EXPECT_LE(gradient_error(value, input.values, d_input.array().values, 2, 1e-6), 1e-6);
    EXPECT_LE(gradient_error(value, addend.values, d.array().values, 2, 1e-6), 1e-6);
    // In place of d_output.
    const DeviceArray<Exec, double> in_place(d_output), unused(1, e.columns);
    BatchNorms<Exec, double>::backward(this->exec, arrays.norm, in_place.matrix(), in_place.matrix(), arrays.scratch,
                                       {unused.vector(), unused.vector()});
    EXPECT_EQ(in_place.array().values, d_input.array().values);
  }
}

/// The mean is far from 0, and the squares would lose the variance.
TYPED_TEST(Image, statistics_of_a_distant_mean) {
  using Exec = TypeParam;
  const Array<float> input = random_array<float>(4000, 3, 5, 0.1, 300);
  NormArrays<Exec, float> arrays(input, 2, false);
  BatchNorms<Exec, float>::take_statistics(this->exec, arrays.norm, arrays.scratch);
  NormArrays<Exec, double> in_double_(in_double(input), 2, false);
  BatchNorms<Exec, double>::take_statistics(this->exec, in_double_.norm, in_double_.scratch);
  EXPECT_LE(relative_error(arrays.reciprocal_std.array(), in_double_.reciprocal_std.array()), 1e-4);
  EXPECT_LE(relative_error(arrays.mean.array(), in_double_.mean.array()), 1e-6);
}

TYPED_TEST(Image, maximum_equals_reference) {
  using Exec = TypeParam;
  for (const auto& [height, width] : {std::pair{2, 2}, {5, 4}, {6, 7}, {3, 9}}) {
    SCOPED_TRACE(testing::Message() << height << " x " << width);
    const Array<double> input = random_array(3 * height * width, 5, 7);
    const Array<double> expected = maximum_ref(height, width, input);
    const Array<double> d_output = random_array(expected.rows, 5, 8);
    const DeviceArray<Exec, double> x(input), y(expected.rows, 5), d(d_output), d_input(input.rows, 5);
    ImageLayers<Exec, double>::maximum(this->exec, height, width, x.matrix(), y.matrix());
    EXPECT_EQ(y.array().values, expected.values);
    for (const bool add : {false, true})
      ImageLayers<Exec, double>::maximum_backward(this->exec, height, width, x.matrix(), d.matrix(), add,
                                                  d_input.matrix());
    // Without ties the gradient is where the input equals the maximum.
    Array<double> d_ref(input.rows, 5);
    for (int r = 0; r < expected.rows; ++r)
      for (int j = 0; j < 5; ++j)
        for (int i = 0; i < input.rows; ++i)
          if (input(i, j) == expected(r, j)) d_ref(i, j) = 2 * d_output(r, j);
    EXPECT_EQ(d_input.array().values, d_ref.values);
  }
}

/// The first of equal pixels gets the gradient.
TYPED_TEST(Image, maximum_of_equal_pixels_is_the_first) {
  using Exec = TypeParam;
  const DeviceArray<Exec, float> x(4, 1), d(random_array<float>(1, 1, 1)), d_input(4, 1);
  ImageLayers<Exec, float>::maximum_backward(this->exec, 2, 2, x.matrix(), d.matrix(), false, d_input.matrix());
  EXPECT_EQ(d_input.array().values, (std::vector<double>{d.array()(0), 0, 0, 0}));
}

TYPED_TEST(Image, biases_and_exchanges_equal_plain_loops) {
  using Exec = TypeParam;
  const int images = 3, pixels = 7, channels = 70;
  const Array<double> input = random_array(images * pixels, channels, 1), bias = random_array(1, channels, 2);
  const Array<double> addend = random_array(input.rows, channels, 3);
  const Array<double> added_there = random_array(images * channels, pixels, 4);
  Array<double> sums = input, exchanged = added_there;
  for (int r = 0; r < input.rows; ++r)
    for (int c = 0; c < channels; ++c) {
      sums(r, c) = input(r, c) + bias(c) + addend(r, c);
      exchanged(r / pixels * channels + c, r % pixels) += input(r, c);
    }
  const DeviceArray<Exec, double> x(input), b(bias), a(addend), at(added_there), y(input.rows, channels);
  const DeviceArray<Exec, double> z(exchanged.rows, pixels);
  Layers<Exec, double>::add_bias(this->exec, b.vector(), x.matrix(), a.matrix(), y.matrix());
  EXPECT_EQ(y.array().values, sums.values);
  ImageLayers<Exec, double>::exchange(this->exec, x.matrix(), at.matrix(), z.matrix());
  EXPECT_LE(relative_error(z.array(), exchanged), rounding<double>);
  ImageLayers<Exec, double>::exchange(this->exec, x.matrix(), {}, z.matrix());
  ImageLayers<Exec, double>::exchange(this->exec, z.matrix(), {}, y.matrix());
  EXPECT_EQ(y.array().values, input.values) << "the exchange is not its own inverse";
  Layers<Exec, double>::add_bias(this->exec, b.vector(), x.matrix(), {}, y.matrix());
  for (int c = 0; c < channels; ++c) EXPECT_EQ(y.array()(1, c), input(1, c) + bias(c));
}

// ---- networks ----

/// Channels of the first convolution. A layer normalisation of two channels would give ±1, whatever they are.
int first_outputs(Network network) { return network == Network::mixer ? 6 : 2; }

/// A network in double with random parameters, and a batch.
template <class Exec>
struct TestNetwork {
  static constexpr int batch = 4, classes = 3;
  ImageNodes nodes;
  Vector<Exec, double> x, g;
  Images<Exec, double> images;

  TestNetwork(const Exec& exec, Network network, int size, int channels)
      : nodes({network, size, size, channels, first_outputs(network), classes}),
        x("x", nodes.table().size()),
        g("g", nodes.table().size()) {
    initialize<Exec, double>(exec, nodes, 3, x);
    images.pixels = DeviceArray<Exec, double>(random_array(batch * size * size, channels, 21)).memory;
    images.classes = test::to_device<Exec>(random_integers(batch, classes, 22));
  }
};

TYPED_TEST(Image, gradients_of_networks_equal_differences) {
  using Exec = TypeParam;
  for (const Network network : {Network::resnet18, Network::vgg16, Network::mixer}) {
    SCOPED_TRACE(names(network)[static_cast<int>(network)]);
    TestNetwork<Exec> of(this->exec, network, network == Network::mixer ? 8 : 9, 2);
    ImageClassifier<Exec, double> model(this->exec, of.nodes, of.batch, 2);
    model.forward(this->exec, of.x, of.images);
    model.backward(this->exec, of.x, {}, 2.0, false, of.g);
    std::vector<double> x = test::to_host(of.x);
    const auto value = [&] {
      Kokkos::deep_copy(of.x, test::to_device<Exec>(x));
      return 2 * model.forward(this->exec, of.x, of.images);
    };
    EXPECT_LE(gradient_error(value, x, test::to_host(of.g), 2, 1e-6), 1e-6);
  }
}

/// `add` adds, ready_from tells of gradients that no longer change, and all of them are told.
TYPED_TEST(Image, backward_adds_and_tells_what_is_complete) {
  using Exec = TypeParam;
  for (const Network network : {Network::resnet18, Network::mixer}) {
    SCOPED_TRACE(names(network)[static_cast<int>(network)]);
    TestNetwork<Exec> of(this->exec, network, 8, 1);
    ImageClassifier<Exec, double> model(this->exec, of.nodes, of.batch, 4);
    test::ReadyGradients gradients;
    model.forward(this->exec, of.x, of.images);
    model.backward(this->exec, of.x, {}, 1.0, false, of.g, gradients.recorder(this->exec, of.g));
    const std::vector<double> once = test::to_host(of.g);
    ASSERT_NO_FATAL_FAILURE(gradients.expect_complete(once));
    model.forward(this->exec, of.x, of.images);
    model.backward(this->exec, of.x, {}, 1.0, true, of.g);
    const std::vector<double> twice = test::to_host(of.g);
    for (std::size_t i = 0; i < once.size(); ++i) EXPECT_NEAR(twice[i], 2 * once[i], 1e-12 * (1 + std::abs(once[i])));
  }
}

/// One batch of all samples and two batches of half of them have the same groups, so the same loss and gradient.
TYPED_TEST(Image, groups_do_not_depend_on_the_batch) {
  using Exec = TypeParam;
  for (const Network network : {Network::resnet18, Network::mixer}) {
    SCOPED_TRACE(names(network)[static_cast<int>(network)]);
    TestNetwork<Exec> of(this->exec, network, 8, 1);
    ImageClassifier<Exec, double> whole(this->exec, of.nodes, 4, 2), half(this->exec, of.nodes, 2, 2);
    const double loss = whole.forward(this->exec, of.x, of.images);
    whole.backward(this->exec, of.x, {}, 1.0, false, of.g);
    const std::vector<double> expected = test::to_host(of.g);
    double sum = 0;
    for (const int part : {0, 1}) {
      const std::size_t pixels = of.images.pixels.extent(0) / 2;
      const Images<Exec, double> images{
          Kokkos::subview(of.images.pixels, std::make_pair(part * pixels, (part + 1) * pixels)),
          Kokkos::subview(of.images.classes, std::make_pair(2 * part, 2 * part + 2))};
      sum += half.forward(this->exec, of.x, images) / 2;
      half.backward(this->exec, of.x, {}, 0.5, part > 0, of.g);
    }
    EXPECT_NEAR(sum, loss, 1e-14);
    EXPECT_LE(relative_error(test::to_host(of.g), expected), 1e-12);
  }
}

/// With the statistics of the batch itself, whose variances have R − 1 in place of R, the loss is nearly that of
/// training; without a calibration it is not.
TYPED_TEST(Image, calibration_gives_the_statistics_of_the_data) {
  using Exec = TypeParam;
  TestNetwork<Exec> of(this->exec, Network::resnet18, 32, 1);
  ImageClassifier<Exec, double> model(this->exec, of.nodes, 4, 4);
  const double trained = model.forward(this->exec, of.x, of.images);
  model.calibrate(this->exec, of.x, 2, [&](int) { return of.images; });
  EXPECT_NEAR(model.loss(this->exec, of.x, of.images), trained, 0.2 * trained);
  const double right = model.accuracy(this->exec, of.images);
  EXPECT_TRUE(right == 0 || right == 0.25 || right == 0.5 || right == 0.75 || right == 1) << right;
}

/// Names, extents and sizes as torchvision's networks have at 64 channels, with 10 classes and three channels.
TEST(ImageNodes, have_the_papers_sizes) {
  const ImageNodes resnet({Network::resnet18, 32, 32, 3, 64, 10}), vgg({Network::vgg16, 32, 32, 3, 64, 10});
  EXPECT_EQ(resnet.table().size(), 11173962u);  // the usual ResNet-18 of CIFAR-10
  EXPECT_EQ(vgg.table().size(), 14724042u);
  EXPECT_EQ(resnet.table().tensors()[0].name, "conv1.weight");
  EXPECT_EQ(resnet.last().channels, 10);
  EXPECT_EQ(resnet.nodes()[resnet.last().from].channels, 512);
  EXPECT_EQ(resnet.norms(), 20);
  EXPECT_EQ(vgg.norms(), 13);
}

/// Names and order as timm's MlpMixer has them, without a bias that has no effect, and the paper's hidden sizes: 32 of
/// patches, 256 of channels.
TEST(ImageNodes, of_a_mixer_have_the_papers_extents) {
  const ImageNodes mixer({Network::mixer, 32, 32, 3, 64, 10});
  const std::size_t norm = 64 + 64, tokens = 64 * 32 + 32 + 32 * 64, channels = 64 * 256 + 256 + 256 * 64 + 64;
  EXPECT_EQ(mixer.table().size(), (16 * 3 * 64 + 64) + 4 * (2 * norm + tokens + channels) + norm + (64 * 10 + 10));
  std::vector<std::string> names;
  for (const Tensor& tensor : mixer.table().tensors()) names.push_back(tensor.name);
  ASSERT_EQ(names.size(), 2u + 4 * 11 + 2 + 2);
  EXPECT_EQ(
      std::vector<std::string>(names.begin(), names.begin() + 13),
      (std::vector<std::string>{"stem.proj.weight", "stem.proj.bias", "blocks.0.norm1.weight", "blocks.0.norm1.bias",
                                "blocks.0.mlp_tokens.fc1.weight", "blocks.0.mlp_tokens.fc1.bias",
                                "blocks.0.mlp_tokens.fc2.weight", "blocks.0.norm2.weight", "blocks.0.norm2.bias",
                                "blocks.0.mlp_channels.fc1.weight", "blocks.0.mlp_channels.fc1.bias",
                                "blocks.0.mlp_channels.fc2.weight", "blocks.0.mlp_channels.fc2.bias"}));
  EXPECT_EQ(names[names.size() - 4], "norm.weight");
  EXPECT_EQ(names.back(), "head.bias");
  EXPECT_EQ(mixer.norms(), 0);
}

}  // namespace
}  // namespace onebit::nn
