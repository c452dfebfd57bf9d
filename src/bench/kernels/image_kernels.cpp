/// \file image_kernels.cpp
/// The kernels of networks of images, in the shape of a ResNet's first stage.

#include <algorithm>

#include "bench/kernels/kernel.hpp"
#include "nn/images/layers/batch_norm.hpp"
#include "nn/images/layers/convolution.hpp"
#include "nn/images/layers/fold.hpp"
#include "nn/images/layers/reference.hpp"
#include "workload/transformer.hpp"

namespace onebit::bench {
namespace {

using Doubles = nn::Array<double>;

/// In full precision every gradient passes. The type is this source's own, as the kernel that nvcc makes of it must be.
struct AllPass {
  KOKKOS_FORCEINLINE_FUNCTION bool operator()(int, int) const { return true; }
};

/// A convolution of 3 × 3 pixels with as many outputs as channels, on B images. The function of a kernel makes its
/// buffers and frees them.
template <class Exec>
struct Images {
  using Buffer = Vector<Exec, float>;
  using Matrix = MatrixRef<Exec, float>;

  const Exec& exec;
  Precision precision;
  linalg::MatrixProduct<Exec, float>& product;
  const Measure& measure;
  nn::ConvolutionExtents extents;
  int images;  ///< B

  int pixels() const { return images * extents.pixels(); }
  std::size_t size() const { return static_cast<std::size_t>(pixels()) * extents.channels; }
  std::string shape() const { return bench::extents({images, extents.height, extents.width, extents.channels}); }
  Matrix matrix(const Buffer& buffer, int columns) const {
    return Matrix(buffer.data(), buffer.extent(0) / columns, columns);
  }
  static Buffer zeros(std::size_t length) { return Buffer("OneBit::bench::zeros", length); }
  /// Array `number` in double, rounded as a product reads it.
  Doubles reference(int number, int rows, int columns, Precision rounded) const {
    Doubles array(rows, columns);
    for (std::size_t i = 0; i < array.values.size(); ++i) array.values[i] = factor(rounded, value_at(number, i));
    return array;
  }
  static Check equals(const Buffer& values, const Doubles& right, double share = tolerance) {
    const auto host = on_host(values);
    return compare(
        right.values.size(), [&](std::size_t i) { return host(i); }, [&](std::size_t i) { return right.values[i]; },
        share);
  }

  /// The forward pass, and the gradients of input and weight.
  void convolution() const {
    const int C = extents.channels, D = extents.outputs, K = extents.columns();
    const nn::Convolution<Exec, float> layer(extents, images);
    const std::size_t outputs = static_cast<std::size_t>(images) * extents.output_pixels() * D;
    const std::size_t weights = static_cast<std::size_t>(D) * K;
    const Buffer input = make_array(exec, 0, size()), weight = make_array(exec, 1, weights);
    const Buffer d_output = make_array(exec, 2, outputs), scratch = zeros(layer.scratch(precision));
    const Buffer output = zeros(outputs), d_input = zeros(size()), d_weight = zeros(weights);
    const double bytes = floats(static_cast<double>(size() + weights + outputs));
    const double flop = 2.0 * static_cast<double>(outputs) * K;
    const Doubles input_ref = reference(0, pixels(), C, precision), weight_ref = reference(1, D, K, precision);
    Doubles d_input_ref(pixels(), C), d_weight_ref(D, K);
    nn::convolution_backward_ref(extents, images, input_ref, weight_ref,
                                 reference(2, static_cast<int>(outputs / D), D, precision), d_input_ref, d_weight_ref);
    const auto measure_pass = [&](const char* name, const auto& run, const Buffer& result, const Doubles& right) {
      measure_products(measure, precision, name, shape(), bytes, flop, run,
                       [&] { return equals(result, right, product_tolerance(precision)); });
    };
    measure_pass(
        "convolution_forward",
        [&] { layer.forward(exec, product, matrix(input, C), matrix(weight, K), scratch, matrix(output, D)); }, output,
        nn::convolution_ref(extents, images, input_ref, weight_ref));
    measure_pass(
        "convolution_d_input",
        [&] {
          layer.backward_input(exec, product, matrix(d_output, D), matrix(weight, K), scratch, false,
                               matrix(d_input, C));
        },
        d_input, d_input_ref);
    measure_pass(
        "convolution_d_weight",
        [&] {
          layer.backward_weight(exec, product, matrix(d_output, D), matrix(input, C), scratch, false,
                                matrix(d_weight, K));
        },
        d_weight, d_weight_ref);
  }

