/// \file nn_images_parity_test.cpp
/// Narrow ResNet-18, VGG-16 and MLP-Mixer against PyTorch in single precision: the loss and each gradient tensor with
/// the statistics of groups, and the loss with those of the population. tests/reference/make_image_fixtures.py makes
/// the fixtures.

#include "base/choices.hpp"
#include "nn/images/image_classifier.hpp"
#include "nn_fixture.hpp"

namespace onebit::nn {
namespace {

constexpr double tolerance = 1e-5;

template <class Exec>
class ImagesParity : public ::testing::Test {
protected:
  void compare(Network network) {
    const test::Fixture fixture(names(network)[static_cast<int>(network)]);
    const std::vector<int> extents = fixture.integers("shape");
    ASSERT_EQ(extents.size(), 7u);
    const int batch = extents[0], norm_samples = extents[6];
    const ImageNodes nodes({network, extents[1], extents[2], extents[3], extents[4], extents[5]});
    const Vector<Exec, float> x = test::to_device<Exec>(fixture.parameters(nodes.table()));
    const Images<Exec, float> images{test::to_device<Exec>(fixture.reals("pixels")),
                                     test::to_device<Exec>(fixture.integers("classes"))};
    const Exec exec;
    ImageClassifier<Exec, float> model(exec, nodes, batch, norm_samples);

    const double loss = fixture.reals("loss")[0], population_loss = fixture.reals("population_loss")[0];
    EXPECT_NEAR(model.forward(exec, x, images), loss, tolerance * loss);
    const Vector<Exec, float> g("OneBit::test::gradient", nodes.table().size());
    model.backward(exec, x, {}, 1.0f, false, g);
    fixture.expect_gradients(nodes.table(), test::to_host(g), tolerance);

    model.calibrate(exec, x, 1, [&](int) { return images; });
    EXPECT_NEAR(model.loss(exec, x, images), population_loss, tolerance * population_loss);
  }
};
TYPED_TEST_SUITE(ImagesParity, test::Backends, test::BackendNames);

TYPED_TEST(ImagesParity, resnet18_equals_pytorch) { this->compare(Network::resnet18); }
TYPED_TEST(ImagesParity, vgg16_equals_pytorch) { this->compare(Network::vgg16); }
TYPED_TEST(ImagesParity, mixer_equals_pytorch) { this->compare(Network::mixer); }

}  // namespace
}  // namespace onebit::nn
