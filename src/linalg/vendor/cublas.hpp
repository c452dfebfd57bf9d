#pragma once
/// \file cublas.hpp
/// Products by cuBLAS, which is column-major: row-major C = A B is column-major Cᵀ = Bᵀ Aᵀ.

#include <cublas_v2.h>

#include <cstdint>
#include <string>
#include <type_traits>

#include "base/error.hpp"
#include "base/kokkos.hpp"
#include "linalg/gemm.hpp"

namespace onebit::linalg {

inline constexpr char gpu_library[] = "cuBLAS";

/// \throws RunError if a call of cuBLAS failed
inline void check(cublasStatus_t status, const std::string& what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw RunError("cuBLAS", what + " failed with status " + std::to_string(status),
                   "check that the GPU has free memory and the driver is new enough");
}

inline cublasOperation_t operation(Transpose op) { return op == Transpose::yes ? CUBLAS_OP_T : CUBLAS_OP_N; }

/// The handle of this process, set to the stream of `exec`.
inline cublasHandle_t cublas(const GpuExec& exec) {
  static const cublasHandle_t handle = [] {
    cublasHandle_t created = nullptr;
    check(cublasCreate(&created), "cublasCreate");
    return created;
  }();
  check(cublasSetStream(handle, stream_of(exec)), "cublasSetStream");
  return handle;
}

/// See gpu_product.hpp; for float and double.
template <class Real>
void gpu_products(const GpuExec& exec, int count, Transpose op_a, Transpose op_b, int m, int n, int k, Real alpha,
                  Stack<const Real> a, Stack<const Real> b, Real beta, Stack<Real> c) {
  const int a_stride = static_cast<int>(a.first.row_stride), b_stride = static_cast<int>(b.first.row_stride);
  const int c_stride = static_cast<int>(c.first.row_stride);
  const auto one = [&](auto product) {
    return product(cublas(exec), operation(op_b), operation(op_a), n, m, k, &alpha, b.first.data, b_stride,
                   a.first.data, a_stride, &beta, c.first.data, c_stride);
  };
  const auto many = [&](auto products) {
    return products(cublas(exec), operation(op_b), operation(op_a), n, m, k, &alpha, b.first.data, b_stride, b.step,
                    a.first.data, a_stride, a.step, &beta, c.first.data, c_stride, c.step, count);
  };
  if constexpr (std::is_same_v<Real, float>)
    check(count == 1 ? one(cublasSgemm) : many(cublasSgemmStridedBatched), "a product");
  else
    check(count == 1 ? one(cublasDgemm) : many(cublasDgemmStridedBatched), "a product");
}

/// \param type    of the factors
/// \param compute how they are multiplied
template <class Term>
void rounded_products(const GpuExec& exec, cudaDataType_t type, cublasComputeType_t compute, int count, Transpose op_a,
                      Transpose op_b, int m, int n, int k, float alpha, Stack<const Term> a, Stack<const Term> b,
                      float beta, Stack<float> c) {
  const int a_stride = static_cast<int>(a.first.row_stride), b_stride = static_cast<int>(b.first.row_stride);
  const int c_stride = static_cast<int>(c.first.row_stride);
  const cublasStatus_t status =
      count == 1
          ? cublasGemmEx(cublas(exec), operation(op_b), operation(op_a), n, m, k, &alpha, b.first.data, type, b_stride,
                         a.first.data, type, a_stride, &beta, c.first.data, CUDA_R_32F, c_stride, compute,
                         CUBLAS_GEMM_DEFAULT)
          : cublasGemmStridedBatchedEx(cublas(exec), operation(op_b), operation(op_a), n, m, k, &alpha, b.first.data,
                                       type, b_stride, b.step, a.first.data, type, a_stride, a.step, &beta,
                                       c.first.data, CUDA_R_32F, c_stride, c.step, count, compute, CUBLAS_GEMM_DEFAULT);
  check(status, "a product of rounded factors");
}

/// Of factors in bfloat16.
inline void gpu_products(const GpuExec& exec, int count, Transpose op_a, Transpose op_b, int m, int n, int k,
                         float alpha, Stack<const std::uint16_t> a, Stack<const std::uint16_t> b, float beta,
                         Stack<float> c) {
  rounded_products(exec, CUDA_R_16BF, CUBLAS_COMPUTE_32F, count, op_a, op_b, m, n, k, alpha, a, b, beta, c);
}

/// Of float factors that cuBLAS rounds to tf32.
inline void tf32_products(const GpuExec& exec, int count, Transpose op_a, Transpose op_b, int m, int n, int k,
                          float alpha, Stack<const float> a, Stack<const float> b, float beta, Stack<float> c) {
  rounded_products(exec, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32, count, op_a, op_b, m, n, k, alpha, a, b, beta, c);
}

}  // namespace onebit::linalg
