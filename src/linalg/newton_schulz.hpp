#pragma once
/// \file newton_schulz.hpp
/// The orthogonal factor of a matrix, nearly, by matrix products alone.

#include "linalg/matrix_product.hpp"

namespace onebit::linalg {

/// O ≈ U Vᵀ for M = U Σ Vᵀ: all singular values that are not tiny come to about 1, from 0.7 to 1.2.
///
/// X_0 = M / ‖M‖_F, and K times X ← a X + b (X Xᵀ) X + c (X Xᵀ)² X with a = 3.4445, b = −4.7750, c = 2.0315 (Jordan et
/// al., *Muon*, 2024). With S the product of X and Xᵀ on the smaller side, that is X ← (a I + b S + c S²) X, or X times
/// that bracket where M has more rows than columns: three products an iteration.
template <class Exec>
class NewtonSchulz {
public:
  using Values = Vector<Exec, float>;
  using Matrix = MatrixRef<Exec, float>;

  static constexpr float a = 3.4445f, b = -4.7750f, c = 2.0315f;

  /// Room for matrices of at most `largest` elements, the smaller side of which is at most `side`.
  NewtonSchulz(int iterations, std::size_t largest, int side, Precision precision)
      : m_iterations(iterations),
        m_product(precision),
        m_x(make_uninitialized<Exec, float>("OneBit::linalg::newton_schulz_x", largest)),
        m_square(make_uninitialized<Exec, float>("OneBit::linalg::newton_schulz_square", std::size_t(side) * side)),
        m_factor(make_uninitialized<Exec, float>("OneBit::linalg::newton_schulz_factor", std::size_t(side) * side)) {}

  /// o ← scale · O; does not fence. \param m (rows, columns), row-major \param square_norm (1) ‖M‖_F², on the device;
  /// 0 gives O = 0 \param o (rows, columns), other memory
  void operator()(const Exec& exec, int rows, int columns, const Values& m, const Vector<Exec, double>& square_norm,
                  float scale, const Values& o);

  // The parts of it. They are public because they hold lambdas for the device.

  /// x ← M / ‖M‖_F
  void normalize(const Exec& exec, std::size_t length, const Values& m, const Vector<Exec, double>& square_norm,
                 const Values& x) const;

  /// factor ← scale (a I + b S + c S²), of S²
  void add_linear_terms(const Exec& exec, int side, float scale) const;

private:
  int m_iterations;  ///< K
  MatrixProduct<Exec, float> m_product;
  Factor<Exec, float> m_of_x, m_of_square, m_of_factor;  ///< what the products read
  Values m_x;                                            ///< (largest) X, in turns with o
  Values m_square, m_factor;                             ///< (side, side) S and a I + b S + c S²
};

}  // namespace onebit::linalg
