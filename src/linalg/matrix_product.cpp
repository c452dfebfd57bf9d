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

/// `count` matrices that stand one below the other.
template <class View>
Stack<typename View::value_type> stack_of(const View& matrix, int count) {
  return {{matrix.data(), matrix.extent(1)}, matrix.size() / count};
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

}  // namespace

template <class Exec>
class RoundedProduct {
public:
  using Matrix = MatrixRef<Exec, float>;
  using ConstMatrix = MatrixRef<Exec, const float>;

  explicit RoundedProduct(Precision precision) : m_precision(precision) {}

  void operator()(const Exec& exec, Transpose op_a, Transpose op_b, float alpha, const Factor<Exec, float>& a,
                  const Factor<Exec, float>& b, float beta, Matrix c) {
    const int m = c.extent_int(0), n = c.extent_int(1), k = a.matrix.extent_int(op_a == Transpose::yes ? 0 : 1);
    const Rows<float> result{c.data(), c.extent(1)};
    if constexpr (has_tf32<Exec>)
      if (m_precision == Precision::tf32)
        return tf32_product(exec, op_a, op_b, m, n, k, alpha, {a.matrix.data(), a.matrix.extent(1)},
                            {b.matrix.data(), b.matrix.extent(1)}, beta, result);
    const Rows<const std::uint16_t> left = rounded(exec, alpha, a, m_a), right = rounded(exec, 1, b, m_b);
    if constexpr (is_host<Exec>) {
      multiply_in_tiles(exec, "OneBit::linalg::bf16_product", m, n, k, beta, result,
                        RoundedTileProduct{op_a, op_b, left, right});
    } else {
      gpu_product(exec, op_a, op_b, m, n, k, 1.0f, left, right, beta, result);
    }
  }

  /// On a GPU.
  void stacked(const Exec& exec, int count, Transpose op_a, Transpose op_b, int k, const Factor<Exec, float>& a,
               const Factor<Exec, float>& b, Matrix c) {
    const int m = c.extent_int(0) / count, n = c.extent_int(1);
    if constexpr (has_tf32<Exec>)
      if (m_precision == Precision::tf32)
        return tf32_products(exec, count, op_a, op_b, m, n, k, 1, stack_of(a.matrix, count), stack_of(b.matrix, count),
                             0, stack_of(c, count));
    const auto rounded_stack = [&](const Factor<Exec, float>& factor, Factor<Exec, float>& own) {
      const Rows<const std::uint16_t> rows = rounded(exec, 1, factor, own);
      return Stack<const std::uint16_t>{rows, factor.matrix.extent(0) / count * rows.row_stride};
    };
    const auto left = rounded_stack(a, m_a), right = rounded_stack(b, m_b);
    gpu_products(exec, count, op_a, op_b, m, n, k, 1.0f, left, right, 0.0f, stack_of(c, count));
  }

  /// On the host.
  void symmetric(const Exec& exec, Transpose op_a, Transpose op_b, const Factor<Exec, float>& a,
                 const Factor<Exec, float>& b, Matrix c) {
    const Rows<const std::uint16_t> left = rounded(exec, 1, a, m_a), right = rounded(exec, 1, b, m_b);
    multiply_in_lower_tiles(exec, "OneBit::linalg::bf16_symmetric_product", c.extent_int(0),
                            a.matrix.extent_int(op_a == Transpose::yes ? 0 : 1), Rows<float>{c.data(), c.extent(1)},
                            RoundedTileProduct{op_a, op_b, left, right});
  }

  void prepare(const Exec& exec, float alpha, ConstMatrix matrix, Factor<Exec, float>& factor) const {
    factor.matrix = matrix;
    if (m_precision != Precision::bf16) return;
    reserve(alpha, factor);
    round_to_bfloat16(exec, alpha, matrix, Rows<std::uint16_t>{factor.rounded.data(), factor.row_stride});
  }

private:
  /// Makes room for the copy of the factor's matrix.
  void reserve(float alpha, Factor<Exec, float>& factor) const {
    factor.alpha = alpha;
    factor.row_stride = rounded_stride<Exec>(factor.matrix.extent(1));
    const std::size_t length = factor.matrix.extent(0) * factor.row_stride;
    if (factor.rounded.extent(0) < length)
      factor.rounded = make_uninitialized<Exec, std::uint16_t>("OneBit::linalg::rounded", length);
  }

  /// The copy of a factor; of one that has none with this α, `own` makes it.
  Rows<const std::uint16_t> rounded(const Exec& exec, float alpha, const Factor<Exec, float>& factor,
                                    Factor<Exec, float>& own) const {
    if (factor.rounded.extent(0) > 0 && factor.alpha == alpha) return {factor.rounded.data(), factor.row_stride};
    prepare(exec, alpha, factor.matrix, own);
    return {own.rounded.data(), own.row_stride};
  }

