/// \file layer_kernels.cpp
/// Dense layers of one bit beside the products of the same layer in float and in 8 bits.

#include <optional>

#include "bench/layers.hpp"
#include "linalg/tiles.hpp"
#include "linalg/vendor/onednn.hpp"
#include "nn/column_sums.hpp"
#include "nn/quantized/binary_layers.hpp"
#include "nn/quantizer/dequantize.hpp"

namespace onebit::bench {
namespace {

using linalg::Transpose;

/// Elements of a result that are compared with a reference.
constexpr std::size_t sample = 200;

template <class Exec>
using ConstMatrix = MatrixRef<Exec, const float>;

/// A (rows, columns) matrix of factor · value_at(number, ·).
template <class Exec>
Matrix<Exec, float> make_matrix(const Exec& exec, int number, int rows, int columns, float factor) {
  const Matrix<Exec, float> matrix(Kokkos::view_alloc("OneBit::bench::matrix", Kokkos::WithoutInitializing), rows,
                                   columns);
  float* const data = matrix.data();
  for_each(
      exec, "OneBit::bench::fill", matrix.size(),
      KOKKOS_LAMBDA(std::size_t i) { data[i] = factor * value_at(number, i); });
  return matrix;
}

/// A layer's input x (N, K), latent weights W (D, K), scales Γ (D) and the gradient ∇y (N, D); and its results.
template <class Exec>
struct LayerData {
  const Exec& exec;
  int N, K, D;
  /// Some elements of x and of W are where the straight-through estimator passes nothing.
  Matrix<Exec, float> x = make_matrix(exec, 0, N, K, 1.25f), weight = make_matrix(exec, 1, D, K, 1.25f);
  Matrix<Exec, float> d_output = make_matrix(exec, 2, N, D, 1.0f), gamma = make_matrix(exec, 3, 1, D, 0.5f);
  Matrix<Exec, float> output = make_matrix(exec, 4, N, D, 0), d_input = make_matrix(exec, 5, N, K, 0);
  Matrix<Exec, float> d_weight = make_matrix(exec, 6, D, K, 0), d_gamma = make_matrix(exec, 7, 1, D, 0);

  /// Gradients of rows and of columns differ in size, so that pruning has a choice.
  void scale_gradient() const {
    const auto d = d_output;
    const int columns = D;
    for_each(
        exec, "OneBit::bench::scale_gradient", d.size(), KOKKOS_LAMBDA(std::size_t e) {
          const int i = static_cast<int>(e / columns), j = static_cast<int>(e % columns);
          d(i, j) /= static_cast<float>((1 + i % 8) * (1 + j % 4));
        });
  }
};

/// Σ term(l) over [0, terms).
template <class Term>
double sum_of(std::size_t terms, const Term& term) {
  double sum = 0;
  for (std::size_t l = 0; l < terms; ++l) sum += term(l);
  return sum;
}
double sign(float t) { return t > 0 ? 1 : -1; }
double passes(float t) { return std::abs(t) < 1 ? 1 : 0; }

/// A layer whose gradient is quantised along rows and along columns.
template <class Exec>
struct BinaryLayer {
  LayerData<Exec>& data;
  nn::Quantization quantization;
  nn::BinaryLayers<Exec, float> layers{quantization, {{data.K, data.D, data.N}}};
  linalg::MatrixProduct<Exec, float> product{};
  Vector<Exec, float> scratch = make_uninitialized<Exec, float>(
      "OneBit::bench::scratch", static_cast<std::size_t>(nn::row_block_count<Exec>(data.N)) * data.D);
  nn::QuantizerKey key{1, 2, 0, 0};

  nn::VectorRef<Exec, float> vector(const Matrix<Exec, float>& row) const {
    return nn::VectorRef<Exec, float>(row.data(), row.extent(1));
  }

  void run() {
    const nn::QuantizedParameters<Exec, float> parameters{data.weight, vector(data.gamma)};
    layers.forward(data.exec, product, 0, data.x, parameters, data.output);
    layers.backward_input(data.exec, key, product, data.d_output, parameters, false, data.d_input);
    layers.backward_parameters(data.exec, key, product, data.d_output, parameters, false, scratch, data.d_weight,
                               vector(data.d_gamma));
  }

