/// \file network_kernels.cpp
/// The transformer's kernels in the shapes of a model. Products are checked in some rows, attention in one sample:
/// plain loops over all of them would take minutes.

#include <algorithm>

#include "base/error.hpp"
#include "bench/kernels/kernel.hpp"
#include "linalg/newton_schulz.hpp"
#include "nn/attention/attention.hpp"
#include "nn/layers.hpp"
#include "nn/reference.hpp"
#include "workload/transformer.hpp"

namespace onebit::bench {
namespace {

using Doubles = nn::Array<double>;

/// At most eight evenly spread rows of `count`.
std::vector<int> some(int count) {
  const int wanted = std::min(count, 8);
  std::vector<int> rows;
  for (int k = 0; k < wanted; ++k) rows.push_back(static_cast<int>(static_cast<std::int64_t>(k) * count / wanted));
  return rows;
}
std::vector<int> all(int count) {
  std::vector<int> rows(count);
  for (int r = 0; r < count; ++r) rows[r] = r;
  return rows;
}

/// Rows of a row-major matrix (·, columns).
template <class View>
Doubles rows_of(const View& matrix, int columns, const std::vector<int>& rows) {
  const auto host = on_host(matrix);
  Doubles copy(static_cast<int>(rows.size()), columns);
  for (int r = 0; r < copy.rows; ++r)
    for (int j = 0; j < columns; ++j) copy(r, j) = host(static_cast<std::size_t>(rows[r]) * columns + j);
  return copy;
}
template <class View>
Doubles whole(const View& matrix, int columns) {
  return rows_of(matrix, columns, all(static_cast<int>(matrix.extent(0) / columns)));
}
/// Some columns of a matrix.
Doubles columns_of(const Doubles& matrix, const std::vector<int>& columns) {
  Doubles copy(matrix.rows, static_cast<int>(columns.size()));
  for (int r = 0; r < copy.rows; ++r)
    for (int j = 0; j < copy.columns; ++j) copy(r, j) = matrix(r, columns[j]);
  return copy;
}

Check compare(const Doubles& values, const Doubles& reference, double share = tolerance) {
  return bench::compare(
      values.values.size(), [&](std::size_t i) { return values.values[i]; },
      [&](std::size_t i) { return reference.values[i]; }, share);
}

/// array(i) ← a subnormal number of either sign. Its bits are stored, because an operation would make it 0.
template <class Exec>
void fill_subnormal(const Exec& exec, const Vector<Exec, float>& array) {
  const Vector<Exec, std::uint32_t> bits(reinterpret_cast<std::uint32_t*>(array.data()), array.extent(0));
  for_each(
      exec, "OneBit::bench::fill_subnormal", bits.extent(0), KOKKOS_LAMBDA(std::size_t i) {
        constexpr std::uint32_t sign = 0x80000000u, mantissa = 0x007fffffu;
        bits(i) = philox(0, i, 0).word[0] & (sign | mantissa);
      });
  fence(exec, "OneBit::bench::fill_subnormal");
}

/// The kernels of a model. The function of a kernel makes its buffers and frees them.
template <class Exec>
struct Network {
  using Layers = nn::Layers<Exec, float>;
  using Matrix = MatrixRef<Exec, float>;
  using Row = nn::VectorRef<Exec, float>;
  using Buffer = Vector<Exec, float>;

  const Exec& exec;
  Precision precision;
  linalg::MatrixProduct<Exec, float>& product;
  const Measure& measure;

  Buffer array(int number, double length) const { return make_array(exec, number, static_cast<std::size_t>(length)); }
  static Matrix matrix(const Buffer& buffer, int columns) {
    return Matrix(buffer.data(), buffer.extent(0) / columns, columns);
  }
  static Buffer zeros(double length) { return Buffer("OneBit::bench::zeros", static_cast<std::size_t>(length)); }
  /// A matrix as a product reads it.
  Doubles factors(Doubles matrix) const {
    for (double& value : matrix.values) value = factor(precision, static_cast<float>(value));
    return matrix;
  }

