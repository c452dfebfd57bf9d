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
  const auto squares = [&](const Values& of_all) { return Matrix(of_all.data(), count * side, side); };
  const auto multiply = [&](const Values& left, const Values& right, const Values& to) {  // polynomials of one S
    m_product.symmetric(exec, Transpose::no, Transpose::no, squares(left), squares(right), squares(to), count);
  };
  const auto part = [&](const Values& stack, int i) {
    return Values(Kokkos::subview(stack, std::make_pair(i * length, (i + 1) * length)));
  };
  for (int i = 0; i < count; ++i) normalize(exec, length, items[i].m, items[i].square_norm, part(m_x, i));
  const Transpose op = wide ? Transpose::no : Transpose::yes;
  for (int k = 0; k < m_iterations;) {
    const int first = k, end = std::min(k + at_once(rows, columns), m_iterations);
    m_product.prepare(exec, Matrix(m_x.data(), count * rows, columns), m_of_x);
    m_product.symmetric(exec, op, flipped(op), m_of_x, m_of_x, squares(m_square), count);
    for (; k < end; ++k) {
      m_product.prepare(exec, squares(m_square), m_of_square);
      m_product.symmetric(exec, Transpose::no, Transpose::no, m_of_square, m_of_square, squares(m_bracket), count);
      add_linear_terms(exec, count, side, k + 1 == m_iterations ? scale : 1.0f);
      if (k + 1 < end) {  // S ← P S P
        multiply(m_bracket, m_square, m_scratch);
        multiply(m_scratch, m_bracket, m_square);
      }
      if (k > first) multiply(m_bracket, m_brackets, m_scratch);
      std::swap(m_brackets, k > first ? m_scratch : m_bracket);
    }
    m_product.prepare(exec, squares(m_brackets), m_of_brackets);
    m_product.stacked(exec, count, Transpose::no, Transpose::no, wide ? m_of_brackets : m_of_x,
                      wide ? m_of_x : m_of_brackets, Matrix(m_next.data(), count * rows, columns));
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
  const Values square = m_square, bracket = m_bracket;
  const std::size_t size = std::size_t(side) * side, next_diagonal = std::size_t(side) + 1;
  for_each(
      exec, "OneBit::linalg::newton_schulz_bracket", count * size,
      KOKKOS_LAMBDA(std::size_t i) { bracket(i) = scale * (c * bracket(i) + b * square(i)); });
  for_each(
      exec, "OneBit::linalg::newton_schulz_diagonal", std::size_t(count) * side,
      KOKKOS_LAMBDA(std::size_t i) { bracket(i / side * size + i % side * next_diagonal) += scale * a; });
}

#define ONEBIT_INSTANTIATE(Exec) template class NewtonSchulz<Exec>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::linalg
