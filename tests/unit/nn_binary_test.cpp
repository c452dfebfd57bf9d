/// \file nn_binary_test.cpp
/// 1-bit dense layers against plain loops in double, in every kind of gradient.

#include <string>

#include "base/error.hpp"
#include "nn/column_sums.hpp"
#include "nn/quantized/binary_layers.hpp"
#include "nn/quantizer/dequantize.hpp"
#include "nn_support.hpp"

namespace onebit::nn {
namespace {

constexpr double tolerance = 1e-6;

struct Case {
  QuantizationKind kind;
  int bits;
  Pruning pruning;
};
const Case cases[] = {{QuantizationKind::qat, 8, Pruning::systematic}, {QuantizationKind::psq, 1, Pruning::systematic},
                      {QuantizationKind::psq, 8, Pruning::systematic}, {QuantizationKind::scq, 1, Pruning::systematic},
                      {QuantizationKind::scq, 4, Pruning::systematic}, {QuantizationKind::fqt, 2, Pruning::systematic},
                      {QuantizationKind::fqt, 4, Pruning::bernoulli},  {QuantizationKind::fqt, 8, Pruning::systematic},
                      {QuantizationKind::fqt, 4, Pruning::topk}};
std::string name_of(const Case& one) {
  return to_string(one.kind) + "_" + std::to_string(one.bits) + "_" + to_string(one.pruning);
}

/// Extents N, K and D, with tails of words, tiles and blocks.
struct Extents {
  int rows, inputs, outputs;
};
const Extents extents[] = {{1, 1, 1}, {5, 3, 2}, {33, 65, 31}, {64, 32, 96}, {70, 129, 67}, {130, 40, 200}};

double sign(double t) { return t > 0 ? 1 : -1; }
double passes(double t) { return std::abs(t) < 1 ? 1 : 0; }

/// One layer and a batch, on the host in double and on a backend in Real.
template <class Exec, class Real>
struct Layer {
  using Device = test::DeviceArray<Exec, Real>;
  static constexpr int number = 1;

  Exec exec{};
  Extents of;
  Array<double> x, weight, gamma, d_output;
  Device x_device, weight_device, gamma_device, d_output_device;
  BinaryLayers<Exec, Real> layers;
  linalg::MatrixProduct<Exec, Real> product;
  Device output, d_input, d_weight, d_gamma;
  QuantizerKey key{3, 7, 40, number};
  const Case& kind;

  Layer(const Case& kind_, Extents of_, long gradients_after = 0)
      : of(of_),
        x(test::with_edges(test::random_array(of.rows, of.inputs, 1))),
        weight(test::with_edges(test::random_array(of.outputs, of.inputs, 2))),
        gamma(test::random_array(1, of.outputs, 3, 0.1, 0.5)),
        d_output(test::random_array(of.rows, of.outputs, 4)),
        x_device(test::of_real<Real>(x)),
        weight_device(test::of_real<Real>(weight)),
        gamma_device(test::of_real<Real>(gamma)),
        d_output_device(test::of_real<Real>(d_output)),
        layers({kind_.kind, kind_.bits, kind_.pruning, {}, 1, gradients_after}, {{}, {of.inputs, of.outputs, of.rows}}),
        output(of.rows, of.outputs),
        d_input(of.rows, of.inputs),
        d_weight(of.outputs, of.inputs),
        d_gamma(1, of.outputs),
        kind(kind_) {}

  QuantizedParameters<Exec, Real> parameters() const { return {weight_device.matrix(), gamma_device.vector()}; }
  void forward() { layers.forward(exec, product, number, x_device.matrix(), parameters(), output.matrix()); }
  void backward(bool add) {
    const std::size_t scratch = static_cast<std::size_t>(row_block_count<Exec>(of.rows)) * of.outputs;
    layers.backward_input(exec, key, product, d_output_device.matrix(), parameters(), add, d_input.matrix());
    layers.backward_parameters(exec, key, product, d_output_device.matrix(), parameters(), add,
                               Vector<Exec, Real>("OneBit::test::scratch", scratch), d_weight.matrix(),
                               d_gamma.vector());
    fence(exec, "OneBit::test");
  }

  /// The gradient as the products see it: G, or dequantised by rows or by columns.
  Array<double> gradient(GroupAxis axis) const {
    Array<double> values(of.rows, of.outputs);
    if (kind.kind == QuantizationKind::qat) {
      for (int i = 0; i < of.rows; ++i)
        for (int j = 0; j < of.outputs; ++j) values(i, j) = d_output(i, j) * gamma(0, j);
      return values;
    }
    if (kind.kind == QuantizationKind::psq) axis = GroupAxis::rows;
    std::optional<Pruning> pruning;
    if (kind.kind == QuantizationKind::fqt) pruning = kind.pruning;
    GradientQuantizer<Exec, Real> quantizer(axis, {{of.rows, of.outputs}}, kind.bits, pruning);
    Device dequantized(of.rows, of.outputs);
    dequantize<Exec, Real>(exec, quantizer(exec, d_output_device.matrix(), gamma_device.vector(), key), axis,
                           dequantized.matrix());
    return dequantized.array();
  }
};

template <class Exec>
class BinaryLayersTest : public ::testing::Test {
protected:
  template <class Real>
  void compare() {
    for (const Extents& of : extents)
      for (const Case& one : cases) compare<Real>(one, of);
  }
  template <class Real>
  void compare(const Case& one, const Extents& of) {
    SCOPED_TRACE(name_of(one) + " of " + std::to_string(of.rows) + " x " + std::to_string(of.inputs) + " x " +
                 std::to_string(of.outputs));
    Layer<Exec, Real> layer(one, of);
    layer.forward();
    layer.backward(false);
    expect_equal(layer, 1);
    layer.backward(true);
    expect_equal(layer, 2);
  }