  /// ĝ, with the same draws as in the layer.
  auto dequantized(nn::GroupAxis axis) const {
    const bool prunes = quantization.kind == QuantizationKind::fqt;
    nn::GradientQuantizer<Exec, float> quantizer(axis, {{data.N, data.D}}, quantization.bits,
                                                 prunes ? std::optional(quantization.pruning) : std::nullopt);
    const Matrix<Exec, float> gradient = make_matrix(data.exec, 0, data.N, data.D, 0);
    nn::dequantize<Exec, float>(data.exec, quantizer(data.exec, data.d_output, vector(data.gamma), key), axis,
                                gradient);
    return on_host(gradient);
  }

  Check check() const {
    const auto x = on_host(data.x), weight = on_host(data.weight), gamma = on_host(data.gamma);
    const auto d_output = on_host(data.d_output);
    const auto by_rows = dequantized(nn::GroupAxis::rows), by_columns = dequantized(nn::GroupAxis::columns);
    const auto output = [&](std::size_t i, std::size_t j) {
      return sum_of(data.K, [&](std::size_t k) { return sign(x(i, k)) * sign(weight(j, k)); }) * gamma(0, j);
    };
    const auto d_input = [&](std::size_t i, std::size_t k) {
      return sum_of(data.D, [&](std::size_t j) { return by_rows(i, j) * sign(weight(j, k)); }) * passes(x(i, k));
    };
    const auto d_weight = [&](std::size_t j, std::size_t k) {
      return sum_of(data.N, [&](std::size_t i) { return by_columns(i, j) * sign(x(i, k)); }) * passes(weight(j, k));
    };
    return compare_some(data.output, sample, output, tolerance) +
           compare_some(data.d_input, sample, d_input, tolerance) +
           compare_some(data.d_weight, sample, d_weight, tolerance);
  }
};

/// Some elements of output = x Wᵀ, d_input = ∇y W and d_weight = ∇yᵀ x.
template <class Factors, class Results>
Check check_products(const Factors& x, const Factors& weight, const Factors& d_output, const Results& output,
                     const Results& d_input, const Results& d_weight, double fraction) {
  const auto product = [](auto one, auto other) { return static_cast<double>(one) * static_cast<double>(other); };
  const auto output_ref = [&](std::size_t i, std::size_t j) {
    return sum_of(x.extent(1), [&](std::size_t k) { return product(x(i, k), weight(j, k)); });
  };
  const auto d_input_ref = [&](std::size_t i, std::size_t k) {
    return sum_of(weight.extent(0), [&](std::size_t j) { return product(d_output(i, j), weight(j, k)); });
  };
  const auto d_weight_ref = [&](std::size_t j, std::size_t k) {
    return sum_of(x.extent(0), [&](std::size_t i) { return product(d_output(i, j), x(i, k)); });
  };
  return compare_some(output, sample, output_ref, fraction) + compare_some(d_input, sample, d_input_ref, fraction) +
         compare_some(d_weight, sample, d_weight_ref, fraction);
}

/// The three products of float matrices, whose factors may be rounded. Each factor is rounded once.
template <class Exec>
struct FloatLayer {
  LayerData<Exec>& data;
  Precision precision = Precision::fp32;
  linalg::MatrixProduct<Exec, float> product{precision};
  linalg::Factor<Exec, float> x{}, weight{}, d_output{};

  void run() {
    const Exec& exec = data.exec;
    product.prepare(exec, data.x, x);
    product.prepare(exec, data.weight, weight);
    product.prepare(exec, data.d_output, d_output);
    product(exec, Transpose::no, Transpose::yes, 1, x, weight, 0, data.output);
    product(exec, Transpose::no, Transpose::no, 1, d_output, weight, 0, data.d_input);
    product(exec, Transpose::yes, Transpose::no, 1, d_output, x, 0, data.d_weight);
  }
  /// A factor on the host, as the products read it.
  auto read(const Matrix<Exec, float>& matrix) const {
    const auto host = Kokkos::create_mirror(matrix);
    Kokkos::deep_copy(host, matrix);
    for (std::size_t i = 0; i < host.size(); ++i) host.data()[i] = factor(precision, host.data()[i]);
    return host;
  }
  Check check() const {
    return check_products(read(data.x), read(data.weight), read(data.d_output), on_host(data.output),
                          on_host(data.d_input), on_host(data.d_weight), tolerance);
  }
};

/// The three products of 8-bit factors on the host. The numbers have 7 bits: so no 16-bit sum saturates on a processor
/// without VNNI.
template <class Exec>
struct IntegerLayer {
  using Factor = Matrix<Exec, std::int8_t>;
  using Sums = Matrix<Exec, std::int32_t>;
  LayerData<Exec>& data;
  Factor x = rounded(data.x), weight = rounded(data.weight), d_output = rounded(data.d_output);
  Sums output = sums(data.N, data.D), d_input = sums(data.N, data.K), d_weight = sums(data.D, data.K);

