/// \file binary_kernels.cpp
/// Binary products, beside the products in float that they take the place of. A product is exact, so its check is, too.

#include <algorithm>
#include <string>
#include <vector>

#include "bench/kernel.hpp"
#include "linalg/binary_product.hpp"
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
  std::vector<Bits> a = {Bits("OneBit::bench::a", shape.m, shape.k)};
  Bits b = Bits("OneBit::bench::b", shape.n, shape.k);
  linalg::BinaryProduct<Exec> product{};

  ConstMatrix left_matrix() const { return ConstMatrix(left.data(), shape.m, shape.k); }
  ConstMatrix right_matrix() const { return ConstMatrix(right.data(), shape.n, shape.k); }

  void pack() const {
    linalg::pack_signs<Exec, float>(exec, left_matrix(), &a[0], nullptr);
    linalg::pack_signs<Exec, float>(exec, right_matrix(), &b, nullptr);
  }
  void multiply() {
    const auto c = result;
    const std::size_t columns = shape.n;
    product(
        exec, a, b, KOKKOS_LAMBDA(int i, int j, int sum) { c(i * columns + j) = static_cast<float>(sum); });
  }

  /// Some elements of the result. \param term of the product of two factors
  template <class Term>
  Check check(const Term& term, double allowed) const {
    constexpr std::size_t sample = 1000;
    const std::size_t stride = std::max<std::size_t>(result.extent(0) / sample, 1);
    const auto host = on_host(result);
    std::vector<double> twin(result.extent(0) / stride);
    for (std::size_t e = 0; e < twin.size(); ++e) {
      const std::size_t i = e * stride / shape.n, j = e * stride % shape.n, k = shape.k;
      for (std::size_t l = 0; l < k; ++l) twin[e] += term(value_at(0, i * k + l), value_at(1, j * k + l));
    }
    return compare(
        twin.size(), [&](std::size_t e) { return host(e * stride); }, [&](std::size_t e) { return twin[e]; }, allowed);
  }
};

template <class Exec>
void measure_shape(const Exec& exec, const Shape& shape, const Measure& measure) {
  BinaryCase<Exec> binary{exec, shape};
  const double size = double(shape.m + shape.n) * shape.k, output = 4.0 * shape.m * shape.n;
  const double flop = 2.0 * shape.m * shape.n * shape.k;
  const auto check_signs = [&] {
    return binary.check([](float x, float y) { return (x > 0) == (y > 0) ? 1.0 : -1.0; }, 0);
  };
  binary.pack();
  measure({"binary_product", shape.text(), size / 8 + output, flop, [&] { binary.multiply(); }, check_signs});
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
           [&] { return binary.check([](float x, float y) { return double(x) * y; }, tolerance); }});
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
