/// \file nn_dcgan_test.cpp
/// What a DCGAN adds to networks of images: nodes against plain loops and, in double, against central differences; its
/// two gradients; the random features.

#include "nn/images/gan/dcgan.hpp"
#include "nn/images/gan/random_features.hpp"
#include "nn/images/layers/image_layers.hpp"
#include "nn/images/layers/reference.hpp"
#include "nn_support.hpp"

namespace onebit::nn {
namespace {

using test::DeviceArray;
using test::gradient_error;
using test::in_double;
using test::random_array;
using test::relative_error;
using test::rounding;
using test::weighted_sum;

template <class Exec>
class Gan : public ::testing::Test {
protected:
  Exec exec;
};
TYPED_TEST_SUITE(Gan, test::Backends, test::BackendNames);

TYPED_TEST(Gan, activations_equal_reference) {
  using Exec = TypeParam;
  test::for_both_types([&](auto zero) {
    using Real = decltype(zero);
    using Functions = ImageLayers<Exec, Real>;
    const Array<Real> input = random_array<Real>(1, 2000, 1), d_output = random_array<Real>(1, 2000, 2);
    const Array<Real> before = random_array<Real>(1, 2000, 3);
    for (const bool is_tanh : {false, true})
      for (const bool add : {false, true}) {
        const DeviceArray<Exec, Real> x(input), y(1, 2000), d(d_output), d_input(before);
        if (is_tanh) {
          Functions::tanh(this->exec, x.memory, y.memory);
          Functions::tanh_backward(this->exec, y.memory, d.memory, add, d_input.memory);
        } else {
          Functions::leaky_relu(this->exec, x.memory, y.memory);
          Functions::leaky_relu_backward(this->exec, x.memory, d.memory, add, d_input.memory);
        }
        Array<double> y_ref = in_double(input), d_ref = in_double(before);
        for (int i = 0; i < 2000; ++i) {
          const double value = y_ref(i), slope = value > 0 ? 1 : 0.2;
          y_ref(i) = is_tanh ? std::tanh(value) : slope * value;
          const double derivative = is_tanh ? 1 - y_ref(i) * y_ref(i) : slope;
          d_ref(i) = derivative * d_output(i) + (add ? d_ref(i) : 0);
        }
        EXPECT_LE(relative_error(y.array(), y_ref), rounding<Real>);
        EXPECT_LE(relative_error(d_input.array(), d_ref), rounding<Real>);
      }
  });
}

TYPED_TEST(Gan, transposed_convolution_equals_reference) {
  using Exec = TypeParam;
  test::for_both_types([&](auto zero) {
    using Real = decltype(zero);
    for (const auto& [height, width, inputs, outputs] :
         {std::array{1, 1, 3, 2}, std::array{3, 5, 4, 1}, std::array{7, 7, 16, 8}}) {
      SCOPED_TRACE(testing::Message() << height << " x " << width);
      const int images = 3;
      ImageNodes nodes(height, width, inputs);
      nodes.transposed("conv", 0, outputs, 4);
      const Node& node = nodes.last();
      EXPECT_EQ(node.convolution.output_height(), height);
      EXPECT_EQ(node.convolution.output_width(), width);
      const Array<Real> input = random_array<Real>(images * height * width, inputs, 1);
      const Array<Real> weight = random_array<Real>(inputs, 16 * outputs, 2);
      const DeviceArray<Exec, Real> z(input), x(weight);
      ImageNetwork<Exec, Real> network(this->exec, nodes, images, 1);
      Array<double> output(images * node.height * node.width, outputs);
      const std::vector<Real> computed = test::to_host(network.forward(this->exec, x.memory, z.memory));
      output.values.assign(computed.begin(), computed.end());
      EXPECT_LE(relative_error(output, transposed_ref(node.convolution, images, in_double(input), in_double(weight))),
                rounding<Real>);
    }
  });
}

/// A network of every node that a DCGAN has: the gradients of its parameters and of its images.
TYPED_TEST(Gan, gradients_of_nodes_equal_differences) {
  using Exec = TypeParam;
  const int batch = 4;
  ImageNodes nodes(3, 2, 2);
  int from = nodes.dense("dense", 0, 2, 3, 4);
  from = nodes.leaky_relu(nodes.norm("norm", from, false));
  from = nodes.tanh(nodes.transposed("up", from, 3, 4));
  nodes.leaky_relu(nodes.convolution("down", from, 5, {4, 2, 1}));
  std::vector<double> x = random_array(1, static_cast<int>(nodes.table().size()), 1, 0.3).values;
  std::vector<double> images = random_array(batch, 12, 2).values;
  const Array<double> weights = random_array(batch, 2 * 3 * 5, 3);
  ImageNetwork<Exec, double> network(this->exec, nodes, batch, 2);
  Vector<Exec, double> on_device;
  const auto value = [&] {
    on_device = test::to_device<Exec>(x);
    const auto output = network.forward(this->exec, on_device, test::to_device<Exec>(images));
    Array<double> on_host(weights.rows, weights.columns);
    on_host.values = test::to_host(output);
    return weighted_sum(weights, on_host);
  };
  const Vector<Exec, double> g("g", x.size()), d_images("d_images", images.size());
  value();
  Kokkos::deep_copy(network.d_output(), test::to_device<Exec>(weights.values));
  network.backward_to_images(this->exec, on_device, d_images);
  Kokkos::deep_copy(network.d_output(), test::to_device<Exec>(weights.values));
  network.backward(this->exec, on_device, false, g);
  EXPECT_LE(gradient_error(value, x, test::to_host(g), 2, 1e-5), 1e-6);
  EXPECT_LE(gradient_error(value, images, test::to_host(d_images), 2, 1e-5), 1e-6);
}

/// A DCGAN in double with random parameters, and a batch.
template <class Exec>
struct TestGan {
  static constexpr int batch = 8;
  DcganNodes nodes;
  Vector<Exec, double> x, g, images, latents;

