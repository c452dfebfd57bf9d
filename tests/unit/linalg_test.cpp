/// \file linalg_test.cpp
/// gemm, the tiled product and MatrixProduct against three plain loops, for every transposition, odd shapes, strides
/// and factors.

#ifdef _OPENMP
#include <omp.h>
#endif

#include <cmath>
#include <cstring>
#include <limits>

#include "../newton_schulz_reference.hpp"
#include "../support.hpp"
#include "base/device/reference.hpp"
#include "base/error.hpp"
#include "base/sixteen_bits.hpp"
#include "linalg/blas.hpp"
#include "linalg/gemm.hpp"
#include "linalg/matrix_product.hpp"
#include "linalg/newton_schulz.hpp"
#include "linalg/tiled_product.hpp"

namespace onebit::linalg {
namespace {

constexpr Transpose transposes[] = {Transpose::no, Transpose::yes};

/// What one product needs; the strides are those of rows.
struct Product {
  Transpose op_a, op_b;
  int m, n, k;
  double alpha, beta;
  std::size_t a_stride, b_stride, c_stride;
};

/// One element of op(A) op(B), in double, and the sum of its terms' magnitudes, which bounds the rounding error.
struct Element {
  double value = 0, magnitude = 0;
};
template <class Real>
Element element_ref(const Product& p, const std::vector<Real>& a, const std::vector<Real>& b, int row, int column) {
  Element sum;
  for (int l = 0; l < p.k; ++l) {
    const double left = a[p.op_a == Transpose::yes ? l * p.a_stride + row : row * p.a_stride + l];
    const double right = b[p.op_b == Transpose::yes ? column * p.b_stride + l : l * p.b_stride + column];
    sum.value += left * right;
    sum.magnitude += std::fabs(left * right);
  }
  return sum;
}

template <class Real>
std::vector<Real> values(std::size_t length, std::uint64_t seed) {
  const std::vector<float> drawn = test::random_values(length, seed);
  return {drawn.begin(), drawn.end()};
}

/// \tparam tiled whether tiled_product.hpp multiplies, and not gemm.hpp
template <class Exec, bool tiled = false, class Real, class Term>
std::vector<Real> run(const Product& p, const std::vector<Term>& a, const std::vector<Term>& b,
                      const std::vector<Real>& c) {
  const Exec exec;
  const auto a_device = test::to_device<Exec>(a);
  const auto b_device = test::to_device<Exec>(b);
  const auto c_device = test::to_device<Exec>(c);
  const Real alpha = static_cast<Real>(p.alpha), beta = static_cast<Real>(p.beta);
  const Rows<const Term> left{a_device.data(), p.a_stride}, right{b_device.data(), p.b_stride};
  const Rows<Real> result{c_device.data(), p.c_stride};
  if constexpr (tiled)
    TiledProduct<Exec, Real, Term>{p.op_a, p.op_b, p.m, p.n, p.k, alpha, beta, {left, 0}, {right, 0}, {result, 0}}.run(
        exec);
  else
    gemm(exec, p.op_a, p.op_b, p.m, p.n, p.k, alpha, left, right, beta, result);
  fence(exec, "OneBit::test::gemm");
  return test::to_host(c_device);
}

/// Runs the product and compares each element of C, and the elements between and after its rows, which must stay.
template <class Exec, class Real, bool tiled = false>
void expect_product(const Product& p) {
  SCOPED_TRACE(::testing::Message() << "m " << p.m << " n " << p.n << " k " << p.k << " op_a "
                                    << (p.op_a == Transpose::yes) << " op_b " << (p.op_b == Transpose::yes) << " alpha "
                                    << p.alpha << " beta " << p.beta << " bytes " << sizeof(Real));
  const auto a = values<Real>((p.op_a == Transpose::yes ? p.k : p.m) * p.a_stride + 64, 1);
  const auto b = values<Real>((p.op_b == Transpose::yes ? p.n : p.k) * p.b_stride + 64, 2);
  auto c = values<Real>(p.m * p.c_stride + 64, 3);
  // With β = 0 nothing of C may be read.
  if (p.beta == 0) c.assign(c.size(), std::numeric_limits<Real>::quiet_NaN());

  std::vector<Real> result = run<Exec, tiled>(p, a, b, c);
  // The sum of k terms in any order, and two products: (k + 3) ε of the magnitudes bounds the error.
  const double epsilon = std::numeric_limits<Real>::epsilon() * (p.k + 3.0);
  int wrong = 0;
  for (int row = 0; row < p.m; ++row)
    for (int column = 0; column < p.n; ++column) {
      const std::size_t at = row * p.c_stride + column;
      const Element product = element_ref(p, a, b, row, column);
      const double old = p.beta == 0 ? 0 : p.beta * c[at];
      const double expected = p.alpha * product.value + old;
      const double bound = epsilon * (std::fabs(p.alpha) * product.magnitude + std::fabs(old)) + 1e-40;
      if (!(std::fabs(result[at] - expected) <= bound) && ++wrong <= 3)
        ADD_FAILURE() << "C(" << row << ", " << column << ") is " << result[at] << ", not " << expected << " ± "
                      << bound;
      result[at] = c[at];
    }
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(test::same_bits(result, c)) << "outside of C";
}

/// A product of matrices whose rows lie `gap` elements further apart than they are long.
Product product_of(Transpose op_a, Transpose op_b, int m, int n, int k, double alpha, double beta, int gap) {
  const auto stride = [=](int columns) { return static_cast<std::size_t>(columns + gap); };
  const int a_columns = op_a == Transpose::yes ? m : k, b_columns = op_b == Transpose::yes ? k : n;
  return {op_a, op_b, m, n, k, alpha, beta, stride(a_columns), stride(b_columns), stride(n)};
}

template <class Exec>
class Gemm : public ::testing::Test {};
TYPED_TEST_SUITE(Gemm, test::Backends, test::BackendNames);

TYPED_TEST(Gemm, equals_plain_loops) {
  constexpr struct {
    int m, n, k;
  } shapes[] = {{1, 1, 1},    {1, 7, 3},    {5, 1, 9},     {3, 2, 1},    {16, 16, 16},
                {17, 31, 33}, {63, 65, 64}, {65, 129, 40}, {70, 3, 200}, {2, 300, 65}};
  constexpr struct { double alpha, beta; } factors[] = {{1, 0}, {1, 1}, {-0.5, 2}, {0, 0.25}, {0, 0}};
  for (const Transpose op_a : transposes)
    for (const Transpose op_b : transposes)
      for (const auto& shape : shapes)
        for (const auto& factor : factors)
          for (const int gap : {0, 5}) {
            const Product product = product_of(op_a, op_b, shape.m, shape.n, shape.k, factor.alpha, factor.beta, gap);
            expect_product<TypeParam, float>(product);
            expect_product<TypeParam, double>(product);
            expect_product<TypeParam, float, true>(product);
            expect_product<TypeParam, double, true>(product);
          }
}

// On the host C is cut into tiles of (64, 64) to (512, 768): shapes that give each size, with ragged tiles at both
// ends.
TYPED_TEST(Gemm, equals_plain_loops_for_each_tile_size) {
  constexpr struct { int m, n; } shapes[] = {{130, 100}, {530, 640}, {1030, 1100}, {1, 9000}, {9000, 1}, {2100, 2050}};
  for (const Transpose op_a : transposes)
    for (const Transpose op_b : transposes)
      for (const auto& shape : shapes)
        expect_product<TypeParam, float>(product_of(op_a, op_b, shape.m, shape.n, 3, 1.5, 0, 2));
}

// A small C of very many terms: on the host the terms are cut into ranges.
TYPED_TEST(Gemm, equals_plain_loops_for_many_terms) {
  for (const Transpose op_a : transposes)
    for (const Transpose op_b : transposes)
      for (const auto& [alpha, beta] : {std::pair{1.0, 0.0}, std::pair{-0.5, 2.0}})
        for (const int k : {4095, 4096, 10001}) {
          const Product product = product_of(op_a, op_b, 9, 100, k, alpha, beta, 5);
          expect_product<TypeParam, float>(product);
          expect_product<TypeParam, double>(product);
        }
}

TYPED_TEST(Gemm, without_terms_scales_c) {
  for (const double beta : {0.0, 0.5}) {
    expect_product<TypeParam, float>(product_of(Transpose::no, Transpose::no, 5, 6, 0, 1, beta, 3));
    expect_product<TypeParam, double>(product_of(Transpose::no, Transpose::no, 5, 6, 0, 1, beta, 3));
  }
}

TYPED_TEST(Gemm, of_no_elements_does_nothing) {
  const std::vector<float> c = {1, 2, 3};
  for (const auto& [m, n] : {std::pair{0, 3}, std::pair{3, 0}, std::pair{0, 0}})
    EXPECT_EQ(run<TypeParam>(product_of(Transpose::no, Transpose::no, m, n, 4, 1, 0, 1), c, c, c), c);
}

// ---- bfloat16 ----

template <class Exec>
class Bfloat16Tiles : public ::testing::Test {};
TYPED_TEST_SUITE(Bfloat16Tiles, test::Backends, test::BackendNames);

TYPED_TEST(Bfloat16Tiles, give_the_bits_of_float_tiles) {
  for (const Transpose op_a : transposes)
    for (const Transpose op_b : transposes) {
      const Product p = product_of(op_a, op_b, 65, 70, 33, 0.5, 0, 3);
      std::vector<std::uint16_t> a, b;
      std::vector<float> a_values, b_values;
      for (const float value : values<float>(p.a_stride * 65, 1)) {
        a.push_back(Bfloat16::nearest(value));
        a_values.push_back(Bfloat16::widened(a.back()));
      }
      for (const float value : values<float>(p.b_stride * 70, 2)) {
        b.push_back(Bfloat16::nearest(value));
        b_values.push_back(Bfloat16::widened(b.back()));
      }
      const std::vector<float> c(p.m * p.c_stride, 0.0f);
      const auto result = run<TypeParam, true>(p, a, b, c);
      EXPECT_TRUE(test::same_bits(result, run<TypeParam, true>(p, a_values, b_values, c)));
      EXPECT_NE(result, c);
    }
}

/// \return c ← alpha op(a) op(b) + beta c with rounded factors
template <class Exec>
std::vector<float> run_in_bf16(MatrixProduct<Exec, float>& product, const Product& p, const std::vector<float>& a,
                               const std::vector<float>& b, const std::vector<float>& c) {
  const Exec exec;
  const auto a_device = test::to_device<Exec>(a), b_device = test::to_device<Exec>(b);
  const auto c_device = test::to_device<Exec>(c);
  const bool a_turned = p.op_a == Transpose::yes, b_turned = p.op_b == Transpose::yes;
  product(exec, p.op_a, p.op_b, static_cast<float>(p.alpha),
          MatrixRef<Exec, const float>(a_device.data(), a_turned ? p.k : p.m, a_turned ? p.m : p.k),
          MatrixRef<Exec, const float>(b_device.data(), b_turned ? p.n : p.k, b_turned ? p.k : p.n),
          static_cast<float>(p.beta), MatrixRef<Exec, float>(c_device.data(), p.m, p.n));
  fence(exec, "OneBit::test::product");
  return test::to_host(c_device);
}

// A machine without such products refuses them, and no other test of them means anything there.
template <class Exec>
class MatrixProducts : public ::testing::Test {
protected:
  void SetUp() override {
    const std::string reason = missing<Exec>(Precision::bf16);
    if (reason.empty()) return;
    EXPECT_THROW((MatrixProduct<Exec, float>(Precision::bf16)), InputError);
    GTEST_SKIP() << "bf16: " << reason;
  }
};
TYPED_TEST_SUITE(MatrixProducts, test::Backends, test::BackendNames);

TYPED_TEST(MatrixProducts, equal_plain_loops_over_rounded_factors) {
  MatrixProduct<TypeParam, float> product(Precision::bf16);
  constexpr struct {
    int m, n, k;
  } shapes[] = {{1, 1, 1},     {1, 7, 3},    {5, 1, 9},      {17, 31, 33},
                {65, 129, 40}, {70, 3, 200}, {530, 640, 17}, {9, 100, 10001}};
  for (const Transpose op_a : transposes)
    for (const Transpose op_b : transposes)
      for (const auto& shape : shapes)
        for (const auto& [alpha, beta] : {std::pair{1.0, 0.0}, std::pair{0.25, 1.0}, std::pair{0.3, 0.0}}) {
          const Product p = product_of(op_a, op_b, shape.m, shape.n, shape.k, alpha, beta, 0);
          SCOPED_TRACE(::testing::Message()
                       << "m " << p.m << " n " << p.n << " k " << p.k << " op_a " << (op_a == Transpose::yes)
                       << " op_b " << (op_b == Transpose::yes) << " alpha " << alpha << " beta " << beta);
          auto a = values<float>(shape.m * shape.k, 1), b = values<float>(shape.k * shape.n, 2),
               c = values<float>(shape.m * shape.n, 3);
          if (beta == 0) c.assign(c.size(), std::numeric_limits<float>::quiet_NaN());
          const auto result = run_in_bf16(product, p, a, b, c);
          for (float& value : a) value = static_cast<float>(bfloat16_ref.nearest(static_cast<float>(alpha) * value));
          for (float& value : b) value = static_cast<float>(bfloat16_ref.nearest(value));
          const double epsilon = std::numeric_limits<float>::epsilon() * (p.k + 3.0);
          int wrong = 0;
          for (int row = 0; row < p.m; ++row)
            for (int column = 0; column < p.n; ++column) {
              const std::size_t at = row * p.c_stride + column;
              const Element element = element_ref(p, a, b, row, column);
              const double old = beta == 0 ? 0 : beta * c[at];
              const double bound = epsilon * (element.magnitude + std::fabs(old)) + 1e-40;
              wrong += !(std::fabs(result[at] - element.value - old) <= bound);
            }
          EXPECT_EQ(wrong, 0);
        }
}

TYPED_TEST(MatrixProducts, prepared_factors_give_the_same_bits) {
  using Real = float;
  using Factor = linalg::Factor<TypeParam, Real>;
  using Matrix = MatrixRef<TypeParam, const Real>;
  const TypeParam exec;
  MatrixProduct<TypeParam, Real> product(Precision::bf16);
  constexpr int m = 70, n = 130, k = 51;  // rows that are not a multiple of 16 bytes
  constexpr std::size_t offset = 77;      // of b in a longer buffer
  const auto a = test::to_device<TypeParam>(values<Real>(m * k, 1));
  const auto buffer = test::to_device<TypeParam>(values<Real>(offset + n * k + 9, 2));
  const Matrix a_matrix(a.data(), m, k), b_matrix(buffer.data() + offset, n, k);
  const auto multiply = [&](Real alpha, const Factor& left, const Factor& right) {
    const Vector<TypeParam, Real> c("OneBit::test::c", m * n);
    product(exec, Transpose::no, Transpose::yes, alpha, left, right, Real(0),
            MatrixRef<TypeParam, Real>(c.data(), m, n));
    fence(exec, "OneBit::test::product");
    return test::to_host(c);
  };
  Factor prepared, prepared_with_alpha, flat;
  product.prepare(exec, a_matrix, prepared);
  product.prepare(exec, a_matrix, prepared_with_alpha, Real(0.3));
  product.prepare(exec, Matrix(buffer.data(), 1, buffer.extent(0)), flat);
  for (const Real alpha : {Real(1), Real(0.3)}) {
    const auto expected = multiply(alpha, a_matrix, b_matrix);
    // A copy with another alpha is not used.
    for (const Factor& left : {Factor(a_matrix), prepared, prepared_with_alpha})
      for (const Factor& right : {Factor(b_matrix), flat.part(offset, n, k)})
        EXPECT_TRUE(test::same_bits(multiply(alpha, left, right), expected)) << "alpha " << alpha;
  }
  // The copy holds the values of its time.
  Kokkos::deep_copy(exec, a, Real(0));
  EXPECT_TRUE(test::same_bits(multiply(1, prepared, b_matrix), multiply(1, prepared, flat.part(offset, n, k))));
  EXPECT_NE(multiply(1, prepared, b_matrix), multiply(1, a_matrix, b_matrix));
  product.prepare(exec, a_matrix, prepared);
  EXPECT_EQ(multiply(1, prepared, b_matrix), multiply(1, a_matrix, b_matrix));
}

TYPED_TEST(MatrixProducts, bits_do_not_depend_on_threads) {
  MatrixProduct<TypeParam, float> product(Precision::bf16);
  const Product p = product_of(Transpose::no, Transpose::yes, 700, 520, 300, 1, 0, 0);
  const auto result =
      run_in_bf16(product, p, values<float>(700 * 300, 1), values<float>(520 * 300, 2), std::vector<float>(700 * 520));
  test::print_bits(std::string(BackendName<TypeParam>::value) + "_bf16", result);
  EXPECT_EQ(
      run_in_bf16(product, p, values<float>(700 * 300, 1), values<float>(520 * 300, 2), std::vector<float>(700 * 520)),
      result);
}

/// A product that a threaded BLAS would cut up: one with a large C, or one of many terms.
template <class Exec, class Real>
std::vector<Real> large_result(Transpose op_a, Transpose op_b, int m = 700, int n = 520, int k = 300) {
  const Product p = product_of(op_a, op_b, m, n, k, 1, 0, 0);
  return run<Exec>(p, values<Real>(static_cast<std::size_t>(m) * k, 1),
                   values<Real>(static_cast<std::size_t>(n) * k, 2),
                   std::vector<Real>(static_cast<std::size_t>(m) * n));
}

TYPED_TEST(Gemm, bits_do_not_depend_on_threads) {
  const std::string backend = BackendName<TypeParam>::value;
  for (const Transpose op_a : transposes)
    for (const Transpose op_b : transposes) {
      const std::string name = backend + (op_a == Transpose::yes ? "_T" : "_N") + (op_b == Transpose::yes ? "T" : "N");
      test::print_bits("float_" + name, large_result<TypeParam, float>(op_a, op_b));
      test::print_bits("double_" + name, large_result<TypeParam, double>(op_a, op_b));
      test::print_bits("many_terms_" + name, large_result<TypeParam, float>(op_a, op_b, 20, 200, 10001));
    }
}

// C = op(A) op(A)ᵀ and C C are the products that do not know of it, and on the host exactly symmetric.
TYPED_TEST(Gemm, symmetric_products_are_the_products_and_symmetric) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    if (!missing<TypeParam>(precision).empty()) continue;  // MatrixProducts says so
    MatrixProduct<TypeParam, float> product(precision);
    for (const Transpose op : transposes)
      for (const auto& [n, k] : {std::pair{1, 1}, {7, 30}, {64, 65}, {65, 9}, {300, 130}, {600, 20}}) {
        SCOPED_TRACE(::testing::Message() << "n " << n << " k " << k << " op " << (op == Transpose::yes));
        const TypeParam exec;
        const bool turned = op == Transpose::yes;
        const auto a = test::to_device<TypeParam>(values<float>(n * k, 4));
        const auto c = test::to_device<TypeParam>(std::vector<float>(n * n, 0.0f));
        const auto c_twice = test::to_device<TypeParam>(std::vector<float>(n * n, 0.0f));
        const MatrixRef<TypeParam, const float> factor(a.data(), turned ? k : n, turned ? n : k);
        const auto check = [&](Transpose op_a, Transpose op_b, const auto& of, const auto& result_of) {
          const MatrixRef<TypeParam, float> result(result_of.data(), n, n);
          const auto whole_of = test::to_device<TypeParam>(std::vector<float>(n * n, 0.0f));
          Kokkos::deep_copy(exec, result_of, std::numeric_limits<float>::quiet_NaN());
          product.symmetric(exec, op_a, op_b, of, of, result);
          product(exec, op_a, op_b, 1, of, of, 0, MatrixRef<TypeParam, float>(whole_of.data(), n, n));
          fence(exec, "OneBit::test::symmetric");
          const std::vector<float> symmetric = test::to_host(result_of), whole = test::to_host(whole_of);
          for (int i = 0; i < n; ++i)
            for (int j = 0; j < n; ++j) {
              const float bound = 1e-6f * std::sqrt(whole[i * n + i] * whole[j * n + j]);  // Cauchy and Schwarz
              ASSERT_NEAR(symmetric[i * n + j], whole[i * n + j], bound) << i << " " << j;
              if (is_host<TypeParam>) {
                ASSERT_EQ(symmetric[i * n + j], symmetric[j * n + i]) << i << " " << j;
              }
            }
        };
        check(op, flipped(op), factor, c);
        check(Transpose::no, Transpose::no, MatrixRef<TypeParam, const float>(c.data(), n, n), c_twice);
      }
  }
}

