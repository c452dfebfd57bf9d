#pragma once
/// \file gpu_product.hpp
/// Products in GPU memory: by cuBLAS, by rocBLAS, or without one of them by tiled_product.hpp. Whichever it is has
///   gpu_products(exec, count, op_a, op_b, m, n, k, α, a, b, β, c)   C (m, n) ← α op(A) (m, k) · op(B) (k, n) + β C
/// for `count` stacked A, B and C at once: for factors and C in float or double, and for factors in bfloat16
/// (std::uint16_t) with C in float.

#include "base/kokkos.hpp"

#if defined(KOKKOS_ENABLE_CUDA)
#include "linalg/vendor/cublas.hpp"
#elif defined(ONEBIT_ROCBLAS)
#include "linalg/vendor/rocblas.hpp"
#elif defined(ONEBIT_GPU)
#include "linalg/tiled_product.hpp"

namespace onebit::linalg {

inline constexpr char gpu_library[] = "own tiles (no library)";

template <class Real, class Term>
void gpu_products(const GpuExec& exec, int count, Transpose op_a, Transpose op_b, int m, int n, int k, Real alpha,
                  Stack<const Term> a, Stack<const Term> b, Real beta, Stack<Real> c) {
  TiledProduct<GpuExec, Real, Term>{op_a, op_b, m, n, k, alpha, beta, a, b, c, count}.run(exec);
}

}  // namespace onebit::linalg
#endif
