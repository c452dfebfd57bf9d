#include "linalg/gemm.hpp"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "base/device/parallel.hpp"
#include "linalg/blas.hpp"
#include "linalg/gpu_product.hpp"
#include "linalg/tiles.hpp"
#include "linalg/vendor/onednn.hpp"
#ifdef ONEBIT_KOKKOS_KERNELS
#include <KokkosBlas_Host_tpl.hpp>
#else
extern "C" {
void sgemm_(const char* op_a, const char* op_b, const int* m, const int* n, const int* k, const float* alpha,
            const float* a, const int* lda, const float* b, const int* ldb, const float* beta, float* c,
            const int* ldc);
void dgemm_(const char* op_a, const char* op_b, const int* m, const int* n, const int* k, const double* alpha,
            const double* a, const int* lda, const double* b, const int* ldb, const double* beta, double* c,
            const int* ldc);
}
#endif

namespace onebit::linalg {

template <class Real>
void gemm_on_this_thread(Transpose op_a, Transpose op_b, int m, int n, int k, Real alpha, Rows<const Real> a,
                         Rows<const Real> b, Real beta, Rows<Real> c) {
  if constexpr (std::is_same_v<Real, float>)
    if (onednn_is_faster()) return onednn_product(op_a, op_b, m, n, k, alpha, a, b, beta, c);
  // Row-major C = A B is column-major Cᵀ = Bᵀ Aᵀ.
  const auto letter = [](Transpose op) { return op == Transpose::yes ? 'T' : 'N'; };
  const char first = letter(op_b), second = letter(op_a);
  const int ldb = static_cast<int>(b.row_stride), lda = static_cast<int>(a.row_stride),
            ldc = static_cast<int>(c.row_stride);
#ifdef ONEBIT_KOKKOS_KERNELS
  KokkosBlas::Impl::HostBlas<Real>::gemm(first, second, n, m, k, alpha, b.data, ldb, a.data, lda, beta, c.data, ldc);
#else
  const auto call = [&](auto product) {
    product(&first, &second, &n, &m, &k, &alpha, b.data, &ldb, a.data, &lda, &beta, c.data, &ldc);
  };
  if constexpr (std::is_same_v<Real, float>)
    call(sgemm_);
  else
    call(dgemm_);
#endif
}

namespace {

/// The (k, height) tile of Aᵀ, or a copy of it if its row stride is a multiple of the page size. Such rows share a few
/// sets of a cache, so a library that packs some columns of all rows at a time would fetch every line many times.
template <class Real>
Rows<const Real> without_set_conflicts(Rows<const Real> tile, int k, int height) {
  constexpr std::size_t page = 4096, line = 64 / sizeof(Real);
  if (tile.row_stride * sizeof(Real) % page != 0) return tile;
  thread_local std::vector<Real> copy;
  const std::size_t row_stride = height + line;
  copy.resize(std::max(copy.size(), k * row_stride));
  for (int l = 0; l < k; ++l) std::copy_n(tile.data + l * tile.row_stride, height, copy.data() + l * row_stride);
  return {copy.data(), row_stride};
}

/// A tile of α op(A) op(B).
template <class Real>
struct TileProduct {
  Transpose op_a, op_b;
  Real alpha;
  Rows<const Real> a, b;

  void operator()(const Tile& tile, Real old, Rows<Real> to) const {
    Rows<const Real> left = part_from(a, op_a, tile.i, tile.l);
    if (op_a == Transpose::yes) left = without_set_conflicts(left, tile.depth, tile.height);
    gemm_on_this_thread<Real>(op_a, op_b, tile.height, tile.width, tile.depth, alpha, left,
                              part_from(b, op_b, tile.l, tile.j), old, to);
  }
};

/// C (m, n) ← β C: a product without terms, which libraries treat in different ways.
template <class Exec, class Real>
void scale(const Exec& exec, int m, int n, Real beta, Rows<Real> c) {
  const std::size_t columns = n;
  for_each(
      exec, "OneBit::linalg::scale", m * columns, KOKKOS_LAMBDA(std::size_t index) {
        Real& element = c.data[index / columns * c.row_stride + index % columns];
        element = beta == Real(0) ? Real(0) : beta * element;
      });
}

}  // namespace

template <class Exec, class Real>
void gemm(const Exec& exec, Transpose op_a, Transpose op_b, int m, int n, int k, Real alpha, Rows<const Real> a,
          Rows<const Real> b, Real beta, Rows<Real> c) {
  if (m == 0 || n == 0) return;
  if (k == 0) return scale(exec, m, n, beta, c);
  if constexpr (is_host<Exec>) {
    multiply_in_tiles(exec, "OneBit::linalg::gemm", m, n, k, beta, c, TileProduct<Real>{op_a, op_b, alpha, a, b});
  } else {
    gpu_products(exec, 1, op_a, op_b, m, n, k, alpha, Stack<const Real>{a, 0}, Stack<const Real>{b, 0}, beta,
                 Stack<Real>{c, 0});
  }
}

template <class Exec, class Real>
void symmetric_gemm(const Exec& exec, Transpose op_a, Transpose op_b, int n, int k, Rows<const Real> a,
                    Rows<const Real> b, Rows<Real> c) {
  if constexpr (is_host<Exec>) {
    if (n == 0) return;
    if (k == 0) return scale(exec, n, n, Real(0), c);
    multiply_in_lower_tiles(exec, "OneBit::linalg::symmetric_gemm", n, k, c,
                            TileProduct<Real>{op_a, op_b, Real(1), a, b});
  } else {
    gemm(exec, op_a, op_b, n, n, k, Real(1), a, b, Real(0), c);
  }
}

std::string gpu_product_library() {
#ifdef ONEBIT_GPU
  return gpu_library;
#else
  return "";
#endif
}

template void gemm_on_this_thread<float>(Transpose, Transpose, int, int, int, float, Rows<const float>,
                                         Rows<const float>, float, Rows<float>);
template void gemm_on_this_thread<double>(Transpose, Transpose, int, int, int, double, Rows<const double>,
                                          Rows<const double>, double, Rows<double>);

#define ONEBIT_INSTANTIATE(Exec, Real)                                                                     \
  template void gemm<Exec, Real>(const Exec&, Transpose, Transpose, int, int, int, Real, Rows<const Real>, \
                                 Rows<const Real>, Real, Rows<Real>);                                      \
  template void symmetric_gemm<Exec, Real>(const Exec&, Transpose, Transpose, int, int, Rows<const Real>,  \
                                           Rows<const Real>, Rows<Real>);
ONEBIT_INSTANTIATE_FOR_EACH_BACKEND_AND_REAL

}  // namespace onebit::linalg
