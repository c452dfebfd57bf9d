#include "linalg/newton_schulz.hpp"

#include <algorithm>
#include <utility>

#include "base/device/parallel.hpp"

namespace onebit::linalg {

template <class Exec>
void NewtonSchulz<Exec>::operator()(const Exec& exec, int rows, int columns, const Values& m,
                                    const Vector<Exec, double>& square_norm, float scale, const Values& o) {
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

template <class Exec>
void NewtonSchulz<Exec>::normalize(const Exec& exec, std::size_t length, const Values& m,
                                   const Vector<Exec, double>& square_norm, const Values& x) const {
  for_each(
      exec, "OneBit::linalg::newton_schulz_normalize", length, KOKKOS_LAMBDA(std::size_t i) {
        const double square = square_norm(0);
        x(i) = square == 0 ? 0.0f : static_cast<float>(m(i) / math::sqrt(square));
      });
}

template <class Exec>
void NewtonSchulz<Exec>::add_linear_terms(const Exec& exec, int side, float scale) const {
  const Values square = m_square, factor = m_factor;
  const std::size_t next_diagonal = std::size_t(side) + 1;
  for_each(
      exec, "OneBit::linalg::newton_schulz_factor", std::size_t(side) * side, KOKKOS_LAMBDA(std::size_t i) {
        factor(i) = scale * (c * factor(i) + b * square(i) + (i % next_diagonal == 0 ? a : 0.0f));
      });
}

#define ONEBIT_INSTANTIATE(Exec) template class NewtonSchulz<Exec>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::linalg
