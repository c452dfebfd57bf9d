/// \file nn_parity_test.cpp
/// Tiny BERT and GPT against PyTorch: logits, loss, each gradient tensor and ten losses of Adam, in single precision.
/// The fixtures and what is in them: tests/reference/make_fixtures.py.

#include <hdf5.h>

#include <string>

#include "nn/transformer.hpp"
#include "nn_support.hpp"

namespace onebit::nn {
namespace {

/// A fixture file, open for reading.
class Fixture {
public:
  explicit Fixture(const std::string& name)
      : m_file(H5Fopen((ONEBIT_SOURCE_DIR "/tests/reference/fixtures/" + name + ".h5").c_str(), H5F_ACC_RDONLY,
                       H5P_DEFAULT)) {}
  ~Fixture() { H5Fclose(m_file); }

  template <class T>
  std::vector<T> dataset(const std::string& name) const {
    const hid_t dataset = H5Dopen(m_file, name.c_str(), H5P_DEFAULT), space = H5Dget_space(dataset);
    EXPECT_GE(dataset, 0) << name;
    std::vector<T> values(H5Sget_simple_extent_npoints(space));
    EXPECT_GE(H5Dread(dataset, type<T>(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0) << name;
    H5Sclose(space);
    H5Dclose(dataset);
    return values;
  }

  template <class T>
  T attribute(const char* name) const {
    T value{};
    const hid_t attribute = H5Aopen(m_file, name, H5P_DEFAULT);
    EXPECT_GE(H5Aread(attribute, type<T>(), &value), 0) << name;
    H5Aclose(attribute);
    return value;
  }

private:
  template <class T>
  static hid_t type() {
    if (std::is_same_v<T, float>) return H5T_NATIVE_FLOAT;
    return std::is_same_v<T, double> ? H5T_NATIVE_DOUBLE : H5T_NATIVE_INT;
  }
  hid_t m_file;
};

template <class Exec>
class Parity : public ::testing::Test {
protected:
  void compare(Architecture architecture) {
    const Fixture fixture(architecture == Architecture::bert ? "bert" : "gpt");
    const auto integer = [&](const char* name) { return fixture.attribute<int>(name); };
    const Shape shape{architecture,
                      integer("layers"),
                      integer("hidden"),
                      integer("heads"),
                      integer("feed_forward"),
                      integer("vocabulary"),
                      integer("positions"),
                      integer("next_sentence_head") != 0};
    const TensorTable table = tensor_table(shape);
    std::vector<float> x;
    for (const Tensor& tensor : table.tensors()) {
      const std::vector<float> values = fixture.dataset<float>("parameters/" + tensor.name);
      ASSERT_EQ(values.size(), tensor.size()) << tensor.name;
      x.insert(x.end(), values.begin(), values.end());
    }
    const std::vector<int> predicted = fixture.dataset<int>("predicted");
    const Tokens<Exec> tokens{test::to_device<Exec>(fixture.dataset<int>("input")), test::to_device<Exec>(predicted),
                              test::to_device<Exec>(fixture.dataset<int>("target"))};
    const Exec exec;
    Transformer<Exec, float> model(exec, shape, integer("batch"), integer("sequence"),
                                   static_cast<int>(predicted.size()), 0.0f);

    const double expected_loss = fixture.dataset<double>("loss")[0];
    EXPECT_NEAR(model.loss(exec, test::to_device<Exec>(x), tokens), expected_loss, 1e-5 * expected_loss);
    EXPECT_LE(test::relative_error(test::to_host(model.logits()), fixture.dataset<float>("logits")), 1e-5);

    const auto gradient_at = [&](const std::vector<float>& parameters, double& loss) {
      const Vector<Exec, float> device = test::to_device<Exec>(parameters), g("OneBit::test::gradient", table.size());
      loss = model.forward(exec, device, tokens, DropoutKey());
      model.backward(exec, device, tokens, 1.0f, g);
      return test::to_host(g);
    };
    double loss = 0;
    const std::vector<float> gradient = gradient_at(x, loss);
    EXPECT_NEAR(loss, expected_loss, 1e-5 * expected_loss);
    for (const Tensor& tensor : table.tensors()) {
      const std::vector<float> part(gradient.begin() + tensor.offset, gradient.begin() + tensor.offset + tensor.size());
      EXPECT_LE(test::relative_error(part, fixture.dataset<float>("gradients/" + tensor.name)), 1e-5) << tensor.name;
    }

    const auto real = [&](const char* name) { return static_cast<float>(fixture.attribute<double>(name)); };
    const float lr = real("learning_rate"), beta1 = real("beta1"), beta2 = real("beta2"), epsilon = real("epsilon");
    std::vector<float> m(x.size()), v(x.size());
    for (const double expected : fixture.dataset<double>("adam_losses")) {
      const std::vector<float> g = gradient_at(x, loss);
      EXPECT_NEAR(loss, expected, 1e-5 * expected);
      for (std::size_t i = 0; i < x.size(); ++i) {
        m[i] = beta1 * m[i] + (1 - beta1) * g[i];
        v[i] = beta2 * v[i] + (1 - beta2) * g[i] * g[i];
        x[i] -= lr * m[i] / (std::sqrt(v[i]) + epsilon);
      }
    }
  }
};
TYPED_TEST_SUITE(Parity, test::Backends, test::BackendNames);

TYPED_TEST(Parity, bert_equals_pytorch) { this->compare(Architecture::bert); }
TYPED_TEST(Parity, gpt_equals_pytorch) { this->compare(Architecture::gpt); }

}  // namespace
}  // namespace onebit::nn