  /// \param times that the gradients were added
  template <class Real>
  void expect_equal(const Layer<Exec, Real>& layer, double times) {
    const auto [N, K, D] = layer.of;
    const Array<double> by_rows = layer.gradient(GroupAxis::rows), by_columns = layer.gradient(GroupAxis::columns);
    Array<double> output(N, D), d_input(N, K), d_weight(D, K), d_gamma(1, D);
    for (int i = 0; i < N; ++i)
      for (int j = 0; j < D; ++j) {
        double sum = 0;
        for (int k = 0; k < K; ++k) {
          const double s = sign(layer.x(i, k)), t = sign(layer.weight(j, k));
          sum += s * t;
          d_input(i, k) += times * by_rows(i, j) * t * passes(layer.x(i, k));
          d_weight(j, k) += times * by_columns(i, j) * s * passes(layer.weight(j, k));
        }
        output(i, j) = sum * layer.gamma(0, j);
        d_gamma(0, j) += times * layer.d_output(i, j) * sum;
      }
    EXPECT_LE(test::relative_error(layer.output.array(), output), tolerance);
    EXPECT_LE(test::relative_error(layer.d_input.array(), d_input), tolerance);
    EXPECT_LE(test::relative_error(layer.d_weight.array(), d_weight), tolerance);
    EXPECT_LE(test::relative_error(layer.d_gamma.array(), d_gamma), tolerance);
  }
};
TYPED_TEST_SUITE(BinaryLayersTest, test::Backends, test::BackendNames);

TYPED_TEST(BinaryLayersTest, equals_plain_loops_in_float) { this->template compare<float>(); }
TYPED_TEST(BinaryLayersTest, equals_plain_loops_in_double) { this->template compare<double>(); }

/// ∇x, y and ∇W in turn have at least `least_streamed` bytes, with rows of whole cache lines and without.
TYPED_TEST(BinaryLayersTest, large_results_equal_plain_loops) {
  const Case pruned{QuantizationKind::fqt, 4, Pruning::systematic};
  for (const Extents& of : {Extents{1100, 960, 5}, Extents{1100, 961, 5}, Extents{1100, 5, 960}, Extents{5, 960, 1100}})
    this->template compare<float>(pruned, of);
}

TYPED_TEST(BinaryLayersTest, a_number_that_is_not_finite_reaches_every_gradient) {
  for (const Case& one : cases) {
    SCOPED_TRACE(name_of(one));
    Layer<TypeParam, float> layer(one, {33, 65, 31});
    layer.d_output_device.memory = test::to_device<TypeParam>([&] {
      std::vector<float> values = test::to_host(layer.d_output_device.memory);
      values[7] = std::numeric_limits<float>::quiet_NaN();
      return values;
    }());
    layer.forward();
    layer.backward(false);
    const auto has_nan = [](const Array<double>& array) {
      return std::any_of(array.values.begin(), array.values.end(), [](double value) { return std::isnan(value); });
    };
    EXPECT_TRUE(has_nan(layer.d_input.array()));
    EXPECT_TRUE(has_nan(layer.d_weight.array()));
    EXPECT_TRUE(has_nan(layer.d_gamma.array()));
  }
}

TYPED_TEST(BinaryLayersTest, gradients_are_quantised_after_the_step_that_the_input_names) {
  using Found = std::vector<std::vector<float>>;
  const auto found = [](const Case& one, long after) {
    Layer<TypeParam, float> layer(one, {33, 65, 31}, after);
    layer.forward();
    layer.backward(false);
    return Found{test::to_host(layer.d_input.memory), test::to_host(layer.d_weight.memory)};
  };
  const Found full = found(cases[0], 0);
  for (const Case& one : cases) {
    SCOPED_TRACE(name_of(one));
    EXPECT_EQ(found(one, 7), full) << "step 7 is the last one in full precision";
    const Found quantized = found(one, 6);
    EXPECT_EQ(quantized, found(one, 0));
    EXPECT_EQ(quantized == full, one.kind == QuantizationKind::qat);
  }
}

TYPED_TEST(BinaryLayersTest, refuses_more_inputs_than_its_sums_hold) {
  const Quantization quantization{QuantizationKind::scq, 1, Pruning::systematic};
  try {
    BinaryLayers<TypeParam, float>(quantization, {{most_binary_inputs + 1, 1, 1}});
    FAIL() << "no error";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("32768 inputs"), std::string::npos) << error.what();
  }
}

TYPED_TEST(BinaryLayersTest, bits_do_not_depend_on_threads) {
  for (const Case& one : cases) {
    Layer<TypeParam, float> layer(one, {300, 257, 190});
    layer.forward();
    layer.backward(false);
    const std::string name = std::string("_") + BackendName<TypeParam>::value + "_" + name_of(one);
    test::print_bits("output" + name, test::to_host(layer.output.memory));
    test::print_bits("d_input" + name, test::to_host(layer.d_input.memory));
    test::print_bits("d_weight" + name, test::to_host(layer.d_weight.memory));
    test::print_bits("d_gamma" + name, test::to_host(layer.d_gamma.memory));
  }
}

}  // namespace
}  // namespace onebit::nn
