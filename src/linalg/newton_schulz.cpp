#include "linalg/newton_schulz.hpp"

#include <algorithm>
#include <utility>

#include "base/device/parallel.hpp"

namespace onebit::linalg {

template <class Exec>
void NewtonSchulz<Exec>::operator()(const Exec& exec, int rows, int columns, const std::vector<Item>& items,
                                    float scale) {
  const bool wide = rows <= columns;
  const int count = static_cast<int>(items.size()), side = std::min(rows, columns);
  const std::size_t length = std::size_t(rows) * columns;
  const Matrix square(m_square.data(), count * side, side), factor(m_factor.data(), count * side, side);
  const auto part = [&](const Values& stack, int i) {
    return Values(Kokkos::subview(stack, std::make_pair(i * length, (i + 1) * length)));
  };
  for (int i = 0; i < count; ++i) normalize(exec, length, items[i].m, items[i].square_norm, part(m_x, i));
  for (int k = 1; k <= m_iterations; ++k) {
    m_product.prepare(exec, Matrix(m_x.data(), count * rows, columns), m_of_x);
    m_product.gram(exec, wide ? Transpose::no : Transpose::yes, m_of_x, square, count);
    m_product.prepare(exec, square, m_of_square);
    m_product.gram(exec, Transpose::no, m_of_square, factor, count);  // S Sᵀ = S²
    add_linear_terms(exec, count, side, k == m_iterations ? scale : 1.0f);
    m_product.prepare(exec, factor, m_of_factor);
    m_product.stacked(exec, count, Transpose::no, Transpose::no, wide ? m_of_factor : m_of_x,
                      wide ? m_of_x : m_of_factor, Matrix(m_next.data(), count * rows, columns));
    std::swap(m_x, m_next);
  }
  for (int i = 0; i < count; ++i) Kokkos::deep_copy(exec, items[i].o, part(m_x, i));
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
void NewtonSchulz<Exec>::add_linear_terms(const Exec& exec, int count, int side, float scale) const {
  const Values square = m_square, factor = m_factor;
  const std::size_t size = std::size_t(side) * side, next_diagonal = std::size_t(side) + 1;
  for_each(
      exec, "OneBit::linalg::newton_schulz_factor", count * size, KOKKOS_LAMBDA(std::size_t i) {
        const float diagonal = i % size % next_diagonal == 0 ? a : 0.0f;
        factor(i) = scale * (c * factor(i) + b * square(i) + diagonal);
      });
}

#define ONEBIT_INSTANTIATE(Exec) template class NewtonSchulz<Exec>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::linalg
