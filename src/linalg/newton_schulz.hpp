#pragma once
/// \file newton_schulz.hpp
/// The orthogonal factor of a matrix, nearly, by matrix products alone.

#include <algorithm>
#include <utility>

#include "base/device/parallel.hpp"
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
                  float scale, const Values& o) {
    const bool wide = rows <= columns;
    const int side = std::min(rows, columns);
    const Matrix square(m_square.data(), side, side), factor(m_factor.data(), side, side);
    Values x = m_iterations % 2 == 0 ? o : m_x, next = m_iterations % 2 == 0 ? m_x : o;
    normalize(exec, std::size_t(rows) * columns, m, square_norm, x);
    for (int k = 1; k <= m_iterations; ++k) {
      m_product.prepare(exec, Matrix(x.data(), rows, columns), m_of_x);
      m_product.gram(exec, wide ? Transpose::no : Transpose::yes, m_of_x, square);
      m_product.prepare(exec, square, m_of_square);
      m_product.gram(exec, Transpose::no, m_of_square, factor);  // S Sᵀ = S²
      add_linear_terms(exec, side, k == m_iterations ? scale : 1.0f);
      m_product.prepare(exec, factor, m_of_factor);
      m_product(exec, Transpose::no, Transpose::no, 1, wide ? m_of_factor : m_of_x, wide ? m_of_x : m_of_factor, 0,
                Matrix(next.data(), rows, columns));
      std::swap(x, next);
    }
  }

  // The parts of it. They are public because they hold lambdas for the device.

  /// x ← M / ‖M‖_F
  void normalize(const Exec& exec, std::size_t length, const Values& m, const Vector<Exec, double>& square_norm,
                 const Values& x) const {
    for_each(
        exec, "OneBit::linalg::newton_schulz_normalize", length, KOKKOS_LAMBDA(std::size_t i) {
          const double square = square_norm(0);
          x(i) = square == 0 ? 0.0f : static_cast<float>(m(i) / math::sqrt(square));
        });
  }

  /// factor ← scale (a I + b S + c S²), of S²
  void add_linear_terms(const Exec& exec, int side, float scale) const {
    const Values square = m_square, factor = m_factor;
    const std::size_t next_diagonal = std::size_t(side) + 1;
    for_each(
        exec, "OneBit::linalg::newton_schulz_factor", std::size_t(side) * side, KOKKOS_LAMBDA(std::size_t i) {
          factor(i) = scale * (c * factor(i) + b * square(i) + (i % next_diagonal == 0 ? a : 0.0f));
        });
  }

private:
  int m_iterations;  ///< K
  MatrixProduct<Exec, float> m_product;
  Factor<Exec, float> m_of_x, m_of_square, m_of_factor;  ///< what the products read
  Values m_x;                                            ///< (largest) X, in turns with o
  Values m_square, m_factor;                             ///< (side, side) S and a I + b S + c S²
};

}  // namespace onebit::linalg
