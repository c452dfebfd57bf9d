/// \file nn_eight_bit_test.cpp
/// 8-bit dense layers against plain loops in double.

#include <limits>
#include <string>

#include "nn/quantized/eight_bit_layers.hpp"
#include "nn/quantizer/dequantize.hpp"
#include "nn_support.hpp"

namespace onebit::nn {
namespace {

constexpr double tolerance = 1e-6;

struct Case {
  QuantizationKind kind;
  int bits;
};
const Case cases[] = {{QuantizationKind::qat, 8}, {QuantizationKind::psq, 8}, {QuantizationKind::psq, 1}};
std::string name_of(const Case& one) { return to_string(one.kind) + "_" + std::to_string(one.bits); }

/// Extents N, K and D.
struct Extents {
  int rows, inputs, outputs;
};
const Extents extents[] = {{1, 1, 1}, {5, 3, 2}, {33, 65, 31}, {70, 129, 67}, {130, 40, 200}};

/// What the codes of a matrix's rows stand for. The codes are those of numbers in Real.
template <class Real>
Array<double> in_eight_bits(const Array<double>& array) {
  Array<double> values(array.rows, array.columns);
  for (int r = 0; r < array.rows; ++r) {
    Real largest = 0;
    for (int c = 0; c < array.columns; ++c) largest = std::max(largest, std::abs(static_cast<Real>(array(r, c))));
    for (int c = 0; c < array.columns && largest > 0; ++c) {
      const double step = static_cast<double>(largest) / 127;
      values(r, c) = step * std::round(static_cast<Real>(array(r, c)) * (127 / largest));
      EXPECT_LE(std::abs(values(r, c) - array(r, c)), 0.50001 * step);
    }
  }
  return values;
}

/// One layer and a batch, on the host in double and on a backend in Real. Row 3 of x and row 1 of W are zeros.
template <class Exec, class Real>
struct Layer {
  using Device = test::DeviceArray<Exec, Real>;
  static constexpr int number = 1;

  Exec exec{};
  Extents of;
  Array<double> x, weight, d_output;
  Device x_device, weight_device, d_output_device;
  EightBitLayers<Exec, Real> layers;
  linalg::MatrixProduct<Exec, Real> product;
  Device output, d_input, d_weight;
  QuantizerKey key{3, 7, 40, number};
  const Case& kind;

  Layer(const Case& kind_, Extents of_, Quantization quantization = {})
      : of(of_),
        x(with_zeros(test::random_array(of.rows, of.inputs, 1), 3)),
        weight(with_zeros(test::random_array(of.outputs, of.inputs, 2, 0.1), 1)),
        d_output(test::random_array(of.rows, of.outputs, 4)),
        x_device(test::of_real<Real>(x)),
        weight_device(test::of_real<Real>(weight)),
        d_output_device(test::of_real<Real>(d_output)),
        layers(with(quantization, kind_), {{}, {of.inputs, of.outputs, of.rows}}),
        output(of.rows, of.outputs),
        d_input(of.rows, of.inputs),
        d_weight(of.outputs, of.inputs),
        kind(kind_) {}

  static Array<double> with_zeros(Array<double> array, int row) {
    for (int c = 0; c < array.columns && row < array.rows; ++c) array(row, c) = 0;
    return array;
  }
  static Quantization with(Quantization quantization, const Case& one) {
    quantization.kind = one.kind;
    quantization.bits = one.bits;
    quantization.layer_bits = 8;
    return quantization;
  }

  QuantizedParameters<Exec, Real> parameters() const { return {weight_device.matrix(), {}}; }
  void run(bool add = false) {
    layers.forward(exec, product, number, x_device.matrix(), parameters(), output.matrix());
    layers.backward_input(exec, key, product, d_output_device.matrix(), parameters(), add, d_input.matrix());
    layers.backward_parameters(exec, key, product, d_output_device.matrix(), parameters(), add, {}, d_weight.matrix(),
                               {});
    fence(exec, "OneBit::test");
  }

  /// The gradient as the products see it.
  Array<double> gradient() const {
    if (kind.kind == QuantizationKind::qat) return d_output;
    GradientQuantizer<Exec, Real> quantizer(GroupAxis::rows, {{of.rows, of.outputs}}, kind.bits, std::nullopt);
    Device dequantized(of.rows, of.outputs);
    dequantize<Exec, Real>(exec, quantizer(exec, d_output_device.matrix(), {}, key), GroupAxis::rows,
                           dequantized.matrix());
    return dequantized.array();
  }
};

/// Replaces an element.
template <class Exec, class Real>
void set(const test::DeviceArray<Exec, Real>& array, int row, int column, double value) {
  std::vector<Real> values = test::to_host(array.memory);
  values[std::size_t(row) * array.columns + column] = static_cast<Real>(value);
  Kokkos::deep_copy(array.memory, test::to_device<Exec>(values));
}

template <class Exec>
class EightBitLayersTest : public ::testing::Test {
protected:
  template <class Real>
  void compare() {
    for (const Extents& of : extents)
      for (const Case& one : cases) {
        SCOPED_TRACE(name_of(one) + " of " + std::to_string(of.rows) + " x " + std::to_string(of.inputs) + " x " +
                     std::to_string(of.outputs));
        Layer<Exec, Real> layer(one, of);
        layer.run();
        expect_equal(layer, 1);
        layer.run(true);
        expect_equal(layer, 2);
      }
  }

