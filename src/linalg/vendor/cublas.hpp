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

/// For float and double.
template <class Real>
void gpu_product(const GpuExec& exec, Transpose op_a, Transpose op_b, int m, int n, int k, Real alpha,
                 Rows<const Real> a, Rows<const Real> b, Real beta, Rows<Real> c) {
  const auto call = [&](auto product) {
    return product(cublas(exec), operation(op_b), operation(op_a), n, m, k, &alpha, b.data,
                   static_cast<int>(b.row_stride), a.data, static_cast<int>(a.row_stride), &beta, c.data,
                   static_cast<int>(c.row_stride));
  };
  if constexpr (std::is_same_v<Real, float>)
    check(call(cublasSgemm), "a product");
  else
    check(call(cublasDgemm), "a product");
}

/// \param type    of the factors
/// \param compute how they are multiplied
template <class Term>
void rounded_product(const GpuExec& exec, cudaDataType_t type, cublasComputeType_t compute, Transpose op_a,
                     Transpose op_b, int m, int n, int k, float alpha, Rows<const Term> a, Rows<const Term> b,
                     float beta, Rows<float> c) {
  check(cublasGemmEx(cublas(exec), operation(op_b), operation(op_a), n, m, k, &alpha, b.data, type,
                     static_cast<int>(b.row_stride), a.data, type, static_cast<int>(a.row_stride), &beta, c.data,
                     CUDA_R_32F, static_cast<int>(c.row_stride), compute, CUBLAS_GEMM_DEFAULT),
        "a product of rounded factors");
}

/// Many products (gpu_product.hpp), for float and double.
template <class Real>
void gpu_products(const GpuExec& exec, int count, Transpose op_a, Transpose op_b, int m, int n, int k, Real alpha,
                  Stack<const Real> a, Stack<const Real> b, Real beta, Stack<Real> c) {
  const auto call = [&](auto products) {
    return products(cublas(exec), operation(op_b), operation(op_a), n, m, k, &alpha, b.first.data,
                    static_cast<int>(b.first.row_stride), b.step, a.first.data, static_cast<int>(a.first.row_stride),
                    a.step, &beta, c.first.data, static_cast<int>(c.first.row_stride), c.step, count);
  };
  if constexpr (std::is_same_v<Real, float>)
    check(call(cublasSgemmStridedBatched), "products");
  else
    check(call(cublasDgemmStridedBatched), "products");
}

/// \param type    of the factors
/// \param compute how they are multiplied
template <class Term>
void rounded_products(const GpuExec& exec, cudaDataType_t type, cublasComputeType_t compute, int count, Transpose op_a,
                      Transpose op_b, int m, int n, int k, float alpha, Stack<const Term> a, Stack<const Term> b,
                      float beta, Stack<float> c) {
  check(cublasGemmStridedBatchedEx(cublas(exec), operation(op_b), operation(op_a), n, m, k, &alpha, b.first.data, type,
                                   static_cast<int>(b.first.row_stride), b.step, a.first.data, type,
                                   static_cast<int>(a.first.row_stride), a.step, &beta, c.first.data, CUDA_R_32F,
                                   static_cast<int>(c.first.row_stride), c.step, count, compute, CUBLAS_GEMM_DEFAULT),
        "products of rounded factors");
}

/// Of factors in bfloat16.
inline void gpu_product(const GpuExec& exec, Transpose op_a, Transpose op_b, int m, int n, int k, float alpha,
                        Rows<const std::uint16_t> a, Rows<const std::uint16_t> b, float beta, Rows<float> c) {
  rounded_product(exec, CUDA_R_16BF, CUBLAS_COMPUTE_32F, op_a, op_b, m, n, k, alpha, a, b, beta, c);
}

inline void gpu_products(const GpuExec& exec, int count, Transpose op_a, Transpose op_b, int m, int n, int k,
                         float alpha, Stack<const std::uint16_t> a, Stack<const std::uint16_t> b, float beta,
                         Stack<float> c) {
  rounded_products(exec, CUDA_R_16BF, CUBLAS_COMPUTE_32F, count, op_a, op_b, m, n, k, alpha, a, b, beta, c);
}

/// Of float factors that cuBLAS rounds to tf32.
inline void tf32_product(const GpuExec& exec, Transpose op_a, Transpose op_b, int m, int n, int k, float alpha,
                         Rows<const float> a, Rows<const float> b, float beta, Rows<float> c) {
  rounded_product(exec, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32, op_a, op_b, m, n, k, alpha, a, b, beta, c);
}
inline void tf32_products(const GpuExec& exec, int count, Transpose op_a, Transpose op_b, int m, int n, int k,
                          float alpha, Stack<const float> a, Stack<const float> b, float beta, Stack<float> c) {
  rounded_products(exec, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32, count, op_a, op_b, m, n, k, alpha, a, b, beta, c);
}

}  // namespace onebit::linalg
