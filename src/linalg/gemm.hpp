#pragma once
/// \file gemm.hpp
/// C ← α op(A) op(B) + β C on row-major matrices: one interface over the vendors' libraries.
///
/// On the host C is cut into tiles by its shape alone. Each tile is one single-threaded call of oneDNN or of a BLAS:
/// that of Kokkos Kernels, or the one that CMake finds. The bits of a threaded BLAS depend on the thread count, and
/// OneBit's must not. On a GPU it is what gpu_product.hpp chooses, on the stream of the instance.

#include <cstddef>
#include <string>

#include "base/kokkos.hpp"
#include "linalg/row_major.hpp"

namespace onebit::linalg {

/// C (m, n) ← α op(A) (m, k) · op(B) (k, n) + β C.
/// With β = 0, C need not be initialised. Instantiated for float and double.
template <class Exec, class Real>
void gemm(const Exec& exec, Transpose op_a, Transpose op_b, int m, int n, int k, Real alpha, Rows<const Real> a,
          Rows<const Real> b, Real beta, Rows<Real> c);

/// C (n, n) ← op(A) op(B) of k terms, which must be symmetric: the host computes little more than half of it.
template <class Exec, class Real>
void symmetric_gemm(const Exec& exec, Transpose op_a, Transpose op_b, int n, int k, Rows<const Real> a,
                    Rows<const Real> b, Rows<Real> c);

/// What multiplies on the GPU of this build, e.g. "cuBLAS"; empty in a build without GPUs.
std::string gpu_product_library();

/// gemm in host memory on the calling thread; needs a SingleThreadedBlas (blas.hpp) around the parallel region.
template <class Real>
void gemm_on_this_thread(Transpose op_a, Transpose op_b, int m, int n, int k, Real alpha, Rows<const Real> a,
                         Rows<const Real> b, Real beta, Rows<Real> c);

}  // namespace onebit::linalg
