/// \file nn_binary_parity_test.cpp
/// 1-bit dense layers, and models of them, against PyTorch in float64 with the same random numbers.
/// The fixtures and what is in them: tests/reference/make_fqt_fixtures.py.

#include <algorithm>
#include <string>

#include "../source_directory.hpp"
#include "io/hdf5.hpp"
#include "nn/column_sums.hpp"
#include "nn/quantized/binary_layers.hpp"
#include "nn/transformer.hpp"
#include "nn_support.hpp"

namespace onebit::nn {
namespace {

constexpr double tolerance = 1e-5;

/// The choice of this name. \throws std::runtime_error if there is none
template <class Choice>
Choice choice(const std::string& name) {
  const auto all = names(Choice());
  const auto found = std::find(all.begin(), all.end(), name);
  if (found == all.end()) throw std::runtime_error("no choice '" + name + "'");
  return static_cast<Choice>(found - all.begin());
}

template <class Exec>
class BinaryParity : public ::testing::Test {
protected:
  template <class Real>
  void compare() {
    const std::vector<std::string> cases = m_file.texts("cases");
    ASSERT_GE(cases.size(), 14u);
    for (const std::string& name : cases) {
      SCOPED_TRACE(name);
      compare<Real>(name);
    }
  }

private:
  template <class Real>
  test::DeviceArray<Exec, Real> array(const std::string& dataset, int rows, int columns) const {
    Array<Real> values(rows, columns);
    const std::vector<double> stored = m_file.reals(dataset);
    EXPECT_EQ(stored.size(), values.values.size()) << dataset;
    values.values.assign(stored.begin(), stored.end());
    return test::DeviceArray<Exec, Real>(values);
  }
  template <class Real>
  void expect_equal(const test::DeviceArray<Exec, Real>& found, const std::string& dataset) const {
    EXPECT_LE(test::relative_error(found.array().values, m_file.reals(dataset)), tolerance) << dataset;
  }

  template <class Real>
  void compare(const std::string& name) {
    const std::string shape = m_file.text(name + "/shape"), pruning = m_file.text(name + "/pruning");
    const auto extents = m_file.integers(shape + "/extents"), numbers = m_file.integers(name + "/key");
    const int N = static_cast<int>(extents[0]), K = static_cast<int>(extents[1]), D = static_cast<int>(extents[2]);
    Quantization quantization{choice<QuantizationKind>(m_file.text(name + "/kind")), static_cast<int>(numbers[0])};
    if (pruning != "none") quantization.pruning = choice<Pruning>(pruning);
    const QuantizerKey key{static_cast<std::uint64_t>(numbers[1]), static_cast<std::uint64_t>(numbers[2]),
                           static_cast<std::uint64_t>(numbers[3]), static_cast<int>(numbers[4])};

    const auto x = array<Real>(shape + "/x", N, K), weight = array<Real>(shape + "/W", D, K);
    const auto gamma = array<Real>(shape + "/gamma", 1, D), d_output = array<Real>(shape + "/d_output", N, D);
    std::vector<DenseExtents> layers(key.layer + 1);
    layers.back() = {K, D, N};
    const Exec exec;
    BinaryLayers<Exec, Real> binary(quantization, layers);
    linalg::MatrixProduct<Exec, Real> product;
    const QuantizedParameters<Exec, Real> parameters{weight.matrix(), gamma.vector()};
    const test::DeviceArray<Exec, Real> output(N, D), d_input(N, K), d_weight(D, K), d_gamma(1, D);
    binary.forward(exec, product, key.layer, x.matrix(), parameters, output.matrix());
    binary.backward_input(exec, key, product, d_output.matrix(), parameters, false, d_input.matrix());
    const Vector<Exec, Real> scratch("OneBit::test::scratch", static_cast<std::size_t>(row_block_count<Exec>(N)) * D);
    binary.backward_parameters(exec, key, product, d_output.matrix(), parameters, false, scratch, d_weight.matrix(),
                               d_gamma.vector());

    Array<double> y = output.array();
    const std::vector<double> bias = m_file.reals(shape + "/bias");
    for (int i = 0; i < N; ++i)
      for (int j = 0; j < D; ++j) y(i, j) += bias[j];
    EXPECT_LE(test::relative_error(y.values, m_file.reals(shape + "/y")), tolerance);
    expect_equal(d_input, name + "/d_x");
    expect_equal(d_weight, name + "/d_W");
    expect_equal(d_gamma, shape + "/d_gamma");
  }

