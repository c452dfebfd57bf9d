/// \file binary_kernels.cpp
/// Binary products, beside the products in float that they take the place of. A product is exact, so its check is, too.

#include <algorithm>
#include <string>
#include <vector>

#include "base/system/stream.hpp"
#include "bench/kernels/kernel.hpp"
#include "linalg/bits/binary_product.hpp"
#include "linalg/packing.hpp"

namespace onebit::bench {
namespace {

/// C (m, n) of k terms.
struct Shape {
  int m, n, k;

  std::string text() const { return std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k); }
  bool is_cube() const { return m == n && n == k; }
  /// Elements of the largest matrix.
  double largest() const { return std::max({double(m) * n, double(m) * k, double(n) * k}); }
};

/// Cubes, and the products of "1-Bit FQT", table 4.
constexpr Shape shapes[] = {{256, 256, 256},    {512, 512, 512},  {1024, 1024, 1024},
                            {2048, 2048, 2048}, {512, 1024, 512}, {1024, 512, 512},
                            {1024, 1024, 512},  {2048, 512, 512}, {2048, 1024, 512}};

/// Planes of an average of one bit.
constexpr int average_planes = 4;

/// Stores a product in float, past the caches of a host if it is large.
template <class Exec>
struct StoreFloats {
  Vector<Exec, float> result;
  std::size_t columns;
  bool streamed;

  StoreFloats(const Vector<Exec, float>& to, std::size_t n)
      : result(to), columns(n), streamed(to.size() * sizeof(float) >= least_streamed) {}
  KOKKOS_FORCEINLINE_FUNCTION void operator()(int i, int j, int sum) const {
    result(i * columns + j) = static_cast<float>(sum);
  }
  void row(int i, int j, int count, const int* sums) const {
    float values[linalg::tile_columns];
    ONEBIT_IVDEP
    for (int c = 0; c < count; ++c) values[c] = static_cast<float>(sums[c]);
    stream::copy(&result(i * columns + j), values, sizeof *values * count, streamed);
  }
  void finish_rows() const { stream::finish(); }
};

/// One shape. The factors are in float, and packed.
template <class Exec>
struct BinaryCase {
  using ConstMatrix = MatrixRef<Exec, const float>;
  using Bits = linalg::BitMatrix<Exec>;

  const Exec& exec;
  Shape shape;
  Vector<Exec, float> left = make_array(exec, 0, std::size_t(shape.m) * shape.k);
  Vector<Exec, float> right = make_array(exec, 1, std::size_t(shape.n) * shape.k);
  Vector<Exec, float> result = make_uninitialized<Exec, float>("OneBit::bench::result", std::size_t(shape.m) * shape.n);
  std::vector<Bits> a = {Bits("OneBit::bench::a", shape.m, shape.k)}, planes{};
  Bits b = Bits("OneBit::bench::b", shape.n, shape.k);
  linalg::BinaryProduct<Exec> product{};

  ConstMatrix left_matrix() const { return ConstMatrix(left.data(), shape.m, shape.k); }
  ConstMatrix right_matrix() const { return ConstMatrix(right.data(), shape.n, shape.k); }

  void pack() const {
    linalg::pack_signs<Exec, float>(exec, left_matrix(), &a[0], nullptr);
    linalg::pack_signs<Exec, float>(exec, right_matrix(), &b, nullptr);
  }
  void multiply() { product(exec, a, b, StoreFloats<Exec>(result, shape.n)); }

  /// Four planes of (m/4, k): plane p has rows [p m/4, (p + 1) m/4) of the left factor. They have as many bits as the
  /// factor of `multiply`, so an average of one bit for each of m rows of which a quarter is kept.
  void pack_planes() {
    planes.clear();
    for (int p = 0; p < average_planes; ++p) {
      planes.push_back(Bits("OneBit::bench::plane", kept_rows(), shape.k));
      const std::size_t first = static_cast<std::size_t>(p) * kept_rows() * shape.k;
      linalg::pack_signs<Exec, float>(exec, ConstMatrix(left.data() + first, kept_rows(), shape.k), &planes[p],
                                      nullptr);
    }
  }
  void multiply_planes() { product(exec, planes, b, StoreFloats<Exec>(result, shape.n)); }
  int kept_rows() const { return shape.m / average_planes; }

  /// Some elements of the first rows of the result. \param element (i, j) of the reference
  template <class Element>
  Check check(int rows, const Element& element, double allowed) const {
    return compare_some(MatrixRef<Exec, float>(result.data(), rows, shape.n), 1000, element, allowed);
  }
  /// Row i of the left factor times row j of the right one. \param term of the product of two factors
  template <class Term>
  double row_product(std::size_t i, std::size_t j, const Term& term) const {
    double sum = 0;
    const std::size_t k = shape.k;
    for (std::size_t l = 0; l < k; ++l) sum += term(value_at(0, i * k + l), value_at(1, j * k + l));
    return sum;
  }
};

template <class Exec>
void measure_shape(const Exec& exec, const Shape& shape, const Measure& measure) {
  BinaryCase<Exec> binary{exec, shape};
  const double size = double(shape.m + shape.n) * shape.k, output = 4.0 * shape.m * shape.n;
  const double flop = 2.0 * shape.m * shape.n * shape.k;
  const auto signs = [](float x, float y) { return (x > 0) == (y > 0) ? 1.0 : -1.0; };
  const auto check_signs = [&] {
    return binary.check(
        shape.m, [&](std::size_t i, std::size_t j) { return binary.row_product(i, j, signs); }, 0);
  };
  binary.pack();
  measure({"binary_product", shape.text(), size / 8 + output, flop, [&] { binary.multiply(); }, check_signs});
  binary.pack_planes();
  measure({"average_1_bit_product", shape.text(), size / 8 + output / average_planes, flop,
           [&] { binary.multiply_planes(); },
           [&] {
             const std::size_t rows = binary.kept_rows();
             return binary.check(
                 static_cast<int>(rows),
                 [&](std::size_t i, std::size_t j) {
                   double sum = 0;
                   for (int p = 0; p < average_planes; ++p)
                     sum += (1 << p) * binary.row_product(p * rows + i, j, signs);
                   return sum;
                 },
                 0);
           }});
  if (!shape.is_cube()) return;
  measure({"binary_product_with_packing", shape.text(), 4 * size + output, flop,
           [&] {
             binary.pack();
             binary.multiply();
           },
           check_signs});
  linalg::MatrixProduct<Exec, float> product;
  measure({"fp32_product", shape.text(), 4 * size + output, flop,
           [&] {
             product(exec, linalg::Transpose::no, linalg::Transpose::yes, 1.0f, binary.left_matrix(),
                     binary.right_matrix(), 0.0f, MatrixRef<Exec, float>(binary.result.data(), shape.m, shape.n));
           },
           [&] {
             const auto floats = [](float x, float y) { return double(x) * y; };
             return binary.check(
                 shape.m, [&](std::size_t i, std::size_t j) { return binary.row_product(i, j, floats); }, tolerance);
           }});
}

}  // namespace

template <class Exec>
void binary_kernels(const Exec& exec, const config::Input& input, const Measure& measure) {
  for (const Shape& shape : shapes)
    if (shape.largest() <= static_cast<double>(input.bench.largest)) measure_shape(exec, shape, measure);
}

#define ONEBIT_INSTANTIATE(Exec) template void binary_kernels(const Exec&, const config::Input&, const Measure&);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::bench
