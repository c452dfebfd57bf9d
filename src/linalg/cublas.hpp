#pragma once
/// \file cublas.hpp
/// The cuBLAS handle of this process and its errors; for CUDA builds only.

#include "base/kokkos.hpp"

#ifdef KOKKOS_ENABLE_CUDA
#include <cublas_v2.h>

#include <string>

#include "base/error.hpp"
#include "linalg/gemm.hpp"

namespace onebit::linalg {

/// \throws RunError if a call of cuBLAS failed
inline void check(cublasStatus_t status, const std::string& what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw RunError("cuBLAS", what + " failed with status " + std::to_string(status),
                   "check that the GPU has free memory and the driver is new enough");
}

inline cublasOperation_t operation(Transpose op) { return op == Transpose::yes ? CUBLAS_OP_T : CUBLAS_OP_N; }

/// The handle, set to the stream of `exec`.
inline cublasHandle_t cublas(const Kokkos::Cuda& exec) {
  static const cublasHandle_t handle = [] {
    cublasHandle_t created = nullptr;
    check(cublasCreate(&created), "cublasCreate");
    return created;
  }();
  check(cublasSetStream(handle, exec.cuda_stream()), "cublasSetStream");
  return handle;
}

}  // namespace onebit::linalg
#endif