  static Sums sums(int rows, int columns) {
    return Sums(Kokkos::view_alloc("OneBit::bench::sums", Kokkos::WithoutInitializing), rows, columns);
  }
  static Factor rounded(const Matrix<Exec, float>& matrix) {
    const Factor result(Kokkos::view_alloc("OneBit::bench::rounded", Kokkos::WithoutInitializing), matrix.extent(0),
                        matrix.extent(1));
    for (std::size_t i = 0; i < matrix.size(); ++i)
      result.data()[i] = static_cast<std::int8_t>(std::lround(50 * matrix.data()[i]));
    return result;
  }

  void multiply(Transpose op_a, Transpose op_b, const Factor& a, const Factor& b, const Sums& c) const {
    const linalg::Rows<const std::int8_t> left{a.data(), a.extent(1)}, right{b.data(), b.extent(1)};
    const auto tile_product = [=](const linalg::Tile& tile, std::int32_t, linalg::Rows<std::int32_t> to) {
      linalg::onednn_product(op_a, op_b, tile.height, tile.width, tile.depth,
                             linalg::part_from(left, op_a, tile.i, tile.l),
                             linalg::part_from(right, op_b, tile.l, tile.j), to);
    };
    linalg::multiply_in_tiles(data.exec, "OneBit::bench::int8_product", c.extent_int(0), c.extent_int(1),
                              a.extent_int(op_a == Transpose::yes ? 0 : 1), 0,
                              linalg::Rows<std::int32_t>{c.data(), c.extent(1)}, tile_product);
  }
  void run() const {
    multiply(Transpose::no, Transpose::yes, x, weight, output);
    multiply(Transpose::no, Transpose::no, d_output, weight, d_input);
    multiply(Transpose::yes, Transpose::no, d_output, x, d_weight);
  }
  Check check() const { return check_products(x, weight, d_output, output, d_input, d_weight, 0); }
};

}  // namespace

template <class Exec>
void layer_kernels(const Exec& exec, int rows, const LayerShape& shape,
                   const std::function<void(const std::vector<Kernel>&)>& measure) {
  LayerData<Exec> data{exec, rows, shape.inputs, shape.outputs};
  data.scale_gradient();
  const double N = rows, K = shape.inputs, D = shape.outputs;
  const double bytes = 4 * (2 * N * K + 2 * D * K + 2 * N * D), flop = 6 * N * K * D;
  const std::string text = std::to_string(rows) + "x" + std::to_string(data.K) + "x" + std::to_string(data.D);
  std::vector<Kernel> kernels;
  const auto add = [&](const char* name, auto& layer) {
    kernels.push_back({name, text, bytes, flop, [&layer] { layer.run(); }, [&layer] { return layer.check(); }});
  };
  BinaryLayer<Exec> pruned{data, {QuantizationKind::fqt, 4, Pruning::systematic}};
  BinaryLayer<Exec> unpruned{data, {QuantizationKind::scq, 1, Pruning::systematic}};
  FloatLayer<Exec> in_float{data};
  std::optional<FloatLayer<Exec>> in_bf16;
  add("fqt_layer", pruned);
  add("scq_layer", unpruned);
  add("fp32_layer", in_float);
  if (linalg::missing<Exec>(Precision::bf16).empty()) {
    in_bf16.emplace(FloatLayer<Exec>{data, Precision::bf16});
    add("bf16_layer", *in_bf16);
  }
  if constexpr (is_host<Exec>) {
    if (!linalg::onednn_version().empty()) {
      IntegerLayer<Exec> in_integers{data};
      add("int8_layer", in_integers);
      measure(kernels);
      return;
    }
  }
  measure(kernels);
}

#define ONEBIT_INSTANTIATE(Exec)                                   \
  template void layer_kernels(const Exec&, int, const LayerShape&, \
                              const std::function<void(const std::vector<Kernel>&)>&);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::bench
