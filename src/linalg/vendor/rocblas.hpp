#pragma once
/// \file rocblas.hpp
/// Products by rocBLAS, which is column-major: row-major C = A B is column-major Cᵀ = Bᵀ Aᵀ.

#include <rocblas/rocblas.h>

#include <cstdint>
#include <string>
#include <type_traits>

#include "base/error.hpp"
#include "base/kokkos.hpp"
#include "linalg/gemm.hpp"

namespace onebit::linalg {

inline constexpr char gpu_library[] = "rocBLAS";

/// \throws RunError if a call of rocBLAS failed
inline void check(rocblas_status status, const std::string& what) {
  if (status != rocblas_status_success)
    throw RunError("rocBLAS", what + " failed: " + rocblas_status_to_string(status),
                   "check that the GPU has free memory and the driver is new enough");
}

inline rocblas_operation operation(Transpose op) {
  return op == Transpose::yes ? rocblas_operation_transpose : rocblas_operation_none;
}

/// The handle of this process, set to the stream of `exec`. Without atomics, so that results have the same bits.
inline rocblas_handle rocblas(const GpuExec& exec) {
  static const rocblas_handle handle = [] {
    rocblas_handle created = nullptr;
    check(rocblas_create_handle(&created), "rocblas_create_handle");
    check(rocblas_set_atomics_mode(created, rocblas_atomics_not_allowed), "rocblas_set_atomics_mode");
    return created;
  }();
  check(rocblas_set_stream(handle, stream_of(exec)), "rocblas_set_stream");
  return handle;
}

/// See gpu_product.hpp; for float and double.
template <class Real>
void gpu_products(const GpuExec& exec, int count, Transpose op_a, Transpose op_b, int m, int n, int k, Real alpha,
                  Stack<const Real> a, Stack<const Real> b, Real beta, Stack<Real> c) {
  const rocblas_int a_stride = static_cast<rocblas_int>(a.first.row_stride);
  const rocblas_int b_stride = static_cast<rocblas_int>(b.first.row_stride);
  const rocblas_int c_stride = static_cast<rocblas_int>(c.first.row_stride);
  const auto one = [&](auto product) {
    return product(rocblas(exec), operation(op_b), operation(op_a), n, m, k, &alpha, b.first.data, b_stride,
                   a.first.data, a_stride, &beta, c.first.data, c_stride);
  };
  const auto many = [&](auto products) {
    return products(rocblas(exec), operation(op_b), operation(op_a), n, m, k, &alpha, b.first.data, b_stride, b.step,
                    a.first.data, a_stride, a.step, &beta, c.first.data, c_stride, c.step, count);
  };
  if constexpr (std::is_same_v<Real, float>)
    check(count == 1 ? one(rocblas_sgemm) : many(rocblas_sgemm_strided_batched), "a product");
  else
    check(count == 1 ? one(rocblas_dgemm) : many(rocblas_dgemm_strided_batched), "a product");
}

/// Of factors in bfloat16.
inline void gpu_products(const GpuExec& exec, int count, Transpose op_a, Transpose op_b, int m, int n, int k,
                         float alpha, Stack<const std::uint16_t> a, Stack<const std::uint16_t> b, float beta,
                         Stack<float> c) {
  constexpr rocblas_datatype factor = rocblas_datatype_bf16_r, sum = rocblas_datatype_f32_r;
  const rocblas_int a_stride = static_cast<rocblas_int>(a.first.row_stride);
  const rocblas_int b_stride = static_cast<rocblas_int>(b.first.row_stride);
  const rocblas_int c_stride = static_cast<rocblas_int>(c.first.row_stride);
  const rocblas_status status =
      count == 1
          ? rocblas_gemm_ex(rocblas(exec), operation(op_b), operation(op_a), n, m, k, &alpha, b.first.data, factor,
                            b_stride, a.first.data, factor, a_stride, &beta, c.first.data, sum, c_stride, c.first.data,
                            sum, c_stride, sum, rocblas_gemm_algo_standard, 0, rocblas_gemm_flags_none)
          : rocblas_gemm_strided_batched_ex(rocblas(exec), operation(op_b), operation(op_a), n, m, k, &alpha,
                                            b.first.data, factor, b_stride, b.step, a.first.data, factor, a_stride,
                                            a.step, &beta, c.first.data, sum, c_stride, c.step, c.first.data, sum,
                                            c_stride, c.step, count, sum, rocblas_gemm_algo_standard, 0,
                                            rocblas_gemm_flags_none);
  check(status, "a product of rounded factors");
}

}  // namespace onebit::linalg
