/// \file nn_parity_test.cpp
/// Tiny BERT and GPT against PyTorch: logits, loss, each gradient tensor and ten losses of Adam, in single precision.
/// The fixtures and what is in them: tests/reference/make_fixtures.py.

#include <string>

#include "nn/transformer.hpp"
#include "nn_fixture.hpp"
#include "nn_support.hpp"

namespace onebit::nn {
namespace {

constexpr double tolerance = 1e-5;

template <class Exec>
class Parity : public ::testing::Test {
protected:
  void compare(Architecture architecture) {
    const bool bert = architecture == Architecture::bert;
    const test::Fixture fixture(bert ? "bert" : "gpt");
    const std::vector<int> extents = fixture.integers("shape");
    ASSERT_EQ(extents.size(), 8u);
    const Shape shape{architecture, extents[0], extents[1], extents[2], extents[3], extents[4], extents[5], bert};
    const TensorTable table = tensor_table(shape);
    std::vector<float> x = fixture.parameters(table);
    const std::vector<int> predicted = fixture.integers("predicted");
    const Tokens<Exec> tokens{test::to_device<Exec>(fixture.integers("input")), test::to_device<Exec>(predicted),
                              test::to_device<Exec>(fixture.integers("target"))};
    const Exec exec;
    Transformer<Exec, float> model(exec, shape, extents[6], extents[7], static_cast<int>(predicted.size()), 0.0f);

    const double expected_loss = fixture.reals("loss")[0];
    EXPECT_NEAR(model.loss(exec, test::to_device<Exec>(x), tokens), expected_loss, tolerance * expected_loss);
    EXPECT_LE(test::relative_error(test::to_host(model.logits()), fixture.reals("logits")), tolerance);

    const auto gradient_at_x = [&](double& loss) {
      const Vector<Exec, float> device = test::to_device<Exec>(x), g("OneBit::test::gradient", table.size());
      loss = model.forward(exec, device, tokens, DropoutKey());
      model.backward(exec, device, tokens, 1.0f, false, g);
      return test::to_host(g);
    };
    double loss = 0;
    const std::vector<float> gradient = gradient_at_x(loss);
    fixture.expect_gradients(table, gradient, tolerance);

    const std::vector<float> adam = fixture.reals("adam");
    const float learning_rate = adam[0], beta1 = adam[1], beta2 = adam[2], epsilon = adam[3];
    std::vector<float> m(x.size()), v(x.size());
    for (const double expected : fixture.reals("adam_losses")) {
      const std::vector<float> g = gradient_at_x(loss);
      EXPECT_NEAR(loss, expected, tolerance * expected);
      for (std::size_t i = 0; i < x.size(); ++i) {
        m[i] = beta1 * m[i] + (1 - beta1) * g[i];
        v[i] = beta2 * v[i] + (1 - beta2) * g[i] * g[i];
        x[i] -= learning_rate * m[i] / (std::sqrt(v[i]) + epsilon);
      }
    }
  }
};
TYPED_TEST_SUITE(Parity, test::Backends, test::BackendNames);

TYPED_TEST(Parity, bert_equals_pytorch) { this->compare(Architecture::bert); }
TYPED_TEST(Parity, gpt_equals_pytorch) { this->compare(Architecture::gpt); }

}  // namespace
}  // namespace onebit::nn