  /// A linear layer of N rows: the forward pass, and the gradients of its input and weight.
  void dense(const std::string& name, int N, int in, int out) const {
    const double input_size = double(N) * in, output_size = double(N) * out, weight_size = double(in) * out;
    const Buffer input = array(0, input_size), weight = array(1, weight_size), output = zeros(output_size);
    const auto rows = some(N), outs = some(out);
    const double size = input_size + weight_size + output_size;
    const auto measure_product = [&](const char* pass, const std::string& shape, const auto& run, const auto& check) {
      measure_products(measure, precision, name + pass, shape, floats(size), 2 * input_size * out, run, check);
    };
    measure_product(
        "_forward", extents({N, out, in}),
        [&] { Layers::dense(exec, product, matrix(input, in), matrix(weight, in), matrix(output, out)); },
        [&] {
          return compare(rows_of(output, out, rows),
                         nn::dense_ref(factors(rows_of(input, in, rows)), factors(whole(weight, in))),
                         product_tolerance(precision));
        });
    fill(exec, 2, output);  // now the gradient of the output
    const Buffer d_input = zeros(input_size), d_weight = zeros(weight_size);
    measure_product(
        "_d_input", extents({N, in, out}),
        [&] {
          Layers::dense_backward_input(exec, product, matrix(output, out), matrix(weight, in), false,
                                       matrix(d_input, in));
        },
        [&] {
          Doubles right, unused(out, in);
          nn::dense_backward_ref(Doubles(static_cast<int>(rows.size()), in), factors(whole(weight, in)),
                                 factors(rows_of(output, out, rows)), right, unused);
          return compare(rows_of(d_input, in, rows), right, product_tolerance(precision));
        });
    measure_product(
        "_d_weight", extents({out, in, N}),
        [&] {
          Layers::dense_backward_weight(exec, product, matrix(output, out), matrix(input, in), false,
                                        matrix(d_weight, in));
        },
        [&] {
          const int count = static_cast<int>(outs.size());
          Doubles unused, right(count, in);
          nn::dense_backward_ref(factors(whole(input, in)), Doubles(count, in),
                                 factors(columns_of(whole(output, out), outs)), unused, right);
          return compare(rows_of(d_weight, in, outs), right, product_tolerance(precision));
        });
  }

  /// Both passes on B samples of T positions, H = A · D channels. The least FLOP are those of the products over visible
  /// pairs, without what the backward pass computes again.
  void attention(int B, int A, int T, int H, bool causal) const {
    const int N = B * T;
    const double size = double(N) * H, pairs = double(N) * (causal ? (T + 1) / 2.0 : T);
    const Precision rounded = is_host<Exec> ? Precision::fp32 : precision;  // the host's attention is in float
    const nn::Attention<Exec, float> attention{B, A, T, H, causal, rounded};
    const Buffer qkv = array(0, 3 * size), d_context = array(1, size), context = zeros(size), d_qkv = zeros(3 * size);
    const Buffer log_sums = zeros(double(N) * A), scratch = zeros(static_cast<double>(attention.scratch_size(exec)));
    const nn::Dropout<float> none;
    Doubles ones(A * T, T);
    std::fill(ones.values.begin(), ones.values.end(), 1.0);
    const std::string shape = extents({B, A, T, H / A});
    const double allowed = attention_tolerance(rounded);
    measure_products(
        measure, rounded, "attention_forward", shape, floats(4 * size), 4 * pairs * H,
        [&] { attention.forward(exec, matrix(qkv, 3 * H), none, log_sums, scratch, matrix(context, H)); },
        [&] {
          return compare(rows_of(context, H, all(T)),
                         nn::attention_ref(rows_of(qkv, 3 * H, all(T)), 1, A, T, causal, ones), allowed);
        });
    measure_products(
        measure, rounded, "attention_backward", shape, floats(8 * size), 8 * pairs * H,
        [&] {
          attention.backward(exec, matrix(qkv, 3 * H), matrix(context, H), matrix(d_context, H), none, log_sums,
                             scratch, matrix(d_qkv, 3 * H));
        },
        [&] {
          return compare(rows_of(d_qkv, 3 * H, all(T)),
                         nn::attention_backward_ref(rows_of(qkv, 3 * H, all(T)), 1, A, T, causal, ones,
                                                    rows_of(d_context, H, all(T))),
                         allowed);
        });
  }

  /// The end of a half layer, (N, H): bias, residual and normalisation; and their gradients.
  void layer_norm(int N, int H) const {
    const double size = double(N) * H;
    const Buffer input = array(0, size), residual = array(1, size), output = zeros(size);
    const Buffer weight = array(2, H), bias = array(3, H), mean = zeros(N), reciprocal_std = zeros(N);
    const nn::LayerNorm<Exec, float> norm{weight, bias,          1e-5f, matrix(input, H), matrix(output, H),
                                          mean,   reciprocal_std};
    const auto sum_ref = [&] {
      Doubles sum(N, H);
      for (int r = 0; r < N; ++r)
        for (int j = 0; j < H; ++j) {
          const std::size_t i = static_cast<std::size_t>(r) * H + j;
          sum(r, j) = static_cast<double>(value_at(1, i)) + value_at(0, i) + value_at(2, j);
        }
      return sum;
    };
    measure({"layer_norm_forward", extents({N, H}), floats(4 * size), 9 * size,
             [&] { Layers::residual_layer_norm(exec, matrix(residual, H), weight, nn::Dropout<float>(), norm); },
             [&] {
               return compare(whole(output, H), nn::layer_norm_ref(sum_ref(), whole(weight, H), whole(bias, H), 1e-5));
             },
             [&] { fill(exec, 0, input); }});
    const Buffer d_output = array(4, size), d_input = zeros(size), d_weight = zeros(H), d_bias = zeros(H);
    const Buffer scratch = zeros(3.0 * nn::row_block_count<Exec>(N) * H);
    measure({"layer_norm_backward", extents({N, H}), floats(3 * size), 13 * size,
             [&] {
               Layers::layer_norm_backward(exec, norm, matrix(d_output, H), false, matrix(d_input, H),
                                           nn::Dropout<float>(), matrix(d_input, H), scratch,
                                           {d_weight, d_bias, Row()});
             },
             [&] {
               Doubles d_input_ref, d_weight_ref(1, H), d_bias_ref(1, H);
               nn::layer_norm_backward_ref(whole(input, H), whole(weight, H), 1e-5, whole(d_output, H), d_input_ref,
                                           d_weight_ref, d_bias_ref);
               return compare(whole(d_input, H), d_input_ref) + compare(whole(d_weight, H), d_weight_ref) +
                      compare(whole(d_bias, H), d_bias_ref);
             }});
  }