  /// What a convolution without oneDNN does beside its products: the copies of pixels, and the sum of their gradients.
  /// It uses the same memory for the copies of each block of images, so that they stay in a cache; so do these.
  void copies() const {
    const int C = extents.channels, K = extents.columns();
    const nn::Convolution<Exec, float> layer(extents, images);
    const int block = layer.block(), blocks = images / block;
    const int rows = block * extents.output_pixels(), of_block = block * extents.pixels();
    const double bytes = floats(blocks * (static_cast<double>(rows) * K + static_cast<double>(of_block) * C));
    const Buffer input = make_array(exec, 0, size()), copies = zeros(static_cast<std::size_t>(rows) * K);
    const auto in_block = [&](const Buffer& buffer, int k) {
      return Matrix(buffer.data() + static_cast<std::size_t>(k) * of_block * C, of_block, C);
    };
    measure({"unfold", shape(), bytes, 0,
             [&] {
               for (int k = 0; k < blocks; ++k) layer.unfold(exec, in_block(input, k), matrix(copies, K));
             },
             [&] {  // of the last block
               const Doubles from = reference(0, pixels(), C, Precision::fp32);
               Doubles right(rows, K);
               nn::for_each_product_ref(extents, block, [&](int to, int column, int pixel, int c) {
                 right(to, column) = from((blocks - 1) * of_block + pixel, c);
               });
               return equals(copies, right, 0);
             }});
    fill(exec, 1, copies);
    const Buffer d_input = zeros(size());
    measure({"fold", shape(), bytes, static_cast<double>(blocks) * rows * K,
             [&] {
               for (int k = 0; k < blocks; ++k)
                 nn::fold<Exec, float>(exec, extents, matrix(copies, K), AllPass(), false, in_block(d_input, k));
             },
             [&] {  // each block's is the same
               const Doubles from = reference(1, rows, K, Precision::fp32);
               Doubles right(blocks * of_block, C);
               for (int k = 0; k < blocks; ++k)
                 nn::for_each_product_ref(extents, block, [&](int row, int column, int pixel, int c) {
                   right(k * of_block + pixel, c) += from(row, column);
                 });
               return equals(d_input, right);
             }});
  }

  /// Statistics, normalisation and ReLU of groups of at most 16 images.
  void batch_norm() const {
    const int C = extents.channels, group = std::min(images, 16), groups = images / group;
    const int rows = group * extents.pixels(), used = groups * rows;
    const std::size_t length = static_cast<std::size_t>(used) * C;
    const Buffer input = make_array(exec, 0, length), weight = make_array(exec, 1, C), bias = make_array(exec, 2, C);
    const Buffer output = zeros(length), mean = zeros(std::size_t(groups) * C);
    const Buffer reciprocal_std = zeros(std::size_t(groups) * C);
    const Buffer scratch = zeros(nn::BatchNorms<Exec, float>::scratch(groups, rows, C));
    constexpr float epsilon = 1e-5f;
    const nn::BatchNorm<Exec, float> norm{weight,
                                          bias,
                                          epsilon,
                                          true,
                                          matrix(input, C),
                                          MatrixRef<Exec, const float>(),
                                          matrix(output, C),
                                          matrix(mean, C),
                                          matrix(reciprocal_std, C)};
    measure({"batch_norm_forward", shape(), floats(2.0 * static_cast<double>(length)),
             6.0 * static_cast<double>(length),
             [&] {
               nn::BatchNorms<Exec, float>::take_statistics(exec, norm, scratch);
               nn::BatchNorms<Exec, float>::normalize(exec, norm);
             },
             [&] {
               const auto of = [&](int number, int of_rows) { return reference(number, of_rows, C, Precision::fp32); };
               return equals(output, nn::batch_norm_ref(of(0, used), rows, of(1, 1), of(2, 1), double(epsilon),
                                                        Doubles(used, C), true));
             }});
  }
};

}  // namespace

template <class Exec>
void image_kernels(const Exec& exec, const config::Input& input, int ranks, const Measure& measure) {
  constexpr int side = 32, most = 32;  // more images would only make the references slower
  const int channels = input.images.width;
  linalg::MatrixProduct<Exec, float> product = workload::make_product<Exec>(input);
  const Images<Exec> images{exec,
                            input.model.precision,
                            product,
                            measure,
                            {side, side, channels, channels, 3, 1, 1},
                            std::min(input.train.batch / (ranks * input.train.accumulation), most)};
  images.convolution();
  images.copies();
  images.batch_norm();
}

#define ONEBIT_INSTANTIATE(Exec) template void image_kernels(const Exec&, const config::Input&, int, const Measure&);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::bench