/// scale · O of each matrix, by a NewtonSchulz that has room for more.
template <class Exec>
std::vector<std::vector<float>> newton_schulz_of_all(const std::vector<std::vector<float>>& all, int rows, int columns,
                                                     int iterations, float scale, Precision precision) {
  const std::size_t size = std::size_t(rows) * columns, side = std::min(rows, columns);
  NewtonSchulz<Exec> orthogonalise(iterations, all.size() * size + 10, all.size() * side * side + 3, precision);
  std::vector<typename NewtonSchulz<Exec>::Item> items;
  for (const std::vector<float>& m : all) {
    double square = 0;
    for (const float one : m) square += static_cast<double>(one) * one;
    items.push_back({test::to_device<Exec>(m), test::to_device<Exec>(std::vector<double>{square}),
                     test::to_device<Exec>(std::vector<float>(size, 7.0f))});
  }
  orthogonalise(Exec(), rows, columns, items, scale);
  Exec().fence();
  std::vector<std::vector<float>> results;
  for (const auto& item : items) results.push_back(test::to_host(item.o));
  return results;
}

template <class Exec>
std::vector<float> newton_schulz(const std::vector<float>& m, int rows, int columns, int iterations, float scale,
                                 Precision precision = Precision::fp32) {
  return newton_schulz_of_all<Exec>({m}, rows, columns, iterations, scale, precision)[0];
}