  /// Bias and GELU (N, F), and their gradients. The backward pass computes the output again, which is not kept.
  void gelu(int N, int F) const {
    const double size = double(N) * F;
    const Buffer input = array(0, size), output = zeros(size), gradient = array(1, size), bias = array(2, F);
    const Buffer d_bias = zeros(F), scratch = zeros(double(nn::row_block_count<Exec>(N)) * F);
    const std::size_t length = input.extent(0);
    const auto prepare = [&] {
      fill(exec, 0, input);
      fill(exec, 1, gradient);
    };
    measure({"gelu_forward", extents({N, F}), floats(3 * size), 8 * size,
             [&] { Layers::bias_gelu(exec, bias, matrix(input, F), matrix(output, F)); },
             [&] {
               const auto host = on_host(output);
               return bench::compare(length, host, [&](std::size_t i) {
                 return nn::gelu_ref(static_cast<double>(value_at(0, i)) + value_at(2, i % F));
               });
             },
             prepare});
    // The same kernel with subnormal activations. It must take as long, because they count as 0.
    const Buffer no_bias = zeros(F);
    measure({"gelu_forward_subnormal", extents({N, F}), floats(3 * size), 8 * size,
             [&] { Layers::bias_gelu(exec, no_bias, matrix(input, F), matrix(output, F)); },
             [&] { return bench::compare(length, on_host(output), [](std::size_t) { return 0.0; }); },
             [&] { fill_subnormal(exec, input); }});
    measure({"gelu_backward", extents({N, F}), floats(4 * size), 16 * size,
             [&] { Layers::bias_gelu_backward(exec, matrix(input, F), matrix(gradient, F), scratch, d_bias); },
             [&] {
               const auto derivative = [](std::size_t i) {
                 return value_at(1, i) * nn::gelu_derivative_ref(static_cast<double>(value_at(0, i)));
               };
               Doubles d_bias_ref(1, F);
               for (std::size_t i = 0; i < length; ++i) d_bias_ref(static_cast<int>(i % F)) += derivative(i);
               const auto input_host = on_host(input), gradient_host = on_host(gradient);
               return bench::compare(length, input_host,
                                     [](std::size_t i) { return nn::gelu_ref(static_cast<double>(value_at(0, i))); }) +
                      bench::compare(length, gradient_host, derivative) + compare(whole(d_bias, F), d_bias_ref);
             },
             prepare});
  }