  Precision m_precision;
  Factor<Exec, float> m_a, m_b;  ///< scratch
};

template <class Exec, class Real>
MatrixProduct<Exec, Real>::MatrixProduct(Precision precision) : m_precision(precision) {
  const std::string reason = missing<Exec>(precision);
  if (!reason.empty())
    throw InputError("model.precision", to_string(precision) + " cannot be used: " + reason,
                     "set model.precision to fp32");
  if constexpr (std::is_same_v<Real, float>)
    if (precision != Precision::fp32) m_rounded = std::make_unique<RoundedProduct<Exec>>(precision);
}

template <class Exec, class Real>
MatrixProduct<Exec, Real>::~MatrixProduct() = default;
template <class Exec, class Real>
MatrixProduct<Exec, Real>::MatrixProduct(MatrixProduct&&) noexcept = default;

template <class Exec, class Real>
void MatrixProduct<Exec, Real>::operator()(const Exec& exec, Transpose op_a, Transpose op_b, Real alpha,
                                           const Factor& a, const Factor& b, Real beta, Matrix c) {
  if (c.size() == 0) return;
  const ConstMatrix left = a.matrix, right = b.matrix;
  const int k = left.extent_int(op_a == Transpose::yes ? 0 : 1);
  if constexpr (std::is_same_v<Real, float>)
    if (m_rounded && k > 0) return (*m_rounded)(exec, op_a, op_b, alpha, a, b, beta, c);
  gemm<Exec, Real>(exec, op_a, op_b, c.extent_int(0), c.extent_int(1), k, alpha, {left.data(), left.extent(1)},
                   {right.data(), right.extent(1)}, beta, {c.data(), c.extent(1)});
}

template <class Exec, class Real>
void MatrixProduct<Exec, Real>::stacked(const Exec& exec, int count, Transpose op_a, Transpose op_b, const Factor& a,
                                        const Factor& b, Matrix c) {
  const auto one_by_one = [&] {
    const int m = c.extent_int(0) / count;
    for (int i = 0; i < count; ++i)
      (*this)(exec, op_a, op_b, 1, a.one_of(count, i), b.one_of(count, i), 0,
              Matrix(c.data() + i * m * c.extent(1), m, c.extent(1)));
  };
  if constexpr (is_host<Exec>) {
    one_by_one();
  } else {
    const int k = op_a == Transpose::yes ? a.matrix.extent_int(0) / count : a.matrix.extent_int(1);
    if (count == 1 || k == 0 || c.size() == 0) return one_by_one();
    if constexpr (std::is_same_v<Real, float>)
      if (m_rounded) return m_rounded->stacked(exec, count, op_a, op_b, k, a, b, c);
    gpu_products(exec, count, op_a, op_b, c.extent_int(0) / count, c.extent_int(1), k, Real(1),
                 stack_of(a.matrix, count), stack_of(b.matrix, count), Real(0), stack_of(c, count));
  }
}

template <class Exec, class Real>
void MatrixProduct<Exec, Real>::symmetric(const Exec& exec, Transpose op_a, Transpose op_b, const Factor& a,
                                          const Factor& b, Matrix c, int count) {
  if constexpr (is_host<Exec>) {
    const int n = c.extent_int(0) / count;
    const auto one_product = [&](const Factor& left, const Factor& right, Matrix result) {
      const ConstMatrix of_a = left.matrix, of_b = right.matrix;
      const int k = of_a.extent_int(op_a == Transpose::yes ? 0 : 1);
      if (result.size() == 0) return;
      if constexpr (std::is_same_v<Real, float>)
        if (m_rounded && k > 0) return m_rounded->symmetric(exec, op_a, op_b, left, right, result);
      symmetric_gemm<Exec, Real>(exec, op_a, op_b, n, k, {of_a.data(), of_a.extent(1)}, {of_b.data(), of_b.extent(1)},
                                 {result.data(), result.extent(1)});
    };
    for (int i = 0; i < count; ++i)
      one_product(a.one_of(count, i), b.one_of(count, i), Matrix(c.data() + i * n * n, n, n));
  } else {
    stacked(exec, count, op_a, op_b, a, b, c);
  }
}

template <class Exec, class Real>
void MatrixProduct<Exec, Real>::prepare(const Exec& exec, ConstMatrix matrix, Factor& factor, Real alpha) const {
  factor.matrix = matrix;
  if constexpr (std::is_same_v<Real, float>)
    if (m_rounded) m_rounded->prepare(exec, alpha, matrix, factor);
}

#define ONEBIT_INSTANTIATE(Exec)                 \
  template std::string missing<Exec>(Precision); \
  template class MatrixProduct<Exec, float>;     \
  template class MatrixProduct<Exec, double>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::linalg
