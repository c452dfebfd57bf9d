#include "linalg/newton_schulz.hpp"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/device/parallel.hpp"
#include "base/sixteen_bits.hpp"
#include "linalg/tiles.hpp"
#include "linalg/vendor/onednn.hpp"

namespace onebit::linalg {

/// What the products S, S² and P X add up is rounded in their tiles, while these are in the cache: with AMX the
/// products are so fast that passes of their own would take a third of the time.
template <class Exec>
class RoundedNewtonSchulz {
public:
  using Item = typename NewtonSchulz<Exec>::Item;
  using Bits = std::uint16_t;

  RoundedNewtonSchulz(std::size_t elements, std::size_t squares)
      : m_x(make_uninitialized<Exec, Bits>("OneBit::linalg::newton_schulz_x", elements)),
        m_next(make_uninitialized<Exec, Bits>("OneBit::linalg::newton_schulz_next", elements)),
        m_square(make_uninitialized<Exec, Bits>("OneBit::linalg::newton_schulz_square", squares)),
        m_bracket(make_uninitialized<Exec, Bits>("OneBit::linalg::newton_schulz_bracket", squares)) {}

  /// o ← scale · O
  void operator()(const Exec& exec, int iterations, int rows, int columns, const Item& item, float scale) {
    const SingleThreadedBlas single_threaded;
    normalize(exec, item);
    for (int k = 1; k <= iterations; ++k) {
      square(exec, rows, columns);
      bracket(exec, std::min(rows, columns), k == iterations ? scale : 1.0f);
      if (k == iterations) {
        move(exec, rows, columns, item.o.data());
      } else {
        move(exec, rows, columns, m_next.data());
        std::swap(m_x, m_next);
      }
    }
  }

private:
  /// X ← M / ‖M‖_F
  void normalize(const Exec& exec, const Item& item) const {
    const double square = item.square_norm(0);
    const double factor = square == 0 ? 0.0 : 1 / std::sqrt(square);
    const auto m = item.m;
    const auto x = m_x;
    for_each(exec, "OneBit::linalg::newton_schulz_normalize", m.extent(0),
             [=](std::size_t i) { x(i) = Bfloat16::nearest(static_cast<float>(factor * m(i))); });
  }

  /// S ← the product of X and Xᵀ on the smaller side
  void square(const Exec& exec, int rows, int columns) const {
    const Transpose op = rows <= columns ? Transpose::no : Transpose::yes;
    const int side = std::min(rows, columns);
    const Rows<const Bits> x{m_x.data(), std::size_t(columns)};
    const Rows<Bits> s{m_square.data(), std::size_t(side)};
    multiply_in_lower_tiles(
        exec, "OneBit::linalg::newton_schulz_square", side, std::max(rows, columns), s,
        [=](const Tile& tile, Bits, Rows<Bits> of_tile) { product(op, flipped(op), tile, x, x, of_tile); });
  }

  /// P ← scale (a I + b S + c S²)
  void bracket(const Exec& exec, int side, float scale) const {
    constexpr float a = NewtonSchulz<Exec>::a, b = NewtonSchulz<Exec>::b, c = NewtonSchulz<Exec>::c;
    const Rows<const Bits> s{m_square.data(), std::size_t(side)};
    const Rows<Bits> p{m_bracket.data(), std::size_t(side)};
    multiply_in_lower_tiles(
        exec, "OneBit::linalg::newton_schulz_bracket", side, side, p, [=](const Tile& tile, Bits, Rows<Bits> of_tile) {
          thread_local std::vector<float> memory;
          memory.resize(std::max(memory.size(), std::size_t(tile.height) * tile.width));
          const Rows<float> squared{memory.data(), std::size_t(tile.width)};
          product(Transpose::no, Transpose::yes, tile, s, s, squared);  // of rows: faster than of rows and columns
          for (int i = 0; i < tile.height; ++i) {
            const float* const of_squared = squared.data + i * squared.row_stride;
            const Bits* const of_s = s.data + (tile.i + i) * s.row_stride + tile.j;
            Bits* const of_p = of_tile.data + i * of_tile.row_stride;
            const auto value = [=](int j) { return scale * (c * of_squared[j] + b * Bfloat16::widened(of_s[j])); };
            ONEBIT_IVDEP
            for (int j = 0; j < tile.width; ++j) of_p[j] = Bfloat16::nearest(value(j));
            if (tile.i == tile.j) of_p[i] = Bfloat16::nearest(value(i) + scale * a);
          }
        });
  }

  /// to ← a tile of op(left) op(right)
  template <class T>
  static void product(Transpose op_left, Transpose op_right, const Tile& tile, Rows<const Bits> left,
                      Rows<const Bits> right, Rows<T> to) {
    onednn_product(op_left, op_right, tile.height, tile.width, tile.depth, part_from(left, op_left, tile.i, 0),
                   part_from(right, op_right, 0, tile.j), 0, to);
  }

  /// to ← P X, or X P where X has more rows than columns
  template <class T>
  void move(const Exec& exec, int rows, int columns, T* to) const {
    const bool wide = rows <= columns;
    const int side = std::min(rows, columns);
    const Rows<const Bits> p{m_bracket.data(), std::size_t(side)}, x{m_x.data(), std::size_t(columns)};
    const Rows<const Bits> left = wide ? p : x, right = wide ? x : p;
    const Rows<T> result{to, std::size_t(columns)};
    const TileGrid tiles(rows, columns, side);  // with all terms in one range, as there are at most √(rows columns)
    Kokkos::parallel_for(
        "OneBit::linalg::newton_schulz_move",
        Kokkos::RangePolicy<Exec, Kokkos::Schedule<Kokkos::Dynamic>>(exec, 0, tiles.tiles()), [=](int number) {
          const Tile tile = tiles[number];
          product(Transpose::no, Transpose::no, tile, left, right, part_from(result, Transpose::no, tile.i, tile.j));
        });
  }

  Vector<Exec, Bits> m_x, m_next;          ///< X, rounded
  Vector<Exec, Bits> m_square, m_bracket;  ///< S and P, rounded
};

template <class Exec>
NewtonSchulz<Exec>::NewtonSchulz(int iterations, std::size_t elements, std::size_t squares, Precision precision)
    : m_iterations(iterations), m_product(precision) {
  if constexpr (is_host<Exec>)
    if (precision == Precision::bf16) {
      m_rounded = std::make_unique<RoundedNewtonSchulz<Exec>>(elements, squares);
      return;
    }
  for (Values* const of_x : {&m_x, &m_next})
    *of_x = make_uninitialized<Exec, float>("OneBit::linalg::newton_schulz_x", elements);
  for (Values* const of_square : {&m_square, &m_bracket, &m_brackets, &m_scratch})
    *of_square = make_uninitialized<Exec, float>("OneBit::linalg::newton_schulz_square", squares);
}

template <class Exec>
NewtonSchulz<Exec>::~NewtonSchulz() = default;

template <class Exec>
void NewtonSchulz<Exec>::operator()(const Exec& exec, int rows, int columns, const std::vector<Item>& items,
                                    float scale) {
  if constexpr (is_host<Exec>)
    if (m_rounded) {
      for (const Item& item : items) (*m_rounded)(exec, m_iterations, rows, columns, item, scale);
      return;
    }
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