TYPED_TEST(Gemm, newton_schulz_is_its_reference) {
  for (const auto& [rows, columns] : {std::pair{1, 7}, {7, 1}, {5, 9}, {33, 17}, {40, 40}, {20, 90}, {96, 48}})
    for (const int iterations : {1, 2, 3, 4, 5}) {
      const std::vector<float> m = values<float>(rows * columns, 100 * rows + columns);
      const std::vector<double> expected = test::newton_schulz({m.begin(), m.end()}, rows, columns, iterations);
      const std::vector<float> o = newton_schulz<TypeParam>(m, rows, columns, iterations, 2.5f);
      for (std::size_t i = 0; i < m.size(); ++i) ASSERT_NEAR(o[i], 2.5 * expected[i], 2e-4) << rows << " " << columns;
    }
}

// Rounding spoils the small eigenvalues of S = X Xᵀ first, and five iterations multiply them by up to a¹⁰. Without a
// new S after the third one the error of the second matrix would be 2e-4. M = A D B, with D from 1 down to a
// thousandth.
TYPED_TEST(Gemm, newton_schulz_of_small_singular_values_is_its_reference) {
  for (const auto& [rows, columns] : {std::pair{40, 60}, {40, 160}}) {
    const std::vector<float> a = values<float>(rows * rows, 7), b = values<float>(rows * columns, 8);
    std::vector<float> m(rows * columns);
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < columns; ++j)
        for (int l = 0; l < rows; ++l)
          m[i * columns + j] += a[i * rows + l] * std::pow(1e-3f, l / (rows - 1.0f)) * b[l * columns + j];
    const std::vector<double> expected = test::newton_schulz({m.begin(), m.end()}, rows, columns, 5);
    const std::vector<float> o = newton_schulz<TypeParam>(m, rows, columns, 5, 1);
    double error = 0, norm = 0;
    for (std::size_t i = 0; i < m.size(); ++i) {
      error += (o[i] - expected[i]) * (o[i] - expected[i]);
      norm += expected[i] * expected[i];
    }
    EXPECT_LT(std::sqrt(error / norm), 3e-5) << rows << " " << columns;
  }
}