  TestGan(const Exec& exec, const DcganShape& shape)
      : nodes(shape),
        x("x", nodes.table().size()),
        g("g", nodes.table().size()),
        images(DeviceArray<Exec, double>(random_array(batch * shape.height * shape.width, shape.channels, 21)).memory),
        latents("latents", batch * latent_size) {
    nodes.generator.set_deviation(0.2);  // gradients of 0.02 are small beside the rounding of differences
    nodes.discriminator.set_deviation(0.2);
    initialize<Exec, double>(exec, nodes.generator, 3, x);
    initialize<Exec, double>(exec, nodes.discriminator, 3, x);
    draw_latents<Exec, double>(exec, 5, 1, 0, latents);
  }
};

/// Of two and of three halvings, and of three channels.
const DcganShape gans[] = {{4, 12, 3, 2}, {8, 8, 1, 2}};

/// The gradient of G is that of L_G alone, and the gradient of D that of L_D alone.
TYPED_TEST(Gan, gradients_equal_differences) {
  using Exec = TypeParam;
  for (const DcganShape& shape : gans) {
    SCOPED_TRACE(testing::Message() << shape.height << " x " << shape.width);
    TestGan<Exec> of(this->exec, shape);
    Dcgan<Exec, double> model(this->exec, of.nodes, of.batch, 4);
    model.gradient(this->exec, of.x, of.images, of.latents, 2.0, false, of.g);
    const std::vector<double> origin = test::to_host(of.x), g = test::to_host(of.g);
    const std::size_t begin = of.nodes.discriminator.begin();
    const Vector<Exec, double> unused("g", g.size());
    for (const bool of_generator : {true, false}) {
      const std::size_t first = of_generator ? 0 : begin, end = of_generator ? begin : g.size();
      std::vector<double> part(origin.begin() + first, origin.begin() + end);
      const auto value = [&] {
        std::vector<double> x = origin;
        std::copy(part.begin(), part.end(), x.begin() + first);
        const DcganLosses losses =
            model.gradient(this->exec, test::to_device<Exec>(x), of.images, of.latents, 1.0, false, unused);
        return 2 * (of_generator ? losses.generator : losses.discriminator);
      };
      EXPECT_LE(gradient_error(value, part, std::vector<double>(g.begin() + first, g.begin() + end), 2, 1e-6), 1e-6)
          << (of_generator ? "generator" : "discriminator");
    }
  }
}

/// The losses of random networks are about those of a logit of 0: 2 ln 2 and ln 2.
TYPED_TEST(Gan, losses_of_zero_logits) {
  using Exec = TypeParam;
  TestGan<Exec> of(this->exec, gans[1]);
  Kokkos::deep_copy(of.x, 0.0);
  Dcgan<Exec, double> model(this->exec, of.nodes, of.batch, 4);
  const DcganLosses losses = model.gradient(this->exec, of.x, of.images, of.latents, 1.0, false, of.g);
  EXPECT_NEAR(losses.discriminator, 2 * std::log(2), 1e-14);
  EXPECT_NEAR(losses.generator, std::log(2), 1e-14);
  EXPECT_NEAR(model.loss(this->exec, of.x, of.images, Source::generator), std::log(2), 1e-14);
}

/// One batch, and two batches of half of its samples, have the same gradient; `ready_from` tells of gradients that no
/// longer change.
TYPED_TEST(Gan, groups_do_not_depend_on_the_batch) {
  using Exec = TypeParam;
  TestGan<Exec> of(this->exec, gans[0]);
  Dcgan<Exec, double> whole(this->exec, of.nodes, 8, 4), half(this->exec, of.nodes, 4, 4);
  test::ReadyGradients gradients;
  const DcganLosses losses =
      whole.gradient(this->exec, of.x, of.images, of.latents, 1.0, false, of.g, gradients.recorder(this->exec, of.g));
  const std::vector<double> expected = test::to_host(of.g);
  ASSERT_NO_FATAL_FAILURE(gradients.expect_complete(expected));

  double sum = 0;
  for (const int part : {0, 1}) {
    const auto half_of = [&](const Vector<Exec, double>& all) {
      const std::size_t length = all.extent(0) / 2;
      return Vector<Exec, double>(Kokkos::subview(all, std::make_pair(part * length, (part + 1) * length)));
    };
    const Vector<Exec, double> latents("latents", 4 * latent_size);
    draw_latents<Exec, double>(this->exec, 5, 1, 4 * part, latents);
    EXPECT_EQ(test::to_host(latents), test::to_host(half_of(of.latents))) << "draws depend on the batch";
    sum += half.gradient(this->exec, of.x, half_of(of.images), latents, 0.5, part > 0, of.g).discriminator / 2;
  }
  EXPECT_NEAR(sum, losses.discriminator, 1e-14);
  EXPECT_LE(relative_error(test::to_host(of.g), expected), 1e-12);
}

/// A float gradient has the same bits on all backends of the host.
TYPED_TEST(Gan, bits_do_not_depend_on_the_backend) {
  if (!is_host<TypeParam>) return;
  const auto gradient = [](auto exec) {
    using Exec = decltype(exec);
    const DcganNodes nodes({12, 12, 1, 8});
    const Vector<Exec, float> x("x", nodes.table().size()), g("g", nodes.table().size());
    const Vector<Exec, float> latents("latents", 16 * latent_size);
    initialize<Exec, float>(exec, nodes.generator, 3, x);
    initialize<Exec, float>(exec, nodes.discriminator, 3, x);
    draw_latents<Exec, float>(exec, 5, 1, 0, latents);
    Dcgan<Exec, float> model(exec, nodes, 16, 8);
    model.gradient(exec, x, DeviceArray<Exec, float>(random_array<float>(16 * 144, 1, 1)).memory, latents, 1, false, g);
    return test::to_host(g);
  };
  EXPECT_TRUE(test::same_bits(gradient(this->exec), gradient(HostExec())));
}

/// With the statistics of the batch itself, generated images are nearly those of training.
TYPED_TEST(Gan, calibration_gives_the_statistics_of_the_data) {
  using Exec = TypeParam;
  TestGan<Exec> of(this->exec, gans[1]);
  Dcgan<Exec, double> model(this->exec, of.nodes, of.batch, of.batch);
  const DcganLosses losses = model.gradient(this->exec, of.x, of.images, of.latents, 1.0, false, of.g);
  model.calibrate_generator(this->exec, of.x, 2, [&](int) { return of.latents; });
  model.calibrate_discriminator(this->exec, of.x, 1, [&](int) { return of.images; });
  double loss = model.loss(this->exec, of.x, of.images, Source::data);
  model.calibrate_discriminator(this->exec, of.x, 1, [&](int) { return model.generate(this->exec, of.x, of.latents); });
  loss += model.loss(this->exec, of.x, model.generate(this->exec, of.x, of.latents), Source::generator);
  EXPECT_NEAR(loss, losses.discriminator, 0.1 * losses.discriminator);
}

TYPED_TEST(Gan, latents_are_normal_and_differ) {
  using Exec = TypeParam;
  const Vector<Exec, float> latents("latents", 300 * latent_size), others("latents", 300 * latent_size);
  draw_latents<Exec, float>(this->exec, 1, 7, 0, latents);
  draw_latents<Exec, float>(this->exec, 1, 8, 0, others);
  const std::vector<float> values = test::to_host(latents), of_next_step = test::to_host(others);
  double mean = 0, square = 0, product = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    mean += values[i] / 30000.;
    square += values[i] * values[i] / 30000.;
    product += values[i] * of_next_step[i] / 30000.;
  }
  EXPECT_NEAR(mean, 0, 0.025);
  EXPECT_NEAR(square, 1, 0.035);
  EXPECT_NEAR(product, 0, 0.025);
}

TEST(DcganNodes, halve_the_extents) {
  EXPECT_EQ(halvings(28, 28), 2);
  EXPECT_EQ(halvings(32, 32), 3);
  EXPECT_EQ(halvings(32, 28), 2);
  EXPECT_EQ(halvings(30, 28), 0);
  const DcganNodes nodes({32, 32, 3, 64});
  EXPECT_EQ(nodes.generator.last().size(), 32 * 32 * 3);
  EXPECT_EQ(nodes.generator.nodes()[1].channels, 256);
  EXPECT_EQ(nodes.discriminator.last().size(), 1);
  EXPECT_EQ(nodes.table().tensors()[0].name, "generator.dense.weight");
  EXPECT_EQ(nodes.discriminator.begin(), nodes.generator.table().size());
}

/// The features of single images: their products are the kernel, roughly, and 1 for an image and itself.
TYPED_TEST(Gan, features_give_the_kernel) {
  using Exec = TypeParam;
  const int height = 8, width = 12, channels = 2, size = height * width * channels, count = 4;
  RandomFeatures<Exec> features(this->exec, height, width, channels, 1);
  std::vector<std::vector<float>> images, of_images;
  for (int i = 0; i < count; ++i) {
    // Blocks of one value each: the pixels of a block are those of its mean.
    const Array<float> values = random_array<float>(2 * 3, channels, 30 + i, 0.2 * i);
    std::vector<float> image(size);
    for (int y = 0; y < height; ++y)
      for (int x = 0; x < width; ++x)
        for (int c = 0; c < channels; ++c)
          image[(y * width + x) * channels + c] = values(y / 4 * 3 + x / 4, c) + (x % 2 == 0 ? 0.5f : -0.5f);
    const Vector<Exec, float> sums("sums", random_feature_count);
    features.add(this->exec, test::to_device<Exec>(image), 2, sums);
    features.add(this->exec, test::to_device<Exec>(image), -1, sums);
    images.push_back(image);
    of_images.push_back(test::to_host(sums));
  }
  for (int i = 0; i < count; ++i)
    for (int k = 0; k < count; ++k) {
      double product = 0, square = 0;
      for (int j = 0; j < random_feature_count; ++j) product += of_images[i][j] * of_images[k][j];
      for (int j = 0; j < size; ++j) square += (images[i][j] - images[k][j]) * (images[i][j] - images[k][j]);
      EXPECT_NEAR(product, std::exp(-2 * square / size), 0.35) << i << " and " << k;
    }
}

/// A batch's sum is that of its images.
TYPED_TEST(Gan, features_add_up) {
  using Exec = TypeParam;
  const int batch = 70, size = 16;
  const Array<float> images = random_array<float>(batch, size, 1);
  const Vector<Exec, float> sums("sums", random_feature_count), one_by_one("sums", random_feature_count);
  RandomFeatures<Exec>(this->exec, 4, 4, 1, batch).add(this->exec, DeviceArray<Exec, float>(images).memory, 1, sums);
  RandomFeatures<Exec> of_one(this->exec, 4, 4, 1, 1);
  for (int i = 0; i < batch; ++i) {
    const std::vector<float> image(images.values.begin() + i * size, images.values.begin() + (i + 1) * size);
    of_one.add(this->exec, test::to_device<Exec>(image), 1, one_by_one);
  }
  EXPECT_LE(relative_error(test::to_host(sums), test::to_host(one_by_one)), 1e-5);
}

}  // namespace
}  // namespace onebit::nn