  /// Losses of P rows of V logits, and their gradient in the place of the logits.
  void softmax_loss(int P, int V) const {
    const Buffer logits = array(0, double(P) * V), losses = zeros(P);
    std::vector<int> target_ref(P);
    const Vector<Exec, int> target("OneBit::bench::target", P);
    const auto target_host = Kokkos::create_mirror_view(target);
    for (int p = 0; p < P; ++p) target_ref[p] = target_host(p) = static_cast<int>(std::int64_t{p} * 7919 % V);
    Kokkos::deep_copy(target, target_host);
    measure({"softmax_loss", extents({P, V}), floats(2.0 * P * V), 4.0 * P * V,
             [&] {
               Layers::cross_entropy(exec, Row(), target, nn::CrossEntropyOutput::gradient, matrix(logits, V), losses);
             },
             [&] {
               Doubles logits_ref(P, V), gradient_ref;
               for (std::size_t i = 0; i < logits_ref.values.size(); ++i) logits_ref.values[i] = value_at(0, i);
               Doubles losses_ref(1, P);
               losses_ref.values = nn::cross_entropy_ref(logits_ref, Doubles(1, V), target_ref, gradient_ref);
               return compare(whole(logits, V), gradient_ref) + compare(whole(losses, P), losses_ref);
             },
             [&] { fill(exec, 0, logits); }});
  }
};

/// O of a matrix (rows, columns) that is no higher than wide: the iteration of linalg/newton_schulz.hpp in double, by
/// general products on the host.
std::vector<double> newton_schulz_ref(std::vector<double> x, int rows, int columns, int iterations) {
  using linalg::Rows;
  using linalg::Transpose;
  const HostExec host;
  const std::size_t m = rows, n = columns;
  double square_norm = 0;
  for (const double one : x) square_norm += one * one;
  for (double& one : x) one /= std::sqrt(square_norm);
  std::vector<double> square(m * m), factor(m * m), next(m * n);
  for (int k = 0; k < iterations; ++k) {
    const Rows<const double> of_x{x.data(), n}, of_square{square.data(), m}, of_factor{factor.data(), m};
    linalg::gemm<HostExec, double>(host, Transpose::no, Transpose::yes, rows, rows, columns, 1, of_x, of_x, 0,
                                   {square.data(), m});
    linalg::gemm<HostExec, double>(host, Transpose::no, Transpose::no, rows, rows, rows, 2.0315, of_square, of_square,
                                   0, {factor.data(), m});
    for (std::size_t i = 0; i < m * m; ++i) factor[i] += -4.7750 * square[i] + (i % (m + 1) == 0 ? 3.4445 : 0);
    linalg::gemm<HostExec, double>(host, Transpose::no, Transpose::no, rows, columns, rows, 1, of_factor, of_x, 0,
                                   {next.data(), n});
    std::swap(x, next);
  }
  return x;
}

/// Muon's Newton–Schulz of a matrix (rows, columns) that is no higher than wide.
template <class Exec>
void newton_schulz(const Exec& exec, const config::Input& input, const char* name, int rows, int columns,
                   const Measure& measure) {
  const double size = double(rows) * columns;
  const Precision precision = input.model.precision;
  const int iterations = input.muon.iterations;
  const auto m = make_array(exec, 0, static_cast<std::size_t>(size));
  const Vector<Exec, float> o("OneBit::bench::orthogonal", m.extent(0));
  std::vector<double> m_ref(m.extent(0));
  double square_norm = 0;
  for (std::size_t i = 0; i < m_ref.size(); ++i) {
    m_ref[i] = value_at(0, i);
    square_norm += m_ref[i] * m_ref[i];
  }
  const auto norm = copy_to_device<Exec>("OneBit::bench::square_norm", std::vector<double>{square_norm});
  linalg::NewtonSchulz<Exec> orthogonalise(iterations, m.extent(0), std::size_t(rows) * rows, precision);
  measure_products(
      measure, precision, name, extents({rows, columns}), floats(2 * size),
      iterations * (4.0 * size * rows + 2.0 * rows * rows * rows),
      [&] {
        orthogonalise(exec, rows, columns, {{m, norm, o}}, 1);
      },
      [&] {
        // An iteration multiplies the rounding errors at small singular values by up to 3.4.
        const double share = precision == Precision::fp32 ? 1e-4 : precision == Precision::tf32 ? 1e-2 : 0.1;
        const std::vector<double> right = newton_schulz_ref(m_ref, rows, columns, iterations);
        const auto host = on_host(o);
        return bench::compare(
            right.size(), [&](std::size_t i) { return host(i); }, [&](std::size_t i) { return right[i]; }, share);
      });
}

}  // namespace

template <class Exec>
void network_kernels(const Exec& exec, const config::Input& input, int ranks, const Measure& measure) {
  const auto& model = input.model;
  const int B = input.train.batch / (ranks * input.train.accumulation), T = model.sequence, N = B * T;
  const int H = model.hidden, F = model.feed_forward, V = model.vocabulary;
  const bool causal = model.architecture == Architecture::gpt;
  const int P = workload::predictions(input, B);
  linalg::MatrixProduct<Exec, float> product = workload::make_product<Exec>(input);
  const Network<Exec> network{exec, input.model.precision, product, measure};
  network.dense("qkv", N, H, 3 * H);
  network.attention(B, model.heads, T, H, causal);
  network.dense("attention_output", N, H, H);
  network.layer_norm(N, H);
  network.dense("feed_forward_in", N, H, F);
  network.gelu(N, F);
  network.dense("feed_forward_out", N, F, H);
  network.dense("head", P, H, V);
  network.softmax_loss(P, V);
  newton_schulz(exec, input, "newton_schulz_square", H, H, measure);
  newton_schulz(exec, input, "newton_schulz_wide", std::min(H, F), std::max(H, F), measure);
}

#define ONEBIT_INSTANTIATE(Exec) template void network_kernels(const Exec&, const config::Input&, int, const Measure&);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::bench