TYPED_TEST(Gemm, newton_schulz_of_matrices_together_is_that_of_each) {
  for (const Precision precision : {Precision::fp32, Precision::tf32, Precision::bf16}) {
    if (!missing<TypeParam>(precision).empty()) continue;
    for (const auto& [rows, columns] : {std::pair{5, 9}, {33, 17}, {24, 40}, {12, 40}, {16, 16}}) {
      std::vector<std::vector<float>> all;
      for (int i = 0; i < 4; ++i) all.push_back(values<float>(rows * columns, 100 * rows + columns + i));
      const auto together = newton_schulz_of_all<TypeParam>(all, rows, columns, 5, 1.5f, precision);
      for (std::size_t i = 0; i < all.size(); ++i) {
        const auto alone = newton_schulz<TypeParam>(all[i], rows, columns, 5, 1.5f, precision);
        for (std::size_t j = 0; j < alone.size(); ++j) {
          if (is_host<TypeParam>) {
            ASSERT_EQ(together[i][j], alone[j]) << rows << " " << columns << " " << i;
          }
          ASSERT_NEAR(together[i][j], alone[j], precision == Precision::fp32 ? 2e-4 : 0.05) << rows << " " << columns;
        }
      }
    }
  }
}

// Rounded factors have 8 bits, and an iteration multiplies an error by less than 4. The larger matrices have several
// tiles, also at their edges.
TYPED_TEST(Gemm, newton_schulz_with_rounded_factors_is_near_its_reference) {
  const std::string reason = missing<TypeParam>(Precision::bf16);
  if (!reason.empty()) GTEST_SKIP() << "bf16: " << reason;
  for (const auto& [rows, columns] : {std::pair{1, 7}, {40, 72}, {72, 40}, {33, 33}, {100, 150}, {150, 130}}) {
    const std::vector<float> m = values<float>(rows * columns, 11);
    for (const int iterations : {1, 2, 5}) {
      const std::vector<double> expected = test::newton_schulz({m.begin(), m.end()}, rows, columns, iterations);
      const std::vector<float> o = newton_schulz<TypeParam>(m, rows, columns, iterations, 2.5f, Precision::bf16);
      double error = 0, norm = 0;
      for (std::size_t i = 0; i < m.size(); ++i) {
        error += (o[i] - 2.5 * expected[i]) * (o[i] - 2.5 * expected[i]);
        norm += 6.25 * expected[i] * expected[i];
      }
      EXPECT_LT(std::sqrt(error / norm), 0.05) << rows << " " << columns << " " << iterations;
      EXPECT_GT(error, 0);
    }
  }
}

