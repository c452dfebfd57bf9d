/// \file matrix_product.cpp
/// See matrix_product.hpp. On the host oneDNN multiplies rounded factors, in the tiles of gemm.hpp.

#include "linalg/matrix_product.hpp"

#include <type_traits>

#include "base/error.hpp"
#include "base/parallel.hpp"
#include "linalg/cublas.hpp"
#include "linalg/onednn.hpp"
#include "linalg/tiles.hpp"

namespace onebit::linalg {

template <class Exec>
std::string missing(Precision precision) {
  if (precision == Precision::automatic) return "a run chooses another one first";
  if (precision == Precision::fp32 || !is_host<Exec>) return "";
  if (precision == Precision::tf32) return "only GPUs have it";
  if (onednn_version().empty()) return "this build has no oneDNN";
  return onednn_has_bfloat16() ? "" : "this processor has no bfloat16 products (AVX512_BF16)";
}

namespace {

/// rounded(i) ← α values(i) in bfloat16.
template <class Exec>
void round_to_bfloat16(const Exec& exec, float alpha, const float* values, std::size_t length,
                       const Vector<Exec, std::uint16_t>& rounded) {
  for_each(
      exec, "OneBit::linalg::round_to_bfloat16", length,
      KOKKOS_LAMBDA(std::size_t i) { rounded(i) = to_bfloat16(alpha * values[i]); });
}

/// c ← op(a) op(b) + β c.
template <class Exec>
void product_on_host(const Exec& exec, Transpose op_a, Transpose op_b, int m, int n, int k, Rows<const std::uint16_t> a,
                     Rows<const std::uint16_t> b, float beta, Rows<float> c) {
  const auto multiply = [=](const Tile& tile, float old, Rows<float> to) {
    onednn_product(op_a, op_b, tile.height, tile.width, tile.depth, part_from(a, op_a, tile.i, tile.l),
                   part_from(b, op_b, tile.l, tile.j), old, to);
  };
  multiply_in_tiles(exec, "OneBit::linalg::bf16_product", m, n, k, beta, c, multiply);
}

#ifdef KOKKOS_ENABLE_CUDA
/// c (m, n) ← α op(a) (m, k) · op(b) (k, n) + β c, by cuBLAS. Row-major C = A B is column-major Cᵀ = Bᵀ Aᵀ.
/// \param type    of the factors
/// \param compute how they are multiplied
void product_on_cuda(const Kokkos::Cuda& exec, cudaDataType_t type, cublasComputeType_t compute, Transpose op_a,
                     Transpose op_b, int m, int n, int k, float alpha, const void* a, std::size_t a_stride,
                     const void* b, std::size_t b_stride, float beta, float* c) {
  const auto operation = [](Transpose op) { return op == Transpose::yes ? CUBLAS_OP_T : CUBLAS_OP_N; };
  check(
      cublasGemmEx(cublas(exec), operation(op_b), operation(op_a), n, m, k, &alpha, b, type, static_cast<int>(b_stride),
                   a, type, static_cast<int>(a_stride), &beta, c, CUDA_R_32F, n, compute, CUBLAS_GEMM_DEFAULT),
      "a product of rounded factors");
}
#endif

}  // namespace

template <class Exec>
class RoundedProduct {
public:
  using Matrix = MatrixRef<Exec, float>;
  using ConstMatrix = MatrixRef<Exec, const float>;

  explicit RoundedProduct(Precision precision) : m_precision(precision) {}

  void operator()(const Exec& exec, Transpose op_a, Transpose op_b, float alpha, ConstMatrix a, ConstMatrix b,
                  float beta, Matrix c) {
    const int m = c.extent_int(0), n = c.extent_int(1), k = a.extent_int(op_a == Transpose::yes ? 0 : 1);
#ifdef KOKKOS_ENABLE_CUDA
    if constexpr (!is_host<Exec>)
      if (m_precision == Precision::tf32)
        return product_on_cuda(exec, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32, op_a, op_b, m, n, k, alpha, a.data(),
                               a.extent(1), b.data(), b.extent(1), beta, c.data());
#endif
    const Rows<const std::uint16_t> left = rounded(exec, alpha, a, m_a), right = rounded(exec, 1, b, m_b);
    if constexpr (is_host<Exec>) {
      product_on_host(exec, op_a, op_b, m, n, k, left, right, beta, {c.data(), c.extent(1)});
    } else {
#ifdef KOKKOS_ENABLE_CUDA
      product_on_cuda(exec, CUDA_R_16BF, CUBLAS_COMPUTE_32F, op_a, op_b, m, n, k, 1, left.data, left.row_stride,
                      right.data, right.row_stride, beta, c.data());
#endif
    }
  }

private:
  static Rows<const std::uint16_t> rounded(const Exec& exec, float alpha, ConstMatrix matrix,
                                           Vector<Exec, std::uint16_t>& memory) {
    if (memory.extent(0) < matrix.size())
      memory = make_uninitialized<Exec, std::uint16_t>("OneBit::linalg::rounded", matrix.size());
    round_to_bfloat16(exec, alpha, matrix.data(), matrix.size(), memory);
    return {memory.data(), matrix.extent(1)};
  }

  Precision m_precision;
  Vector<Exec, std::uint16_t> m_a, m_b;  ///< factors in bfloat16
};

template <class Exec, class Real>
MatrixProduct<Exec, Real>::MatrixProduct(Precision precision) {
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
void MatrixProduct<Exec, Real>::operator()(const Exec& exec, Transpose op_a, Transpose op_b, Real alpha, ConstMatrix a,
                                           ConstMatrix b, Real beta, Matrix c) {
  if (c.size() == 0) return;
  if constexpr (std::is_same_v<Real, float>)
    if (m_rounded) return (*m_rounded)(exec, op_a, op_b, alpha, a, b, beta, c);
  gemm<Exec, Real>(exec, op_a, op_b, c.extent_int(0), c.extent_int(1), a.extent_int(op_a == Transpose::yes ? 0 : 1),
                   alpha, {a.data(), a.extent(1)}, {b.data(), b.extent(1)}, beta, {c.data(), c.extent(1)});
}

#define ONEBIT_INSTANTIATE(Exec)                 \
  template std::string missing<Exec>(Precision); \
  template class MatrixProduct<Exec, float>;     \
  template class MatrixProduct<Exec, double>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::linalg
