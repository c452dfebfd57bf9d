/// \file matrix_product.cpp
/// See matrix_product.hpp. On the host oneDNN multiplies rounded factors, in the tiles of gemm.hpp.

#include "linalg/matrix_product.hpp"

#include <string_view>
#include <type_traits>

#include "base/device/parallel.hpp"
#include "base/error.hpp"
#include "base/sixteen_bits.hpp"
#include "linalg/gpu_product.hpp"
#include "linalg/tiles.hpp"
#include "linalg/vendor/onednn.hpp"

namespace onebit::linalg {

namespace {
/// Whether `gpu_product.hpp` has products of factors in tf32.
template <class Exec>
constexpr bool has_tf32 = !is_host<Exec> && std::string_view(BackendName<Exec>::value) == "cuda";
}  // namespace

template <class Exec>
std::string missing(Precision precision) {
  if (precision == Precision::automatic) return "a run chooses another one first";
  if (precision == Precision::tf32) return has_tf32<Exec> ? "" : "only backend cuda has it";
  if (precision == Precision::fp32 || !is_host<Exec>) return "";
  if (onednn_version().empty()) return "this build has no oneDNN";
  return onednn_has_bfloat16() ? "" : "this processor has no bfloat16 products (AVX512_BF16)";
}

namespace {

/// Elements that a thread rounds: on a device 16 bytes of the copy.
template <class Exec>
constexpr std::size_t rounded_at_once = is_host<Exec> ? block_length : 8;

/// Elements between the rows of a rounded copy: on a GPU a multiple of 16 bytes, which its products read at once.
template <class Exec>
std::size_t rounded_stride(std::size_t columns) {
  constexpr std::size_t aligned = is_host<Exec> ? 1 : rounded_at_once<Exec>;
  return (columns + aligned - 1) / aligned * aligned;
}

/// What one load or one store of a device moves.
struct alignas(16) FourFloats {
  float values[4];
};
struct alignas(16) EightRounded {
  std::uint16_t values[8];
};

/// rounded(i) ← α values(i) in bfloat16 for i < length. \param aligned values and rounded begin at multiples of 16
/// bytes
template <class Exec>
KOKKOS_FORCEINLINE_FUNCTION void round_some(bool aligned, float alpha, const float* values, std::size_t length,
                                            std::uint16_t* rounded) {
  if constexpr (!is_host<Exec>)
    if (aligned && length == rounded_at_once<Exec>) {
      const FourFloats low = *reinterpret_cast<const FourFloats*>(values);
      const FourFloats high = *reinterpret_cast<const FourFloats*>(values + 4);
      EightRounded eight;
      ONEBIT_UNROLL
      for (int i = 0; i < 4; ++i) {
        eight.values[i] = Bfloat16::nearest(alpha * low.values[i]);
        eight.values[i + 4] = Bfloat16::nearest(alpha * high.values[i]);
      }
      *reinterpret_cast<EightRounded*>(rounded) = eight;
      return;
    }
  for (std::size_t i = 0; i < length; ++i) rounded[i] = Bfloat16::nearest(alpha * values[i]);
}

/// copy(row, column) ← α matrix(row, column) in bfloat16.
template <class Exec>
void round_to_bfloat16(const Exec& exec, float alpha, MatrixRef<Exec, const float> matrix, Rows<std::uint16_t> copy) {
  constexpr std::size_t at_once = rounded_at_once<Exec>;
  const bool whole = matrix.extent(0) == 1 || copy.row_stride == matrix.extent(1);  // all rows are one
  const std::size_t rows = whole ? 1 : matrix.extent(0), columns = whole ? matrix.size() : matrix.extent(1);
  const std::size_t ranges = (columns + at_once - 1) / at_once;
  const float* const values = matrix.data();
  const auto is_aligned = [](const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; };
  const bool aligned = is_aligned(values) && is_aligned(copy.data) && (whole || columns % 4 == 0);
  Kokkos::parallel_for(
      "OneBit::linalg::round_to_bfloat16",
      light(Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::size_t>>(exec, 0, rows * ranges)),
      KOKKOS_LAMBDA(std::size_t number) {
        const std::size_t row = number / ranges, begin = number % ranges * at_once;
        const std::size_t length = columns - begin < at_once ? columns - begin : at_once;
        round_some<Exec>(aligned, alpha, values + row * columns + begin, length,
                         copy.data + row * copy.row_stride + begin);
      });
}

/// Makes the factor's copy of α matrix, in its memory if that is long enough.
template <class Exec>
void make_copy(const Exec& exec, float alpha, Factor<Exec, float>& factor) {
  factor.alpha = alpha;
  factor.row_stride = rounded_stride<Exec>(factor.matrix.extent(1));
  const std::size_t length = factor.matrix.extent(0) * factor.row_stride;
  if (factor.rounded.extent(0) < length)
    factor.rounded = make_uninitialized<Exec, std::uint16_t>("OneBit::linalg::rounded", length);
  round_to_bfloat16(exec, alpha, factor.matrix, Rows<std::uint16_t>{factor.rounded.data(), factor.row_stride});
}

template <class View>
Rows<typename View::value_type> rows_of(const View& matrix) {
  return {matrix.data(), matrix.extent(1)};
}

/// `count` matrices that stand one below the other.
template <class View>
Stack<typename View::value_type> stack_of(const View& matrix, int count) {
  return {rows_of(matrix), matrix.size() / count};
}

/// The copies of `count` factors, likewise; `own` makes those of factors that have none with this α.
template <class Exec>
Stack<const std::uint16_t> rounded(const Exec& exec, int count, float alpha, const Factor<Exec, float>& factor,
                                   Factor<Exec, float>& own) {
  const bool has_copy = factor.rounded.extent(0) > 0 && factor.alpha == alpha;
  if (!has_copy) {
    own.matrix = factor.matrix;
    make_copy(exec, alpha, own);
  }
  const Factor<Exec, float>& of = has_copy ? factor : own;
  return {{of.rounded.data(), of.row_stride}, factor.matrix.extent(0) / count * of.row_stride};
}

/// A tile of op(a) op(b), on the host.
struct RoundedTileProduct {
  Transpose op_a, op_b;
  Rows<const std::uint16_t> a, b;