  ArrayReader m_file{test::source_directory() + "/tests/reference/fixtures/fqt_layer.h5"};
};
/// A whole model: loss and gradient in every kind.
template <class Exec>
class BinaryModelParity : public ::testing::Test {
protected:
  template <class Real>
  void compare(const std::string& name) {
    for (const std::string kind : {"qat", "psq_1", "scq_2", "fqt_4"}) {
      SCOPED_TRACE(kind);
      compare<Real>(name, kind);
    }
  }

private:
  std::vector<int> integers(const std::string& dataset) const {
    const std::vector<long long> values = m_file.integers(dataset);
    return {values.begin(), values.end()};
  }

  template <class Real>
  void compare(const std::string& name, const std::string& kind) {
    const std::vector<int> of = integers(name + "/shape");
    const std::vector<long long> key = m_file.integers(name + "/" + kind + "/key");
    Shape shape{name == "gpt" ? Architecture::gpt : Architecture::bert, of[0], of[1], of[2], of[3], of[4], of[5]};
    shape.classes = of[8];
    shape.quantization = {choice<QuantizationKind>(kind.substr(0, kind.find('_'))), static_cast<int>(key[0])};
    const TensorTable table = tensor_table(shape);
    const std::vector<std::string> tensors = m_file.texts(name + "/tensors");
    ASSERT_EQ(table.tensors().size(), tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) EXPECT_EQ(table.tensors()[i].name, tensors[i]);

    const std::vector<double> stored = m_file.reals(name + "/x"),
                              expected = m_file.reals(name + "/" + kind + "/gradient");
    const auto x = test::to_device<Exec>(std::vector<Real>(stored.begin(), stored.end()));
    const std::vector<int> predicted = integers(name + "/predicted");
    const Tokens<Exec> tokens{test::to_device<Exec>(integers(name + "/input")), test::to_device<Exec>(predicted),
                              test::to_device<Exec>(integers(name + "/target"))};
    const Exec exec;
    Transformer<Exec, Real> model(exec, shape, of[6], of[7], static_cast<int>(predicted.size()), Real(0));
    const Vector<Exec, Real> g("OneBit::test::gradient", table.size());
    const double loss = model.forward(
        exec, x, tokens,
        {static_cast<std::uint64_t>(key[1]), static_cast<std::uint64_t>(key[2]), static_cast<std::uint64_t>(key[3])});
    model.backward(exec, x, tokens, Real(1), false, g);
    EXPECT_NEAR(loss, m_file.reals(name + "/loss")[0], tolerance);
    const std::vector<Real> gradient = test::to_host(g);
    for (const Tensor& tensor : table.tensors()) {
      const auto part = [&](const auto& all) {
        return std::vector<double>(all.begin() + tensor.offset, all.begin() + tensor.offset + tensor.size());
      };
      EXPECT_LE(test::relative_error(part(gradient), part(expected)), tolerance) << tensor.name;
    }
  }

  ArrayReader m_file{test::source_directory() + "/tests/reference/fixtures/fqt_model.h5"};
};
TYPED_TEST_SUITE(BinaryModelParity, test::Backends, test::BackendNames);

TYPED_TEST(BinaryModelParity, bert_in_float) { this->template compare<float>("bert"); }
TYPED_TEST(BinaryModelParity, bert_in_double) { this->template compare<double>("bert"); }
TYPED_TEST(BinaryModelParity, gpt_in_float) { this->template compare<float>("gpt"); }
TYPED_TEST(BinaryModelParity, gpt_in_double) { this->template compare<double>("gpt"); }
TYPED_TEST(BinaryModelParity, classifier_in_float) { this->template compare<float>("classifier"); }
TYPED_TEST(BinaryModelParity, classifier_in_double) { this->template compare<double>("classifier"); }

TYPED_TEST_SUITE(BinaryParity, test::Backends, test::BackendNames);

TYPED_TEST(BinaryParity, equals_pytorch_in_float) { this->template compare<float>(); }
TYPED_TEST(BinaryParity, equals_pytorch_in_double) { this->template compare<double>(); }

}  // namespace
}  // namespace onebit::nn
