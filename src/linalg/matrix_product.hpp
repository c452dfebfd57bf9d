#pragma once
/// \file matrix_product.hpp
/// The matrix products of a model: C ← α op(A) op(B) + β C in float, or with factors rounded to bfloat16, which
/// processors multiply at least twice as fast. Sums and C stay in float, and so do the parameters: only copies are
/// rounded.

#include <cstdint>
#include <memory>
#include <string>

#include "base/choices.hpp"
#include "base/kokkos.hpp"
#include "linalg/gemm.hpp"

namespace onebit::linalg {

/// Why this build on this machine cannot compute such products, in a few words; empty if it can. CUDA has all. The host
/// has no tf32, and bf16 needs oneDNN and a processor with AVX512_BF16.
template <class Exec>
std::string missing(Precision precision);

/// The upper 16 bits of a float, rounded to nearest, ties to even; NaN stays NaN.
KOKKOS_INLINE_FUNCTION std::uint16_t to_bfloat16(float value) {
  std::uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  const std::uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16, quiet_nan = bits >> 16 | 0x40u;
  return static_cast<std::uint16_t>(value == value ? rounded : quiet_nan);
}

/// Products of float matrices with rounded factors.
template <class Exec>
class RoundedProduct;

/// Instantiated for float and double on every backend; double is never rounded.
template <class Exec, class Real>
class MatrixProduct {
public:
  using Matrix = MatrixRef<Exec, Real>;
  using ConstMatrix = MatrixRef<Exec, const Real>;

  /// \throws InputError if such products are missing
  explicit MatrixProduct(Precision precision = Precision::fp32);
  ~MatrixProduct();
  MatrixProduct(MatrixProduct&&) noexcept;

  /// c (m, n) ← α op(a) (m, k) · op(b) (k, n) + β c. With β = 0, c need not be initialised.
  void operator()(const Exec& exec, Transpose op_a, Transpose op_b, Real alpha, ConstMatrix a, ConstMatrix b, Real beta,
                  Matrix c);

  Precision precision() const { return m_precision; }

private:
  Precision m_precision;
  std::unique_ptr<RoundedProduct<Exec>> m_rounded;  ///< empty in fp32
};

}  // namespace onebit::linalg