  void operator()(const Tile& tile, float old, Rows<float> to) const {
    onednn_product(op_a, op_b, tile.height, tile.width, tile.depth, part_from(a, op_a, tile.i, tile.l),
                   part_from(b, op_b, tile.l, tile.j), old, to);
  }
};

template <class Exec, class Real>
int terms(Transpose op_a, const Factor<Exec, Real>& a) {
  return a.matrix.extent_int(op_a == Transpose::yes ? 0 : 1);
}

}  // namespace

template <class Exec, class Real>
MatrixProduct<Exec, Real>::MatrixProduct(Precision precision) : m_precision(precision) {
  const std::string reason = missing<Exec>(precision);
  if (!reason.empty())
    throw InputError("model.precision", to_string(precision) + " cannot be used: " + reason,
                     "set model.precision to fp32");
}

template <class Exec, class Real>
void MatrixProduct<Exec, Real>::operator()(const Exec& exec, Transpose op_a, Transpose op_b, Real alpha,
                                           const Factor& a, const Factor& b, Real beta, Matrix c) {
  if constexpr (is_host<Exec>) {
    const int m = c.extent_int(0), n = c.extent_int(1), k = terms(op_a, a);
    const Rows<Real> to = rows_of(c);
    if constexpr (std::is_same_v<Real, float>)
      if (m_precision == Precision::bf16 && k > 0 && c.size() > 0)
        return multiply_in_tiles(
            exec, "OneBit::linalg::bf16_product", m, n, k, beta, to,
            RoundedTileProduct{op_a, op_b, rounded(exec, 1, alpha, a, m_a).first, rounded(exec, 1, 1, b, m_b).first});
    gemm<Exec, Real>(exec, op_a, op_b, m, n, k, alpha, rows_of(a.matrix), rows_of(b.matrix), beta, to);
  } else {
    multiply_together(exec, 1, op_a, op_b, alpha, a, b, beta, c);
  }
}

template <class Exec, class Real>
void MatrixProduct<Exec, Real>::multiply_together(const Exec& exec, int count, Transpose op_a, Transpose op_b,
                                                  Real alpha, const Factor& a, const Factor& b, Real beta, Matrix c) {
  if constexpr (!is_host<Exec>) {
    const int m = c.extent_int(0) / count, n = c.extent_int(1);
    const int k = terms(op_a, a) / (op_a == Transpose::yes ? count : 1);
    const auto left = stack_of(a.matrix, count), right = stack_of(b.matrix, count);
    const auto to = stack_of(c, count);
    if (c.size() == 0) return;
    if (k == 0)  // libraries treat that in different ways
      return gemm<Exec, Real>(exec, op_a, op_b, c.extent_int(0), n, k, alpha, left.first, right.first, beta, to.first);
    if constexpr (std::is_same_v<Real, float>) {
      if (m_precision == Precision::bf16)
        return gpu_products(exec, count, op_a, op_b, m, n, k, 1.0f, rounded(exec, count, alpha, a, m_a),
                            rounded(exec, count, 1, b, m_b), beta, to);
      if constexpr (has_tf32<Exec>)
        if (m_precision == Precision::tf32)
          return tf32_products(exec, count, op_a, op_b, m, n, k, alpha, left, right, beta, to);
    }
    gpu_products(exec, count, op_a, op_b, m, n, k, alpha, left, right, beta, to);
  }
}

template <class Exec, class Real>
void MatrixProduct<Exec, Real>::stacked(const Exec& exec, int count, Transpose op_a, Transpose op_b, const Factor& a,
                                        const Factor& b, Matrix c) {
  if constexpr (is_host<Exec>) {
    const int m = c.extent_int(0) / count;
    for (int i = 0; i < count; ++i)
      (*this)(exec, op_a, op_b, 1, a.one_of(count, i), b.one_of(count, i), 0,
              Matrix(c.data() + i * m * c.extent(1), m, c.extent(1)));
  } else {
    multiply_together(exec, count, op_a, op_b, 1, a, b, 0, c);
  }
}

template <class Exec, class Real>
void MatrixProduct<Exec, Real>::symmetric(const Exec& exec, Transpose op_a, Transpose op_b, const Factor& a,
                                          const Factor& b, Matrix c, int count) {
  if constexpr (is_host<Exec>) {
    const int n = c.extent_int(1);
    for (int i = 0; i < count; ++i) {
      const Factor left = a.one_of(count, i), right = b.one_of(count, i);
      const Rows<Real> to{c.data() + i * n * n, c.extent(1)};
      const int k = terms(op_a, left);
      if constexpr (std::is_same_v<Real, float>)
        if (m_precision == Precision::bf16 && k > 0 && n > 0) {
          const RoundedTileProduct product{op_a, op_b, rounded(exec, 1, 1, left, m_a).first,
                                           rounded(exec, 1, 1, right, m_b).first};
          multiply_in_lower_tiles(exec, "OneBit::linalg::bf16_symmetric_product", n, k, to, product);
          continue;
        }
      symmetric_gemm<Exec, Real>(exec, op_a, op_b, n, k, rows_of(left.matrix), rows_of(right.matrix), to);
    }
  } else {
    multiply_together(exec, count, op_a, op_b, 1, a, b, 0, c);
  }
}

template <class Exec, class Real>
void MatrixProduct<Exec, Real>::prepare(const Exec& exec, ConstMatrix matrix, Factor& factor, Real alpha) const {
  factor.matrix = matrix;
  if constexpr (std::is_same_v<Real, float>)
    if (m_precision == Precision::bf16) make_copy(exec, alpha, factor);
}

#define ONEBIT_INSTANTIATE(Exec)                 \
  template std::string missing<Exec>(Precision); \
  template class MatrixProduct<Exec, float>;     \
  template class MatrixProduct<Exec, double>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::linalg
