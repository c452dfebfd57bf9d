/// \file cublas.cpp
/// See cublas.hpp. cuBLAS is column-major: row-major C = A B is its Cᵀ = Bᵀ Aᵀ.

#include "linalg/cublas.hpp"

#ifdef KOKKOS_ENABLE_CUDA
#include <cublas_v2.h>

#include <type_traits>

#include "base/error.hpp"

namespace onebit::linalg {
namespace {

void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw RunError("cuBLAS", std::string(call) + " failed with status " + std::to_string(status),
                   "check that the GPU has free memory and the driver is new enough");
}

/// The handle of this process, on the stream of the last instance that used it.
cublasHandle_t cublas(const Kokkos::Cuda& exec) {
  static const cublasHandle_t handle = [] {
    cublasHandle_t created = nullptr;
    check(cublasCreate(&created), "cublasCreate");
    return created;
  }();
  check(cublasSetStream(handle, exec.cuda_stream()), "cublasSetStream");
  return handle;
}

cublasOperation_t operation(Transpose op) { return op == Transpose::yes ? CUBLAS_OP_T : CUBLAS_OP_N; }

template <class Real>
cublasComputeType_t compute_type(Precision precision) {
  if constexpr (std::is_same_v<Real, double>) {
    return CUBLAS_COMPUTE_64F;
  } else {
    switch (precision) {
      case Precision::tf32:
        return CUBLAS_COMPUTE_32F_FAST_TF32;
      case Precision::bf16:
        return CUBLAS_COMPUTE_32F_FAST_16BF;
      case Precision::fp32:
        break;
    }
    return CUBLAS_COMPUTE_32F;
  }
}

template <class Real>
inline constexpr cudaDataType_t data_type = std::is_same_v<Real, double> ? CUDA_R_64F : CUDA_R_32F;

}  // namespace

template <class Real>
void gemm_cuda(const Kokkos::Cuda& exec, Precision precision, Transpose op_a, Transpose op_b, int m, int n, int k,
               Real alpha, Rows<const Real> a, Rows<const Real> b, Real beta, Rows<Real> c) {
  constexpr cudaDataType_t type = data_type<Real>;
  check(cublasGemmEx(cublas(exec), operation(op_b), operation(op_a), n, m, k, &alpha, b.data, type,
                     static_cast<int>(b.row_stride), a.data, type, static_cast<int>(a.row_stride), &beta, c.data, type,
                     static_cast<int>(c.row_stride), compute_type<Real>(precision), CUBLAS_GEMM_DEFAULT),
        "cublasGemmEx");
}

template <class Real>
void gemm_grid_cuda(const Kokkos::Cuda& exec, Precision precision, int outer, int inner, Transpose op_a, Transpose op_b,
                    int m, int n, int k, Real alpha, MatrixGrid<const Real> a, MatrixGrid<const Real> b, Real beta,
                    MatrixGrid<Real> c) {
  constexpr cudaDataType_t type = data_type<Real>;
  for (int o = 0; o < outer; ++o)
    check(cublasGemmStridedBatchedEx(
              cublas(exec), operation(op_b), operation(op_a), n, m, k, &alpha, b.data + o * b.outer_stride, type,
              static_cast<int>(b.row_stride), static_cast<long long>(b.inner_stride), a.data + o * a.outer_stride, type,
              static_cast<int>(a.row_stride), static_cast<long long>(a.inner_stride), &beta,
              c.data + o * c.outer_stride, type, static_cast<int>(c.row_stride), static_cast<long long>(c.inner_stride),
              inner, compute_type<Real>(precision), CUBLAS_GEMM_DEFAULT),
          "cublasGemmStridedBatchedEx");
}

#define ONEBIT_INSTANTIATE(Real)                                                                                       \
  template void gemm_cuda(const Kokkos::Cuda&, Precision, Transpose, Transpose, int, int, int, Real, Rows<const Real>, \
                          Rows<const Real>, Real, Rows<Real>);                                                         \
  template void gemm_grid_cuda(const Kokkos::Cuda&, Precision, int, int, Transpose, Transpose, int, int, int, Real,    \
                               MatrixGrid<const Real>, MatrixGrid<const Real>, Real, MatrixGrid<Real>);
ONEBIT_INSTANTIATE(float)
ONEBIT_INSTANTIATE(double)

}  // namespace onebit::linalg
#endif