  /// \param times that the gradients were added
  template <class Real>
  void expect_equal(const Layer<Exec, Real>& layer, double times) {
    const auto [N, K, D] = layer.of;
    const Array<double> x = in_eight_bits<Real>(layer.x), weight = in_eight_bits<Real>(layer.weight);
    const Array<double> gradient = layer.gradient();
    Array<double> output(N, D), d_input(N, K), d_weight(D, K);
    for (int i = 0; i < N; ++i)
      for (int j = 0; j < D; ++j)
        for (int k = 0; k < K; ++k) {
          output(i, j) += x(i, k) * weight(j, k);
          d_input(i, k) += times * gradient(i, j) * weight(j, k);
          d_weight(j, k) += times * gradient(i, j) * x(i, k);
        }
    EXPECT_LE(test::relative_error(layer.output.array(), output), tolerance);
    EXPECT_LE(test::relative_error(layer.d_input.array(), d_input), tolerance);
    EXPECT_LE(test::relative_error(layer.d_weight.array(), d_weight), tolerance);
  }
};
TYPED_TEST_SUITE(EightBitLayersTest, test::Backends, test::BackendNames);

TYPED_TEST(EightBitLayersTest, equals_plain_loops_in_float) { this->template compare<float>(); }
TYPED_TEST(EightBitLayersTest, equals_plain_loops_in_double) { this->template compare<double>(); }

TYPED_TEST(EightBitLayersTest, a_row_whose_scale_would_overflow_is_zero) {
  Layer<TypeParam, float> layer(cases[0], {5, 3, 2});
  for (int c = 0; c < 3; ++c) set(layer.x_device, 2, c, 1e-37);
  layer.run();
  for (int j = 0; j < 2; ++j) EXPECT_EQ(layer.output.array()(2, j), 0);
  EXPECT_NE(layer.output.array()(0, 0), 0);
  for (const double value : layer.d_weight.array().values) EXPECT_TRUE(std::isfinite(value));
}

TYPED_TEST(EightBitLayersTest, a_number_that_is_not_finite_spoils_what_depends_on_its_row) {
  const auto is_nan = [](double value) { return std::isnan(value); };
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()})
    for (const Case& one : cases) {
      SCOPED_TRACE(name_of(one));
      Layer<TypeParam, float> input(one, {33, 65, 31}), weight(one, {33, 65, 31}), gradient(one, {33, 65, 31});
      set(input.x_device, 5, 7, bad);
      set(weight.weight_device, 6, 7, bad);
      set(gradient.d_output_device, 5, 7, bad);
      for (auto* layer : {&input, &weight, &gradient}) layer->run();
      const Array<double> output = input.output.array(), of_weight = weight.output.array();
      for (int j = 0; j < 31; ++j) EXPECT_TRUE(is_nan(output(5, j)) && !is_nan(output(4, j)));
      for (int i = 0; i < 33; ++i) EXPECT_TRUE(is_nan(of_weight(i, 6)) && !is_nan(of_weight(i, 5)));
      const Array<double> d_weight = input.d_weight.array(), d_input = weight.d_input.array();
      EXPECT_TRUE(std::all_of(d_weight.values.begin(), d_weight.values.end(), is_nan));
      EXPECT_TRUE(std::all_of(d_input.values.begin(), d_input.values.end(), is_nan));
      const auto is_bad = [](double value) { return !std::isfinite(value); };
      for (int k = 0; k < 65; ++k) EXPECT_TRUE(is_bad(gradient.d_input.array()(5, k)));
      const auto spoilt = gradient.d_weight.array();
      EXPECT_TRUE(std::any_of(spoilt.values.begin(), spoilt.values.end(), is_bad));
    }
}

TYPED_TEST(EightBitLayersTest, gradients_are_quantised_after_the_step_that_the_input_names) {
  Quantization late;
  const auto found = [&](const Case& one, long after) {
    late.gradients_after = after;
    Layer<TypeParam, float> layer(one, {33, 65, 31}, late);
    layer.run();
    return test::to_host(layer.d_weight.memory);
  };
  const std::vector<float> full = found(cases[0], 0), quantized = found(cases[1], 0);
  EXPECT_NE(full, quantized);
  EXPECT_EQ(found(cases[1], 7), full) << "step 7 is the last one in full precision";
  EXPECT_EQ(found(cases[1], 6), quantized);
}

TYPED_TEST(EightBitLayersTest, bits_do_not_depend_on_threads) {
  for (const Case& one : cases) {
    Layer<TypeParam, float> layer(one, {300, 257, 190});
    layer.run();
    const std::string name = std::string("_") + BackendName<TypeParam>::value + "_" + name_of(one);
    test::print_bits("output" + name, test::to_host(layer.output.memory));
    test::print_bits("d_input" + name, test::to_host(layer.d_input.memory));
    test::print_bits("d_weight" + name, test::to_host(layer.d_weight.memory));
  }
}

}  // namespace
}  // namespace onebit::nn
