#pragma once
/// \file direction.hpp
/// The direction in which Muon moves the parameters, from their momentum (Jordan et al., *Muon*, 2024).

#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "linalg/newton_schulz.hpp"
#include "optim/adam_update.hpp"
#include "optim/muon/tensor_parts.hpp"
#include "optim/others/tensor_reduction.hpp"

namespace onebit::optim {

/// Of a momentum m, for the tensors of a range of the parameters:
///
/// - a matrix (D, K): μ √max(1, D/K) O, with O ≈ U Vᵀ of m = U Σ Vᵀ (linalg/newton_schulz.hpp) and μ of the input;
/// - a table: v ← β2 v + (1−β2) m², and Adam's quotient m / (√v + η). The variance is one of the averaged momentum, so
///   that it can live where that is known, at one server;
/// - a vector: 0. AdamOfVectors moves it.
template <class Exec>
class MuonDirection {
public:
  /// \param range holds no part of a matrix without the rest
  MuonDirection(const config::Input& input, const TensorTable& tensors, Range range)
      : m_input(input),
        m_range(range),
        m_parts(parts_in(tensors, range)),
        m_tables(ranges_of(m_parts, TensorRole::table, range)),
        m_vectors(ranges_of(m_parts, TensorRole::vector, range)),
        m_sums(table_of(m_parts)),
        m_square_norms("OneBit::optim::square_norms", m_parts.size()),
        m_variance("OneBit::optim::variance", length_of(m_tables)),
        m_together(matrices_together()),
        m_newton_schulz(input.muon.iterations, most([](const TensorPart& part) { return part.size(); }),
                        most([](const TensorPart& part) { return square(std::min(part.rows, part.columns)); }),
                        input.model.precision) {}

  /// u ← the direction; does not fence. \param update of tables, with their β1 \param m, u (range) other memory each
  void operator()(const Exec& exec, const AdamUpdate& update, const Vector<Exec, float>& m,
                  const Vector<Exec, float>& u) {
    const Region region("OneBit::optim::muon_direction");
    for (const Range& range : m_vectors) Kokkos::deep_copy(exec, of(u, range), 0.0f);
    std::size_t first = 0;
    for (const Range& range : m_tables) {
      const std::size_t end = first + range.end - range.begin;
      move_table(exec, update, of(m, range), of(m_variance, {first, end}), of(u, range));
      first = end;
    }
    if (m_parts.empty()) return;
    m_sums.sums(
        exec, "OneBit::optim::square_norms", m_square_norms,
        KOKKOS_LAMBDA(std::size_t i) { return static_cast<double>(m(i)) * static_cast<double>(m(i)); });
    for (const std::vector<std::size_t>& together : m_together) {
      std::vector<typename linalg::NewtonSchulz<Exec>::Item> items;
      for (const std::size_t k : together) {
        const Range range{m_parts[k].begin - m_range.begin, m_parts[k].end() - m_range.begin};
        items.push_back({of(m, range), of(m_square_norms, {k, k + 1}), of(u, range)});
      }
      const TensorPart& part = m_parts[together[0]];
      const int rows = static_cast<int>(part.rows), columns = static_cast<int>(part.columns);
      const double scale = m_input.muon.lr_factor * std::sqrt(std::max(1.0, double(rows) / columns));
      m_newton_schulz(exec, rows, columns, items, static_cast<float>(scale));
    }
  }

  /// Saves or restores v, by one range for each table of all the parameters. Its name is no other algorithm's, which
  /// would start from a variance of gradients (`freeze.from`). \param parts of all
  void state(Archive<Exec>& archive, const std::vector<TensorPart>& parts) {
    std::size_t first = 0;
    for (const TensorPart& part : parts) {
      if (part.role != TensorRole::table) continue;
      const std::size_t begin = std::clamp(part.begin, m_range.begin, m_range.end);
      const std::size_t end = std::clamp(part.end(), m_range.begin, m_range.end);
      archive.part("table_variance", of(m_variance, {first, first + end - begin}), {begin, end});
      first += end - begin;
    }
  }

  /// v ← β2 v + (1−β2) m²; u ← m / (√v + η). Public only because a device lambda may not stand in a private member.
  static void move_table(const Exec& exec, const AdamUpdate& update, const Vector<Exec, float>& m,
                         const Vector<Exec, float>& v, const Vector<Exec, float>& u) {
    for_each(
        exec, "OneBit::optim::muon_table", m.extent(0), KOKKOS_LAMBDA(std::size_t i) {
          v(i) = update.variance(v(i), m(i));
          u(i) = update.preconditioned(m(i), v(i));
        });
  }

private:
  template <class View>
  static View of(const View& vector, Range range) {
    return Kokkos::subview(vector, std::make_pair(range.begin, range.end));
  }
  static std::vector<TensorPart> parts_in(const TensorTable& tensors, Range range) {
    std::vector<TensorPart> parts;
    for (const TensorPart& part : parts_of(tensors))
      if (part.begin < range.end && part.end() > range.begin) parts.push_back(part);
    return parts;
  }
  /// The parts' elements in the range as tensors of their own.
  TensorTable table_of(const std::vector<TensorPart>& parts) const {
    TensorTable table;
    for (const TensorPart& part : parts)
      table.add(part.name, {std::min(part.end(), m_range.end) - std::max(part.begin, m_range.begin)}, true);
    return table;
  }
  static std::size_t length_of(const std::vector<Range>& ranges) {
    std::size_t length = 0;
    for (const Range& range : ranges) length += range.end - range.begin;
    return length;
  }
  /// Numbers of the parts that are matrices, those of one shape together as far as NewtonSchulz wants.
  std::vector<std::vector<std::size_t>> matrices_together() const {
    std::map<std::pair<std::size_t, std::size_t>, std::vector<std::size_t>> of_shape;
    for (std::size_t k = 0; k < m_parts.size(); ++k)
      if (m_parts[k].role == TensorRole::matrix) of_shape[{m_parts[k].rows, m_parts[k].columns}].push_back(k);
    std::vector<std::vector<std::size_t>> result;
    for (const auto& [shape, parts] : of_shape) {
      const std::size_t size = std::max<std::size_t>(shape.first * shape.second, 1);
      const std::size_t at_once = std::max<std::size_t>(linalg::NewtonSchulz<Exec>::elements_together / size, 1);
      for (std::size_t i = 0; i < parts.size(); i += at_once)
        result.emplace_back(parts.begin() + i, parts.begin() + std::min(i + at_once, parts.size()));
    }
    return result;
  }
  /// The most elements of matrices that go together, where a part has elements(part).
  template <class Elements>
  std::size_t most(const Elements& elements) const {
    std::size_t most = 0;
    for (const auto& together : m_together) most = std::max(most, together.size() * elements(m_parts[together[0]]));
    return most;
  }
  static std::size_t square(std::size_t side) { return side * side; }

  const config::Input& m_input;
  Range m_range;
  std::vector<TensorPart> m_parts;
  std::vector<Range> m_tables, m_vectors;
  TensorReduction<Exec> m_sums;
  Vector<Exec, double> m_square_norms;               ///< (parts) ‖m‖_F²
  Vector<Exec, float> m_variance;                    ///< (elements of tables) v
  std::vector<std::vector<std::size_t>> m_together;  ///< numbers of matrices of one shape
  linalg::NewtonSchulz<Exec> m_newton_schulz;
};

}  // namespace onebit::optim
