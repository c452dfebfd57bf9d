/// \file matrix_product.cpp
/// See matrix_product.hpp. On the host oneDNN multiplies, in the tiles of gemm.hpp and one thread to a tile.

#include "linalg/matrix_product.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <type_traits>
#include <vector>

#include "base/error.hpp"
#include "base/parallel.hpp"
#include "linalg/blas.hpp"
#include "linalg/cublas.hpp"
#ifdef ONEBIT_WITH_ONEDNN
#include <dnnl.hpp>
#endif

namespace onebit::linalg {

template <class Exec>
std::string missing(Precision precision) {
  if (precision == Precision::fp32 || !is_host<Exec>) return "";
  if (precision == Precision::tf32) return "only GPUs have it";
#ifndef ONEBIT_WITH_ONEDNN
  return "this build has no oneDNN";
#else
#if defined(__x86_64__) && defined(__GNUC__)
  if (!__builtin_cpu_supports("avx512bf16")) return "this processor has no bfloat16 products (AVX512_BF16)";
#endif
  return "";
#endif
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

/// A matrix of bfloat16 as it lies in memory, and whether its transpose is meant.
struct Factor {
  const std::uint16_t* data;
  std::size_t row_stride;
  Transpose op;

  std::size_t to_next_row() const { return op == Transpose::yes ? 1 : row_stride; }
  std::size_t to_next_column() const { return op == Transpose::yes ? row_stride : 1; }
};

#ifdef ONEBIT_WITH_ONEDNN

/// c (m, n) ← op(a) (m, k) · op(b) (k, n) + β c of a whole matrix, in tiles.
template <class Exec>
class TileProducts {
public:
  TileProducts() : m_engine(dnnl::engine::kind::cpu, 0), m_streams(m_tokens.size(), dnnl::stream(m_engine)) {}

  void operator()(const Exec& exec, int m, int n, int k, const Factor& a, const Factor& b, float beta, float* c) {
    // oneDNN would count on OpenMP's threads when it plans a product.
    const SingleThreadedBlas single_threaded;
    const TileGrid tiles(m, n);
    // Tiles of the last row and the last column are smaller.
    const Plan* plans[2][2];
    for (const int i : {0, 1})
      for (const int j : {0, 1})
        plans[i][j] = &plan(tiles.height(i == 1 ? tiles.rows - 1 : 0), tiles.width(j == 1 ? tiles.columns - 1 : 0), k,
                            a, b, beta, n);
    const std::size_t scratch_size = m_scratch_size;
    if (m_scratch.extent(0) < scratch_size * m_streams.size())
      m_scratch = make_uninitialized<Exec, char>("OneBit::linalg::product_scratch", scratch_size * m_streams.size());
    Kokkos::parallel_for(
        "OneBit::linalg::bf16_product",
        Kokkos::RangePolicy<Exec, Kokkos::Schedule<Kokkos::Dynamic>>(exec, 0, tiles.rows * tiles.columns),
        [&, this](int tile) {
          const int row = tile % tiles.rows, column = tile / tiles.rows;
          const std::size_t i = row * tiles.row_edge, j = column * tiles.column_edge;
          const Plan& plan = *plans[row == tiles.rows - 1][column == tiles.columns - 1];
          const auto memory = [this](const dnnl::memory::desc& shape, const void* data) {
            return dnnl::memory(shape, m_engine, const_cast<void*>(data));
          };
          const int token = m_tokens.acquire();
          plan.product.execute(m_streams[token],
                               {{DNNL_ARG_SRC, memory(plan.a, a.data + i * a.to_next_row())},
                                {DNNL_ARG_WEIGHTS, memory(plan.b, b.data + j * b.to_next_column())},
                                {DNNL_ARG_DST, memory(plan.c, c + i * n + j)},
                                {DNNL_ARG_SCRATCHPAD, memory(plan.scratch, m_scratch.data() + token * scratch_size)}});
          m_tokens.release(token);
        });
  }

private:
  /// What oneDNN prepares for products of one shape.
  struct Plan {
    dnnl::memory::desc a, b, c, scratch;
    dnnl::matmul product;
  };
  using Key = std::tuple<int, int, int, std::size_t, std::size_t, std::size_t, std::size_t, float, int>;

  const Plan& plan(int m, int n, int k, const Factor& a, const Factor& b, float beta, int row_stride) {
    const Key key{m, n, k, a.to_next_row(), a.to_next_column(), b.to_next_row(), b.to_next_column(), beta, row_stride};
    if (const auto found = m_plans.find(key); found != m_plans.end()) return found->second;
    using Shape = dnnl::memory::desc;
    using Extents = dnnl::memory::dims;
    const auto extents = [](auto rows, auto columns) {
      return Extents{static_cast<dnnl::memory::dim>(rows), static_cast<dnnl::memory::dim>(columns)};
    };
    constexpr auto bf16 = dnnl::memory::data_type::bf16, fp32 = dnnl::memory::data_type::f32;
    const Shape a_shape(extents(m, k), bf16, extents(a.to_next_row(), a.to_next_column()));
    const Shape b_shape(extents(k, n), bf16, extents(b.to_next_row(), b.to_next_column()));
    const Shape c_shape(extents(m, n), fp32, extents(row_stride, 1));
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (beta != 0) {
      dnnl::post_ops add;
      add.append_sum(beta);
      attributes.set_post_ops(add);
    }
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::matmul::primitive_desc description(m_engine, a_shape, b_shape, c_shape, attributes);
#else
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a_shape, b_shape, c_shape), attributes, m_engine);
#endif
    constexpr std::size_t cache_line = 64;
    const std::size_t size = description.scratchpad_desc().get_size();
    m_scratch_size = std::max(m_scratch_size, (size + cache_line - 1) / cache_line * cache_line);
    return m_plans
        .emplace(key, Plan{a_shape, b_shape, c_shape, description.scratchpad_desc(), dnnl::matmul(description)})
        .first->second;
  }

