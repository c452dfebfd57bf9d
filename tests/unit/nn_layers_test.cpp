/// \file nn_layers_test.cpp
/// The kernels of nn against the plain loops of nn/reference.hpp, in float and double, and their gradients in double
/// against central differences.

#include <limits>

#include "nn/activation.hpp"
#include "nn/layers.hpp"
#include "nn/spans.hpp"
#include "nn_support.hpp"

namespace onebit::nn {
namespace {

using test::DeviceArray;
using test::gradient_error;
using test::in_double;
using test::random_array;
using test::relative_error;
using test::weighted_sum;

/// Relative error that rounding may make in a kernel.
template <class Real>
constexpr double rounding = std::is_same_v<Real, float> ? 2e-6 : 1e-14;
constexpr double gradient_tolerance = 1e-7;

/// Shapes around the sizes of lanes, blocks of rows and blocks of dropout, and of a device's strips and teams.
struct Extents {
  int rows, columns;
};
constexpr Extents extents[] = {{1, 5},    {3, 31},    {31, 32},   {32, 33},  {33, 128},
                               {65, 129}, {100, 300}, {130, 700}, {35, 2100}};

const DropoutKey key{11, 5, 1000};

template <class Exec>
class Layer : public ::testing::Test {
protected:
  Exec exec;
};
TYPED_TEST_SUITE(Layer, test::Backends, test::BackendNames);

// ---- activation.hpp ----

template <class Real>
double worst_error_of_exp(double begin, double end) {
  double worst = 0;
  for (int i = 0; i <= 100000; ++i) {
    const Real x = static_cast<Real>(begin + (end - begin) * i / 100000);
    const long double exact = std::exp(static_cast<long double>(x));
    worst = std::max(worst, static_cast<double>(std::abs((nn::exp(x) - exact) / exact)));
  }
  return worst / std::numeric_limits<Real>::epsilon();
}

TEST(Exp, is_accurate_to_one_unit_in_the_last_place) {
  EXPECT_LE(worst_error_of_exp<float>(-87, 88), 1);
  EXPECT_LE(worst_error_of_exp<float>(-1, 1), 1);
  EXPECT_LE(worst_error_of_exp<double>(-708, 709), 1);
  EXPECT_LE(worst_error_of_exp<double>(-1, 1), 1);
}

TEST(Exp, is_clamped_and_passes_nan_on) {
  EXPECT_EQ(nn::exp(0.0f), 1.0f);
  EXPECT_EQ(nn::exp(-1e30f), nn::exp(-87.0f));
  EXPECT_EQ(nn::exp(std::numeric_limits<double>::infinity()), nn::exp(709.0));
  EXPECT_TRUE(std::isnan(nn::exp(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(nn::exp(std::numeric_limits<double>::quiet_NaN())));
}

TEST(Gelu, equals_reference) {
  for (double u = -30; u <= 30; u += 0.01) {
    EXPECT_NEAR(Gelu<double>(u).value, gelu_ref(u), 1e-14 * (1 + std::abs(u))) << u;
    EXPECT_NEAR(Gelu<double>(u).derivative, gelu_derivative_ref(u), 2e-14) << u;
    EXPECT_NEAR(Gelu<float>(static_cast<float>(u)).value, gelu_ref(u), 1e-6 * (1 + std::abs(u))) << u;
  }
}

// ---- dropout ----

TYPED_TEST(Layer, dropout_equals_reference) {
  test::for_both_types([&](auto real) {
    using Real = decltype(real);
    for (const Extents& e : extents) {
      const int sequence = e.rows % 5 == 0 ? 5 : 1, batch = e.rows / sequence;
      DeviceArray<TypeParam, Real> ones(random_array<Real>(e.rows, e.columns, 1, 0, 1));
      Layers<TypeParam, Real>::drop_out(this->exec, Dropout<Real>(Real(0.3), key, 4, sequence), ones.matrix());
      EXPECT_EQ(ones.array().values,
                in_double(dropout_factors_ref<Real>(Real(0.3), key, 4, batch, sequence, e.columns)).values);
    }
  });
}

TYPED_TEST(Layer, dropout_drops_its_share_and_keeps_the_mean) {
  for (const double probability : {0.001, 0.1, 0.5, 0.9}) {
    const int rows = 1000, columns = 1000;
    DeviceArray<TypeParam, double> ones(random_array(rows, columns, 1, 0, 1));
    Layers<TypeParam, double>::drop_out(this->exec, Dropout<double>(probability, key, 0, 10), ones.matrix());
    double dropped = 0, sum = 0;
    for (const double value : ones.array().values) {
      dropped += value == 0;
      sum += value;
    }
    const double elements = rows * columns, deviation = std::sqrt(probability * (1 - probability) / elements);
    EXPECT_NEAR(dropped / elements, probability, 5 * deviation + 0x1p-16) << probability;
    EXPECT_NEAR(sum / elements, 1, 5 * deviation / (1 - probability)) << probability;
  }
}

TYPED_TEST(Layer, dropout_masks_differ_by_all_that_draws_them) {
  const auto mask = [&](const DropoutKey& drawn_by, int site) {
    DeviceArray<TypeParam, float> ones(random_array<float>(8, 64, 1, 0, 1));
    Layers<TypeParam, float>::drop_out(this->exec, Dropout<float>(0.5f, drawn_by, site, 4), ones.matrix());
    return ones.array().values;
  };
  const std::vector<double> first = mask({1, 2, 3}, 4);
  EXPECT_EQ(first, mask({1, 2, 3}, 4));
  // The masks of other streams agree in half of the elements, give or take.
  for (const std::vector<double>& other :
       {mask({2, 2, 3}, 4), mask({1, 3, 3}, 4), mask({1, 2, 9}, 4), mask({1, 2, 3}, 5)}) {
    int same = 0;
    for (std::size_t i = 0; i < first.size(); ++i) same += first[i] == other[i];
    EXPECT_NEAR(same, 256, 70);
  }
  // One sample later, the second sample is the first.
  const std::vector<double> later = mask({1, 2, 4}, 4);
  EXPECT_EQ(std::vector<double>(first.begin() + 256, first.end()),
            std::vector<double>(later.begin(), later.begin() + 256));
}

TYPED_TEST(Layer, dropout_of_zero_does_nothing) {
  EXPECT_FALSE(Dropout<float>(0.0f, key, 1, 1).active());
  const Array<float> values = random_array<float>(9, 77, 1);
  DeviceArray<TypeParam, float> same(values);
  Layers<TypeParam, float>::drop_out(this->exec, Dropout<float>(0.0f, key, 1, 1), same.matrix());
  EXPECT_EQ(same.array().values, in_double(values).values);
}

// ---- dense ----

TYPED_TEST(Layer, dense_equals_reference) {
  test::for_both_types([&](auto real) {
    using Real = decltype(real);
    using Kernels = Layers<TypeParam, Real>;
    const int rows = 40, in = 33, out = 19;
    const auto input = random_array(rows, in, 1), weight = random_array(out, in, 2);
    const auto d_output = random_array(rows, out, 3), d_weight_before = random_array(out, in, 4);
    const auto on_device = [](const Array<double>& array) {
      Array<Real> converted(array.rows, array.columns);
      converted.values.assign(array.values.begin(), array.values.end());
      return DeviceArray<TypeParam, Real>(converted);
    };
    const auto x = on_device(input), w = on_device(weight), dy = on_device(d_output), dw = on_device(d_weight_before);
    const DeviceArray<TypeParam, Real> y(rows, out), dx(rows, in);
    linalg::MatrixProduct<TypeParam, Real> product;
    Kernels::dense(this->exec, product, x.matrix(), w.matrix(), y.matrix());
    EXPECT_LE(relative_error(y.array(), dense_ref(input, weight)), rounding<Real>);

    Array<double> d_input, d_weight(out, in);
    dense_backward_ref(input, weight, d_output, d_input, d_weight);
    Kernels::dense_backward_input(this->exec, product, dy.matrix(), w.matrix(), false, dx.matrix(), Real(0.5));
    for (double& value : d_input.values) value *= 0.5;
    EXPECT_LE(relative_error(dx.array(), d_input), rounding<Real>);
    Kernels::dense_backward_input(this->exec, product, dy.matrix(), w.matrix(), true, dx.matrix(), Real(0.5));
    for (double& value : d_input.values) value *= 2;
    EXPECT_LE(relative_error(dx.array(), d_input), rounding<Real>);
    Kernels::dense_backward_weight(this->exec, product, dy.matrix(), x.matrix(), true, dw.matrix(), Real(2));
    Array<double> sum = d_weight;
    for (std::size_t i = 0; i < sum.values.size(); ++i) sum.values[i] = 2 * sum.values[i] + d_weight_before.values[i];
    EXPECT_LE(relative_error(dw.array(), sum), rounding<Real>);
    Kernels::dense_backward_weight(this->exec, product, dy.matrix(), x.matrix(), false, dw.matrix());
    EXPECT_LE(relative_error(dw.array(), d_weight), rounding<Real>);
  });
}

TYPED_TEST(Layer, dense_gradient) {
  using Kernels = Layers<TypeParam, double>;
  linalg::MatrixProduct<TypeParam, double> product;
  const auto weights = random_array(12, 7, 3);
  auto input = random_array(12, 9, 1), weight = random_array(7, 9, 2);
  const auto f = [&] {
    const DeviceArray<TypeParam, double> y(12, 7);
    Kernels::dense(this->exec, product, DeviceArray<TypeParam, double>(input).matrix(),
                   DeviceArray<TypeParam, double>(weight).matrix(), y.matrix());
    return weighted_sum(weights, y.array());
  };
  const DeviceArray<TypeParam, double> x(input), w(weight), dy(weights), dx(12, 9), dw(7, 9);
  Kernels::dense_backward_input(this->exec, product, dy.matrix(), w.matrix(), false, dx.matrix());
  Kernels::dense_backward_weight(this->exec, product, dy.matrix(), x.matrix(), false, dw.matrix());
  EXPECT_LE(gradient_error(f, input.values, dx.array().values), gradient_tolerance);
  EXPECT_LE(gradient_error(f, weight.values, dw.array().values), gradient_tolerance);
}

// ---- biases and GELU ----

TYPED_TEST(Layer, bias_equals_reference) {
  test::for_both_types([&](auto real) {
    using Real = decltype(real);
    using Kernels = Layers<TypeParam, Real>;
    for (const Extents& e : extents) {
      const auto values = random_array<Real>(e.rows, e.columns, 1), bias = random_array<Real>(1, e.columns, 2);
      const DeviceArray<TypeParam, Real> x(values), b(bias), scratch(row_block_count<TypeParam>(e.rows), e.columns);
      const DeviceArray<TypeParam, Real> d_bias(bias);
      Kernels::add_bias_backward(this->exec, x.matrix(), scratch.vector(), d_bias.vector(), Real(0.5));
      Array<double> sums(1, e.columns);
      add_bias_backward_ref(in_double(values), sums);
      for (int j = 0; j < e.columns; ++j) sums(j) = sums(j) * 0.5 + bias(j);
      EXPECT_LE(relative_error(d_bias.array(), sums), rounding<Real>);

      Kernels::add_bias(this->exec, b.vector(), x.matrix(), {}, x.matrix());
      Array<double> expected = in_double(values);
      for (int r = 0; r < e.rows; ++r)
        for (int j = 0; j < e.columns; ++j) expected(r, j) += bias(j);
      EXPECT_LE(relative_error(x.array(), expected), rounding<Real>);
    }
  });
}

TYPED_TEST(Layer, bias_gelu_equals_reference) {
  test::for_both_types([&](auto real) {
    using Real = decltype(real);
    using Kernels = Layers<TypeParam, Real>;
    for (const Extents& e : extents) {
      const auto values = random_array<Real>(e.rows, e.columns, 1), bias = random_array<Real>(1, e.columns, 2);
      const auto d_output = random_array<Real>(e.rows, e.columns, 3);
      const DeviceArray<TypeParam, Real> x(values), b(bias), y(e.rows, e.columns), d(d_output);
      const DeviceArray<TypeParam, Real> scratch(row_block_count<TypeParam>(e.rows), e.columns), d_bias(bias);
      Kernels::bias_gelu(this->exec, b.vector(), x.matrix(), y.matrix());
      Array<double> input = in_double(values), output = input, d_input = input, sums = in_double(bias);
      for (int r = 0; r < e.rows; ++r)
        for (int j = 0; j < e.columns; ++j) {
          input(r, j) += bias(j);
          output(r, j) = gelu_ref(input(r, j));
          d_input(r, j) = d_output(r, j) * gelu_derivative_ref(input(r, j));
        }
      EXPECT_LE(relative_error(x.array(), input), rounding<Real>);
      EXPECT_LE(relative_error(y.array(), output), rounding<Real>);

      Kernels::bias_gelu_backward(this->exec, x.matrix(), d.matrix(), scratch.vector(), d_bias.vector());
      add_bias_backward_ref(d_input, sums);
      EXPECT_LE(relative_error(x.array(), output), rounding<Real>);
      EXPECT_LE(relative_error(d.array(), d_input), rounding<Real>);
      EXPECT_LE(relative_error(d_bias.array(), sums), rounding<Real>);
    }
  });
}

/// The gradients of an activation with bias, against central differences.
/// \param forward (bias, x, y): x ← what `backward` needs, y ← the result
/// \param backward (x, d, scratch, d_bias): d ← the gradient of x from that of y, d_bias ← the bias'
template <class Exec, class Forward, class Backward>
void check_bias_gradient(const Forward& forward, const Backward& backward) {
  const int rows = 40, columns = 9;
  const auto weights = random_array(rows, columns, 3);
  auto values = random_array(rows, columns, 1), bias = random_array(1, columns, 2);
  const auto f = [&] {
    const DeviceArray<Exec, double> x(values), b(bias), y(rows, columns);
    forward(b.vector(), x.matrix(), y.matrix());
    return weighted_sum(weights, y.array());
  };
  const DeviceArray<Exec, double> x(values), b(bias), y(rows, columns), d(weights), d_bias(1, columns);
  const DeviceArray<Exec, double> scratch(row_block_count<Exec>(rows), columns);
  forward(b.vector(), x.matrix(), y.matrix());
  backward(x.matrix(), d.matrix(), scratch.vector(), d_bias.vector());
  EXPECT_LE(gradient_error(f, values.values, d.array().values), gradient_tolerance);
  EXPECT_LE(gradient_error(f, bias.values, d_bias.array().values), gradient_tolerance);
}

TYPED_TEST(Layer, bias_gelu_gradient) {
  using Kernels = Layers<TypeParam, double>;
  check_bias_gradient<TypeParam>(
      [&](const auto& bias, const auto& x, const auto& y) { Kernels::bias_gelu(this->exec, bias, x, y); },
      [&](const auto& x, const auto& d, const auto& scratch, const auto& d_bias) {
        Kernels::bias_gelu_backward(this->exec, x, d, scratch, d_bias);
      });
}

// ---- the head of classes ----

TYPED_TEST(Layer, bias_tanh_equals_reference) {
  test::for_both_types([&](auto real) {
    using Real = decltype(real);
    using Kernels = Layers<TypeParam, Real>;
    for (const Extents& e : extents) {
      const auto values = random_array<Real>(e.rows, e.columns, 1), bias = random_array<Real>(1, e.columns, 2);
      const auto d_output = random_array<Real>(e.rows, e.columns, 3);
      const DeviceArray<TypeParam, Real> x(values), b(bias), d(d_output), d_bias(bias);
      const DeviceArray<TypeParam, Real> scratch(row_block_count<TypeParam>(e.rows), e.columns);
      Kernels::bias_tanh(this->exec, b.vector(), x.matrix());
      EXPECT_LE(relative_error(x.array(), bias_tanh_ref(in_double(bias), in_double(values))), rounding<Real>);

      Kernels::bias_tanh_backward(this->exec, x.matrix(), d.matrix(), scratch.vector(), d_bias.vector());
      Array<double> sums = in_double(bias);
      const auto d_input = bias_tanh_backward_ref(in_double(bias), in_double(values), in_double(d_output), sums);
      EXPECT_LE(relative_error(d.array(), d_input), rounding<Real>);
      EXPECT_LE(relative_error(d_bias.array(), sums), rounding<Real>);
    }
  });
}

TYPED_TEST(Layer, bias_tanh_gradient) {
  using Kernels = Layers<TypeParam, double>;
  check_bias_gradient<TypeParam>(
      [&](const auto& bias, const auto& x, const auto& y) {
        Kernels::bias_tanh(this->exec, bias, x);
        Kokkos::deep_copy(this->exec, y, x);
      },
      [&](const auto& x, const auto& d, const auto& scratch, const auto& d_bias) {
        Kernels::bias_tanh_backward(this->exec, x, d, scratch, d_bias);
      });
}

TYPED_TEST(Layer, is_right_equals_reference) {
  for (const Extents& e : extents) {
    Array<float> logits = random_array<float>(e.rows, e.columns, 1);
    for (float& logit : logits.values) logit = std::round(4 * logit);  // so that many are equal
    if (e.rows > 2) logits(1, e.columns / 2) = std::nanf("");
    const std::vector<int> drawn = test::random_integers(e.rows, e.columns, 2);
    std::vector<int> greatest(e.rows);
    for (int p = 0; p < e.rows; ++p)
      for (int j = 0; j < e.columns; ++j)
        if (logits(p, j) > logits(p, greatest[p])) greatest[p] = j;
    const DeviceArray<TypeParam, float> x(logits), right(1, e.rows);
    double rights = 0;
    for (const std::vector<int>& target : {drawn, greatest}) {
      Layers<TypeParam, float>::is_right(this->exec, test::to_device<TypeParam>(target), x.matrix(), right.vector());
      const std::vector<float> expected = is_right_ref(logits, target);
      for (int p = 0; p < e.rows; ++p) EXPECT_EQ(right.array()(p), expected[p]) << p;
      rights += std::count(expected.begin(), expected.end(), 1.0f);
    }
    EXPECT_GE(rights, e.rows - 1);
  }
}

// ---- layer normalisation ----

/// A residual_layer_norm with all its arrays: z = residual + dropout(branch + bias), output = LayerNorm(z).
template <class Exec, class Real>
struct NormCase {
  using Kernels = Layers<Exec, Real>;
  Array<Real> branch, residual, bias, weight, norm_bias, d_output, d_residual;
  Real probability;
  int rows, columns;
  static constexpr double epsilon = 1e-5;

  NormCase(const Extents& e, Real probability_)
      : branch(random_array<Real>(e.rows, e.columns, 1)),
        residual(random_array<Real>(e.rows, e.columns, 2, 1, 3)),
        bias(random_array<Real>(1, e.columns, 3)),
        weight(random_array<Real>(1, e.columns, 4, 0.3, 1)),
        norm_bias(random_array<Real>(1, e.columns, 5)),
        d_output(random_array<Real>(e.rows, e.columns, 6)),
        d_residual(random_array<Real>(e.rows, e.columns, 7)),
        probability(probability_),
        rows(e.rows),
        columns(e.columns) {}

  Dropout<Real> dropout() const { return {probability, key, 3, rows}; }
  /// Factors, and z, by the reference.
  Array<double> factors() const { return in_double(dropout_factors_ref<Real>(probability, key, 3, 1, rows, columns)); }
  Array<double> sum() const {
    Array<double> z = in_double(residual);
    const Array<double> factor = factors();
    for (int r = 0; r < rows; ++r)
      for (int j = 0; j < columns; ++j) z(r, j) += factor(r, j) * (double(branch(r, j)) + bias(j));
    return z;
  }

  struct Result {
    Array<double> sum, output, d_input, d_branch, d_weight, d_norm_bias, d_bias;
  };
  /// Forward, and backward that adds to d_residual or not.
  Result run(const Exec& exec, bool add) const {
    const DeviceArray<Exec, Real> z(branch), y(rows, columns), w(weight), nb(norm_bias), r(residual), b(bias);
    const DeviceArray<Exec, Real> mean(1, rows), reciprocal_std(1, rows), dy(d_output), dz(d_residual);
    const DeviceArray<Exec, Real> d_branch(rows, columns), dw(weight), dnb(norm_bias), db(bias);
    const DeviceArray<Exec, Real> scratch(3 * row_block_count<Exec>(rows), columns);
    const LayerNorm<Exec, Real> norm{w.vector(), nb.vector(),   Real(epsilon),          z.matrix(),
                                     y.matrix(), mean.vector(), reciprocal_std.vector()};
    Kernels::residual_layer_norm(exec, r.matrix(), b.vector(), dropout(), norm);
    const auto branch_gradient = dropout().active() ? d_branch.matrix() : dz.matrix();
    Kernels::layer_norm_backward(exec, norm, dy.matrix(), add, dz.matrix(), dropout(), branch_gradient,
                                 scratch.vector(), {dw.vector(), dnb.vector(), db.vector()});
    return {z.array(),  y.array(),   dz.array(), dropout().active() ? d_branch.array() : dz.array(),
            dw.array(), dnb.array(), db.array()};
  }
};

TYPED_TEST(Layer, residual_layer_norm_equals_reference) {
  test::for_both_types([&](auto real) {
    using Real = decltype(real);
    for (const Extents& e : extents)
      for (const Real probability : {Real(0), Real(0.25)})
        for (const bool add : {false, true}) {
          SCOPED_TRACE(::testing::Message() << e.rows << " x " << e.columns << " dropout " << probability);
          const NormCase<TypeParam, Real> norm(e, probability);
          const auto found = norm.run(this->exec, add);
          const double tolerance = rounding<Real> * 3;
          const Array<double> z = norm.sum(), weight = in_double(norm.weight), factors = norm.factors();
          EXPECT_LE(relative_error(found.sum, z), tolerance);
          EXPECT_LE(relative_error(found.output, layer_norm_ref(z, weight, in_double(norm.norm_bias), norm.epsilon)),
                    tolerance);
          Array<double> d_input, d_weight = weight, d_norm_bias = in_double(norm.norm_bias),
                                 d_bias = in_double(norm.bias);
          layer_norm_backward_ref(z, weight, norm.epsilon, in_double(norm.d_output), d_input, d_weight, d_norm_bias);
          for (std::size_t i = 0; add && i < d_input.values.size(); ++i) d_input.values[i] += norm.d_residual.values[i];
          Array<double> d_branch = d_input;
          for (std::size_t i = 0; i < d_branch.values.size(); ++i) d_branch.values[i] *= factors.values[i];
          add_bias_backward_ref(d_branch, d_bias);
          EXPECT_LE(relative_error(found.d_input, d_input), tolerance);
          EXPECT_LE(relative_error(found.d_branch, d_branch), tolerance);
          EXPECT_LE(relative_error(found.d_weight, d_weight), tolerance);
          EXPECT_LE(relative_error(found.d_norm_bias, d_norm_bias), tolerance);
          EXPECT_LE(relative_error(found.d_bias, d_bias), tolerance);
        }
  });
}

TYPED_TEST(Layer, residual_layer_norm_gradient) {
  for (const double probability : {0.0, 0.25}) {
    NormCase<TypeParam, double> norm({40, 21}, probability);
    const auto gradient = norm.run(this->exec, false);
    const auto f = [&] { return weighted_sum(norm.d_output, norm.run(this->exec, false).output); };
    const auto added = [](const Array<double>& after, const Array<double>& before) {
      std::vector<double> difference = after.values;
      for (std::size_t i = 0; i < difference.size(); ++i) difference[i] -= before.values[i];
      return difference;
    };
    EXPECT_LE(gradient_error(f, norm.residual.values, gradient.d_input.values), gradient_tolerance);
    EXPECT_LE(gradient_error(f, norm.branch.values, gradient.d_branch.values), gradient_tolerance);
    EXPECT_LE(gradient_error(f, norm.bias.values, added(gradient.d_bias, norm.bias)), gradient_tolerance);
    EXPECT_LE(gradient_error(f, norm.weight.values, added(gradient.d_weight, norm.weight)), gradient_tolerance);
    EXPECT_LE(gradient_error(f, norm.norm_bias.values, added(gradient.d_norm_bias, norm.norm_bias)),
              gradient_tolerance);
  }
}

TYPED_TEST(Layer, layer_norm_equals_reference) {
  const auto values = random_array(50, 40, 1), weight = random_array(1, 40, 2), bias = random_array(1, 40, 3);
  const DeviceArray<TypeParam, double> x(values), y(50, 40), w(weight), b(bias), mean(1, 50), reciprocal_std(1, 50);
  Layers<TypeParam, double>::layer_norm(
      this->exec, {w.vector(), b.vector(), 1e-12, x.matrix(), y.matrix(), mean.vector(), reciprocal_std.vector()});
  EXPECT_LE(relative_error(y.array(), layer_norm_ref(values, weight, bias, 1e-12)), rounding<double>);
  EXPECT_EQ(x.array().values, values.values);
}

// ---- embeddings and rows ----

TYPED_TEST(Layer, embeddings_equal_reference) {
  test::for_both_types([&](auto real) {
    using Real = decltype(real);
    using Kernels = Layers<TypeParam, Real>;
    // One token everywhere, a few tokens, hardly any twice.
    for (const int vocabulary : {1, 5, 1000}) {
      const int sequence = 9, rows = 19 * sequence, columns = 35;
      const std::vector<int> tokens = test::random_integers(rows, vocabulary, 1);
      const auto word = random_array<Real>(vocabulary, columns, 2), position = random_array<Real>(12, columns, 3);
      const auto type = random_array<Real>(2, columns, 4), d_output = random_array<Real>(rows, columns, 5);
      const auto input = test::to_device<TypeParam>(tokens);
      const DeviceArray<TypeParam, Real> w(word), p(position), t(type), y(rows, columns), dy(d_output);
      for (const int second_text : {sequence, 4}) {
        Kernels::embed(this->exec, {w.matrix(), p.matrix(), t.matrix(), sequence, second_text}, input, y.matrix());
        EXPECT_LE(relative_error(y.array(), embed_ref(sequence, tokens, in_double(word), in_double(position),
                                                      in_double(type), second_text)),
                  rounding<Real>);
      }
      Kernels::embed(this->exec, {w.matrix(), p.matrix(), {}, sequence, sequence}, input, y.matrix());
      EXPECT_LE(relative_error(y.array(), embed_ref(sequence, tokens, in_double(word), in_double(position),
                                                    Array<double>(2, columns), sequence)),
                rounding<Real>);

      const Vector<TypeParam, int> links("OneBit::test::links", 2 * rows);
      Kernels::embed_backward(this->exec, sequence, input, dy.matrix(), links, w.matrix(), p.matrix());
      Array<double> d_word = in_double(word), d_position = in_double(position);
      embed_backward_ref(sequence, tokens, in_double(d_output), d_word, d_position);
      EXPECT_LE(relative_error(w.array(), d_word), rounding<Real>);
      EXPECT_LE(relative_error(p.array(), d_position), rounding<Real>);
    }
  });
}

TYPED_TEST(Layer, embeddings_gradient_is_added_in_the_order_of_rows) {
  // In float, so that another order has other bits.
  const int sequence = 9, rows = 19 * sequence, columns = 70;
  for (const int vocabulary : {1, 5, 1000}) {
    const std::vector<int> tokens = test::random_integers(rows, vocabulary, 1);
    const auto d_output = random_array<float>(rows, columns, 5);
    auto word = random_array<float>(vocabulary, columns, 2), position = random_array<float>(sequence, columns, 3);
    const DeviceArray<TypeParam, float> w(word), p(position), dy(d_output);
    const Vector<TypeParam, int> links("OneBit::test::links", 2 * rows);
    Layers<TypeParam, float>::embed_backward(this->exec, sequence, test::to_device<TypeParam>(tokens), dy.matrix(),
                                             links, w.matrix(), p.matrix());
    for (int r = 0; r < rows; ++r)
      for (int j = 0; j < columns; ++j) {
        word(tokens[r], j) += d_output(r, j);
        position(r % sequence, j) += d_output(r, j);
      }
    EXPECT_TRUE(test::same_bits(test::to_host(w.memory), word.values));
    EXPECT_TRUE(test::same_bits(test::to_host(p.memory), position.values));
  }
}

TYPED_TEST(Layer, embeddings_gradient) {
  using Kernels = Layers<TypeParam, double>;
  const int sequence = 7, rows = 3 * sequence, columns = 6;
  const auto input = test::to_device<TypeParam>(test::random_integers(rows, 5, 1));
  const auto weights = random_array(rows, columns, 5);
  auto word = random_array(5, columns, 2), position = random_array(sequence, columns, 3);
  const auto f = [&] {
    const DeviceArray<TypeParam, double> w(word), p(position), y(rows, columns);
    Kernels::embed(this->exec, {w.matrix(), p.matrix(), {}, sequence, sequence}, input, y.matrix());
    return weighted_sum(weights, y.array());
  };
  const DeviceArray<TypeParam, double> dy(weights), dw(5, columns), dp(sequence, columns);
  const Vector<TypeParam, int> links("OneBit::test::links", 2 * rows);
  Kernels::embed_backward(this->exec, sequence, input, dy.matrix(), links, dw.matrix(), dp.matrix());
  EXPECT_LE(gradient_error(f, word.values, dw.array().values), gradient_tolerance);
  EXPECT_LE(gradient_error(f, position.values, dp.array().values), gradient_tolerance);
}

TYPED_TEST(Layer, rows_are_gathered_and_scattered) {
  const int rows = 50, columns = 37, count = 20;
  const std::vector<int> chosen = test::random_choice(count, rows, 1);
  const auto values = random_array(rows, columns, 2);
  const auto device_rows = test::to_device<TypeParam>(chosen);
  const DeviceArray<TypeParam, double> x(values), y(count, columns), back(random_array(rows, columns, 3));
  Layers<TypeParam, double>::gather_rows(this->exec, device_rows, x.matrix(), y.matrix());
  Layers<TypeParam, double>::gather_rows_backward(this->exec, device_rows, y.matrix(), back.matrix());
  Array<double> gathered(count, columns), scattered(rows, columns);
  for (int p = 0; p < count; ++p)
    for (int j = 0; j < columns; ++j) scattered(chosen[p], j) = gathered(p, j) = values(chosen[p], j);
  EXPECT_EQ(y.array().values, gathered.values);
  EXPECT_EQ(back.array().values, scattered.values);
}

TYPED_TEST(Layer, rows_of_a_sample_are_averaged) {
  const int samples = 5, sequence = 7, columns = 37;
  const auto values = random_array(samples * sequence, columns, 2);
  const DeviceArray<TypeParam, double> x(values), y(samples, columns), back(samples * sequence, columns);
  Layers<TypeParam, double>::mean_rows(this->exec, x.matrix(), y.matrix());
  Layers<TypeParam, double>::mean_rows_backward(this->exec, y.matrix(), back.matrix());
  Array<double> means(samples, columns), spread(samples * sequence, columns);
  for (int b = 0; b < samples; ++b)
    for (int j = 0; j < columns; ++j) {
      for (int t = 0; t < sequence; ++t) means(b, j) += values(b * sequence + t, j);
      means(b, j) /= sequence;
      for (int t = 0; t < sequence; ++t) spread(b * sequence + t, j) = means(b, j) / sequence;
    }
  EXPECT_EQ(y.array().values, means.values);
  EXPECT_EQ(back.array().values, spread.values);
}

// ---- spans ----

TYPED_TEST(Layer, spans_are_chosen_among_the_tokens_of_the_second_text) {
  const int samples = 6, T = 9;
  const auto scores = random_array(samples * T, 2, 4);
  std::vector<int> ends;
  for (int b = 0; b < samples; ++b) ends.insert(ends.end(), {b * T + b % 4, b * T + T - 1 - b % 3});
  const DeviceArray<TypeParam, double> x(scores), y(2 * samples, T), back(random_array(samples * T, 2, 5));
  Spans<TypeParam, double>::gather(this->exec, test::to_device<TypeParam>(ends), x.matrix(), y.matrix());
  Spans<TypeParam, double>::gather_backward(this->exec, y.matrix(), back.matrix());
  Array<double> logits(2 * samples, T), scattered(samples * T, 2);
  for (int r = 0; r < samples * T; ++r)
    for (int k = 0; k < 2; ++k) {
      const int b = r / T;
      const bool is_token = ends[2 * b] <= r && r <= ends[2 * b + 1];
      scattered(r, k) = logits(2 * b + k, r % T) = is_token ? scores(r, k) : -std::numeric_limits<double>::infinity();
    }
  EXPECT_EQ(y.array().values, logits.values);
  EXPECT_EQ(back.array().values, scattered.values);
}

TYPED_TEST(Layer, answers_equal_those_of_all_pairs) {
  const int samples = 400, T = 7;
  Array<float> logits = random_array<float>(2 * samples, T, 1);
  for (float& logit : logits.values) logit = std::round(2 * logit);  // so that many are equal
  for (int t = 0; t < T; ++t) logits(6, t) = std::nanf("");
  std::vector<int> ends, target;
  for (int b = 0; b < samples; ++b) {
    const int first = b % 3, last = T - 1 - b / 3 % 3;
    ends.insert(ends.end(), {b * T + first, b * T + last});
    const int start = first + b / 9 % (last - first + 1);
    target.insert(target.end(), {start, start + b / 27 % (last - start + 1)});
  }
  const DeviceArray<TypeParam, float> x(logits), measured(1, 2 * samples);
  for (const SpanMeasure of : {SpanMeasure::exact, SpanMeasure::f1}) {
    Spans<TypeParam, float>::measure(this->exec, of, test::to_device<TypeParam>(ends),
                                     test::to_device<TypeParam>(target), x.matrix(), measured.vector());
    const std::vector<float> expected = span_measure_ref(logits, ends, target, of == SpanMeasure::f1);
    double sum = 0;
    for (int p = 0; p < 2 * samples; ++p) {
      EXPECT_EQ(measured.array()(p), expected[p]) << p;
      sum += expected[p];
    }
    EXPECT_GT(sum, 0.03 * 2 * samples);
    EXPECT_LT(sum, 0.7 * 2 * samples);
    EXPECT_EQ(expected[6], 0);
  }
}

// ---- cross entropy ----

TYPED_TEST(Layer, cross_entropy_equals_reference) {
  test::for_both_types([&](auto real) {
    using Real = decltype(real);
    for (const Extents& e : extents)
      for (const bool has_bias : {false, true}) {
        const auto logits = random_array<Real>(e.rows, e.columns, 1, 5, 30);
        const auto bias = random_array<Real>(1, e.columns, 2, has_bias ? 1 : 0);
        const std::vector<int> target = test::random_integers(e.rows, e.columns, 3);
        const auto device_target = test::to_device<TypeParam>(target);
        const DeviceArray<TypeParam, Real> kept(logits), turned(logits), b(bias), losses(1, e.rows), again(1, e.rows);
        const auto device_bias = has_bias ? b.vector() : VectorRef<TypeParam, Real>();
        Layers<TypeParam, Real>::cross_entropy(this->exec, device_bias, device_target, CrossEntropyOutput::logits,
                                               kept.matrix(), losses.vector());
        Layers<TypeParam, Real>::cross_entropy(this->exec, device_bias, device_target, CrossEntropyOutput::gradient,
                                               turned.matrix(), again.vector());
        Array<double> gradient, with_bias = in_double(logits);
        const std::vector<double> expected = cross_entropy_ref(in_double(logits), in_double(bias), target, gradient);
        for (int p = 0; p < e.rows; ++p)
          for (int j = 0; j < e.columns; ++j) with_bias(p, j) += bias(j);
        EXPECT_LE(relative_error(losses.array().values, expected), rounding<Real> * 5);
        EXPECT_EQ(losses.array().values, again.array().values);
        EXPECT_LE(relative_error(kept.array(), with_bias), rounding<Real>);
        EXPECT_LE(relative_error(turned.array(), gradient), rounding<Real> * 5);
      }
  });
}

TYPED_TEST(Layer, cross_entropy_gradient) {
  using Kernels = Layers<TypeParam, double>;
  const int rows = 5, columns = 40;
  const auto target = test::to_device<TypeParam>(test::random_integers(rows, columns, 1));
  auto logits = random_array(rows, columns, 2), bias = random_array(1, columns, 3);
  const auto run = [&](const DeviceArray<TypeParam, double>& x, CrossEntropyOutput output) {
    const DeviceArray<TypeParam, double> b(bias), losses(1, rows);
    Kernels::cross_entropy(this->exec, b.vector(), target, output, x.matrix(), losses.vector());
    return weighted_sum(random_array(1, rows, 1, 0, 1), losses.array());
  };
  const auto f = [&] { return run(DeviceArray<TypeParam, double>(logits), CrossEntropyOutput::logits); };
  const DeviceArray<TypeParam, double> gradient(logits);
  run(gradient, CrossEntropyOutput::gradient);
  Array<double> d_bias(1, columns);
  add_bias_backward_ref(gradient.array(), d_bias);
  EXPECT_LE(gradient_error(f, logits.values, gradient.array().values), gradient_tolerance);
  EXPECT_LE(gradient_error(f, bias.values, d_bias.values), gradient_tolerance);
}

TYPED_TEST(Layer, cross_entropy_passes_nan_on) {
  Array<float> logits = random_array<float>(2, 70, 1);
  logits(1, 40) = std::numeric_limits<float>::quiet_NaN();
  const DeviceArray<TypeParam, float> x(logits), losses(1, 2);
  Layers<TypeParam, float>::cross_entropy(this->exec, {}, test::to_device<TypeParam>(std::vector<int>{3, 3}),
                                          CrossEntropyOutput::logits, x.matrix(), losses.vector());
  EXPECT_FALSE(std::isnan(losses.array()(0)));
  EXPECT_TRUE(std::isnan(losses.array()(1)));
}

}  // namespace
}  // namespace onebit::nn
