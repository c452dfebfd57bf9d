#pragma once
/// \file cublas.hpp
/// The products of gemm.hpp on a GPU: cuBLAS, on the stream of the instance. In builds with CUDA alone.

#include "linalg/gemm.hpp"

#ifdef KOKKOS_ENABLE_CUDA
namespace onebit::linalg {

/// How products of floats are formed. Matrices are float in memory and sums are in single precision in any case; `tf32`
/// and `bf16` round what is multiplied to 10 and 7 bits of mantissa on the way into the tensor cores (cuBLAS's compute
/// types CUBLAS_COMPUTE_32F_FAST_TF32 and _FAST_16BF, where it has a kernel for the shape). Doubles know `fp32` alone,
/// which leaves them doubles.
enum class Precision { fp32, tf32, bf16 };

/// As `gemm`. \throws RunError where cuBLAS fails
template <class Real>
void gemm_cuda(const Kokkos::Cuda& exec, Precision precision, Transpose op_a, Transpose op_b, int m, int n, int k,
               Real alpha, Rows<const Real> a, Rows<const Real> b, Real beta, Rows<Real> c);

/// As `gemm_grid`: a strided batch for each o. \throws RunError where cuBLAS fails
template <class Real>
void gemm_grid_cuda(const Kokkos::Cuda& exec, Precision precision, int outer, int inner, Transpose op_a, Transpose op_b,
                    int m, int n, int k, Real alpha, MatrixGrid<const Real> a, MatrixGrid<const Real> b, Real beta,
                    MatrixGrid<Real> c);

}  // namespace onebit::linalg
#endif
