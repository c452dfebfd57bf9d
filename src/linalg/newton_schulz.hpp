#pragma once
/// \file newton_schulz.hpp
/// The orthogonal factor of a matrix, nearly, by matrix products alone.

#include <algorithm>
#include <memory>
#include <vector>

#include "linalg/matrix_product.hpp"

namespace onebit::linalg {

/// Newton–Schulz on the host with factors in bfloat16.
template <class Exec>
class RoundedNewtonSchulz;

/// O ≈ U Vᵀ for M = U Σ Vᵀ: all singular values that are not tiny come to about 1, from 0.7 to 1.2.
///
/// X_0 = M / ‖M‖_F, and K times X ← a X + b (X Xᵀ) X + c (X Xᵀ)² X with a = 3.4445, b = −4.7750, c = 2.0315 (Jordan et
/// al., *Muon*, 2024). With S the product of X and Xᵀ on the smaller side, that is X ← P X for the bracket
/// P = a I + b S + c S², or X P where M has more rows than columns: three products an iteration.
///
/// Of the new X the product is P S P, and all brackets are polynomials of the first S, so that they commute. Where the
/// larger side is at least twice the smaller one, X therefore waits for up to three brackets: S ← P S P on the smaller
/// side, and X ← P_3 P_2 P_1 X. Three iterations of 768 × 3072 then need 54 % of the operations. An iteration
/// multiplies what rounding does to the small eigenvalues of S by up to a², so S comes from X again after three, and
/// after each one where factors are rounded.
///
/// Matrices of one shape go through it together: a GPU's products of one alone take less time than to start them.
template <class Exec>
class NewtonSchulz {
public:
  using Values = Vector<Exec, float>;
  using Matrix = MatrixRef<Exec, float>;

  static constexpr float a = 3.4445f, b = -4.7750f, c = 2.0315f;

  /// A matrix and its result.
  struct Item {
    Values m;                          ///< (rows, columns), row-major
    Vector<Exec, double> square_norm;  ///< (1) ‖M‖_F²; 0 gives O = 0
    Values o;                          ///< (rows, columns)
  };

  /// Elements of the matrices that should go through it together; 0: each alone.
  static constexpr std::size_t elements_together = is_host<Exec> ? 0 : std::size_t{1} << 23;

  /// Room for matrices of at most `elements` in all; the squares of their smaller sides are at most `squares` in all.
  NewtonSchulz(int iterations, std::size_t elements, std::size_t squares, Precision precision);
  ~NewtonSchulz();

  /// o ← scale · O of each item; does not fence.
  void operator()(const Exec& exec, int rows, int columns, const std::vector<Item>& items, float scale);

  // The parts of it. They are public because they hold lambdas for the device.

  /// x ← M / ‖M‖_F
  void normalize(const Exec& exec, std::size_t length, const Values& m, const Vector<Exec, double>& square_norm,
                 const Values& x) const;

  /// P ← scale (a I + b S + c P), of P = S², for each of `count`
  void add_linear_terms(const Exec& exec, int count, int side, float scale) const;

private:
  /// Brackets for which X waits.
  int at_once(int rows, int columns) const {
    const bool elongated = std::max(rows, columns) >= 2 * std::min(rows, columns);
    return elongated && m_product.precision() == Precision::fp32 ? 3 : 1;
  }

  int m_iterations;  ///< K
  MatrixProduct<Exec, float> m_product;
  Factor<Exec, float> m_of_x, m_of_square, m_of_brackets;  ///< what the products read
  Values m_x, m_next;                                      ///< the X of all, one below the other
  Values m_square;                                         ///< the S of all
  Values m_bracket, m_brackets;                            ///< the P, and the product of those for which X waits
  Values m_scratch;                                        ///< of the length of the S
  std::unique_ptr<RoundedNewtonSchulz<Exec>> m_rounded;    ///< of bf16 on a host, which leaves the Views above empty
};

}  // namespace onebit::linalg
