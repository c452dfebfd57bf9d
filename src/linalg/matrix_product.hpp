#pragma once
/// \file matrix_product.hpp
/// The matrix products of a model: C ← α op(A) op(B) + β C in float, or with factors rounded to bfloat16, which
/// processors multiply at least twice as fast. Sums and C stay in float, and so do the parameters: only copies are
/// rounded.

#include <cstdint>
#include <string>
#include <utility>

#include "base/choices.hpp"
#include "base/kokkos.hpp"
#include "base/range.hpp"
#include "linalg/gemm.hpp"

namespace onebit::linalg {

/// Why this build on this machine cannot compute such products, in a few words; empty if it can. CUDA has all, HIP
/// all but tf32. The host has no tf32, and bf16 needs oneDNN and a processor with AVX512_BF16.
template <class Exec>
std::string missing(Precision precision);

/// A factor of products: a matrix, and its copy in bfloat16 if it has one. A product makes the copy that is missing.
template <class Exec, class Real>
struct Factor {
  using Matrix = MatrixRef<Exec, const Real>;
  Matrix matrix{};
  Vector<Exec, std::uint16_t> rounded{};  ///< α matrix, rounded; empty without a copy
  std::size_t row_stride = 0;             ///< of the copy
  Real alpha = 1;                         ///< of the copy

  Factor() = default;
  template <class View>
  Factor(const View& view) : matrix(view) {}  // NOLINT: a matrix is a factor

  /// Matrix `number` of `count` that stand one below the other.
  Factor one_of(int count, int number) const {
    const std::size_t rows = matrix.extent(0) / count, begin = number * rows;
    Factor factor(Matrix(matrix.data() + begin * matrix.extent(1), rows, matrix.extent(1)));
    if (rounded.extent(0) > 0)
      factor.rounded = Kokkos::subview(rounded, std::make_pair(begin * row_stride, (begin + rows) * row_stride));
    factor.row_stride = row_stride;
    factor.alpha = alpha;
    return factor;
  }

  /// The (rows, columns) matrix from an element of a flat buffer, whose factor has one row, with its part of the copy.
  Factor part(std::size_t offset, int rows, int columns) const {
    Factor factor(Matrix(matrix.data() + offset, rows, columns));
    if (rounded.extent(0) > 0)
      factor.rounded = Kokkos::subview(rounded, std::make_pair(offset, offset + factor.matrix.size()));
    factor.row_stride = columns;
    factor.alpha = alpha;
    return factor;
  }
};

/// Instantiated for float and double on every backend; double is never rounded.
template <class Exec, class Real>
class MatrixProduct {
public:
  using Matrix = MatrixRef<Exec, Real>;
  using ConstMatrix = MatrixRef<Exec, const Real>;
  using Factor = linalg::Factor<Exec, Real>;

  /// \throws InputError if such products are missing
  explicit MatrixProduct(Precision precision = Precision::fp32);
  MatrixProduct(MatrixProduct&&) = default;

  /// c (m, n) ← α op(a) (m, k) · op(b) (k, n) + β c. With β = 0, c need not be initialised.
  void operator()(const Exec& exec, Transpose op_a, Transpose op_b, Real alpha, const Factor& a, const Factor& b,
                  Real beta, Matrix c);

  /// c_i (m, n) ← op(a_i) (m, k) · op(b_i) (k, n) for `count` of each, which stand one below the other in a, b and c. A
  /// GPU computes them together, the host one after the other.
  void stacked(const Exec& exec, int count, Transpose op_a, Transpose op_b, const Factor& a, const Factor& b, Matrix c);

  /// c_i (n, n) ← op(a_i) op(b_i) for `count` of each, likewise. They must be symmetric: see gemm.hpp.
  void symmetric(const Exec& exec, Transpose op_a, Transpose op_b, const Factor& a, const Factor& b, Matrix c,
                 int count = 1);

  /// factor ← α matrix, for several products with this α. In bf16 it is rounded here, into the memory of `factor`, and
  /// the caller does so again before it uses the factor of a matrix that changed.
  void prepare(const Exec& exec, ConstMatrix matrix, Factor& factor, Real alpha = 1) const;

  Precision precision() const { return m_precision; }

private:
  /// As operator(), for `count` of each (see `stacked`), on a GPU.
  void multiply_together(const Exec& exec, int count, Transpose op_a, Transpose op_b, Real alpha, const Factor& a,
                         const Factor& b, Real beta, Matrix c);

  Precision m_precision;
  Factor m_a, m_b;  ///< copies of factors that have none
};

}  // namespace onebit::linalg