  dnnl::engine m_engine;
  Kokkos::Experimental::UniqueToken<Exec> m_tokens;  ///< of a thread: its stream, its scratch memory
  std::vector<dnnl::stream> m_streams;
  std::map<Key, Plan> m_plans;
  std::size_t m_scratch_size = 0;  ///< bytes of one thread
  Vector<Exec, char> m_scratch;
};

#endif

#ifdef KOKKOS_ENABLE_CUDA
/// c (m, n) ← α op(a) (m, k) · op(b) (k, n) + β c, by cuBLAS. Row-major C = A B is column-major Cᵀ = Bᵀ Aᵀ.
/// \param type, compute of the factors, and how they are multiplied
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
    const Factor left = rounded(exec, alpha, a, op_a, m_a), right = rounded(exec, 1, b, op_b, m_b);
    if constexpr (is_host<Exec>) {
#ifdef ONEBIT_WITH_ONEDNN
      m_products(exec, m, n, k, left, right, beta, c.data());
#endif
    } else {
#ifdef KOKKOS_ENABLE_CUDA
      product_on_cuda(exec, CUDA_R_16BF, CUBLAS_COMPUTE_32F, op_a, op_b, m, n, k, 1, left.data, left.row_stride,
                      right.data, right.row_stride, beta, c.data());
#endif
    }
  }

private:
  static Factor rounded(const Exec& exec, float alpha, ConstMatrix matrix, Transpose op,
                        Vector<Exec, std::uint16_t>& memory) {
    if (memory.extent(0) < matrix.size())
      memory = make_uninitialized<Exec, std::uint16_t>("OneBit::linalg::rounded", matrix.size());
    round_to_bfloat16(exec, alpha, matrix.data(), matrix.size(), memory);
    return {memory.data(), matrix.extent(1), op};
  }

  Precision m_precision;
  Vector<Exec, std::uint16_t> m_a, m_b;  ///< factors in bfloat16
#ifdef ONEBIT_WITH_ONEDNN
  std::conditional_t<is_host<Exec>,
                     TileProducts<std::conditional_t<is_host<Exec>, Exec, Kokkos::DefaultHostExecutionSpace>>, int>
      m_products;
#endif
};

template <class Exec, class Real>
MatrixProduct<Exec, Real>::MatrixProduct(Precision precision) {
  const std::string reason = missing<Exec>(precision);
  if (!reason.empty())
    throw InputError("model.precision",
                     std::string(precision == Precision::tf32 ? "tf32" : "bf16") + " cannot be used: " + reason,
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