// Singular values s of O come to about 1: Σ s² = ‖O‖² is near the smaller side.
TYPED_TEST(Gemm, newton_schulz_orthogonalises) {
  const int rows = 60, columns = 25;
  const std::vector<float> o = newton_schulz<TypeParam>(values<float>(rows * columns, 3), rows, columns, 5, 1);
  for (int a = 0; a < columns; ++a)
    for (int b = 0; b < columns; ++b) {
      double product = 0;
      for (int i = 0; i < rows; ++i) product += static_cast<double>(o[i * columns + a]) * o[i * columns + b];
      EXPECT_NEAR(product, a == b ? 1 : 0, 0.45) << a << " " << b;
    }
}

TYPED_TEST(Gemm, newton_schulz_of_zeros_is_zero_and_of_nan_is_nan) {
  std::vector<float> spoiled(12, 1.0f);
  spoiled[5] = std::numeric_limits<float>::quiet_NaN();
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    if (!missing<TypeParam>(precision).empty()) continue;
    for (const float one : newton_schulz<TypeParam>(std::vector<float>(12, 0.0f), 3, 4, 5, 1, precision))
      EXPECT_EQ(one, 0.0f);
    for (const float one : newton_schulz<TypeParam>(spoiled, 3, 4, 5, 1, precision)) EXPECT_TRUE(std::isnan(one));
  }
}

#if defined(KOKKOS_ENABLE_SERIAL) && defined(KOKKOS_ENABLE_OPENMP) && !defined(ONEBIT_WITHOUT_OPENMP)
TEST(Gemm, serial_and_openmp_give_the_same_bits) {
  for (const Transpose op_a : transposes)
    for (const Transpose op_b : transposes)
      EXPECT_TRUE(test::same_bits(large_result<Kokkos::Serial, float>(op_a, op_b),
                                  large_result<Kokkos::OpenMP, float>(op_a, op_b)));
}
#else
TEST(Gemm, serial_and_openmp_give_the_same_bits) { GTEST_SKIP() << "this build does not have both Serial and OpenMP"; }
#endif

#ifdef _OPENMP
const int threads_at_start = omp_get_max_threads();

TEST(SingleThreadedBlas, leaves_openmp_as_it_was) {
  {
    const SingleThreadedBlas single_threaded;
    EXPECT_EQ(omp_get_max_threads(), 1);
  }
  EXPECT_EQ(omp_get_max_threads(), threads_at_start);
}
#endif

}  // namespace
}  // namespace onebit::linalg
