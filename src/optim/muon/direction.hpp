#pragma once
/// \file direction.hpp
/// The direction in which Muon moves the parameters, from their momentum (Jordan et al., *Muon*, 2024).

#include <cmath>
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
        m_newton_schulz(input.muon.iterations, largest_matrix(), longest_smaller_side(), input.model.precision) {}

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
    for (std::size_t k = 0; k < m_parts.size(); ++k) {
      const TensorPart& part = m_parts[k];
      if (part.role != TensorRole::matrix) continue;
      const Range range{part.begin - m_range.begin, part.end() - m_range.begin};
      const int rows = static_cast<int>(part.rows), columns = static_cast<int>(part.columns);
      const double scale = m_input.muon.lr_factor * std::sqrt(std::max(1.0, double(rows) / columns));
      m_newton_schulz(exec, rows, columns, of(m, range), of(m_square_norms, {k, k + 1}), static_cast<float>(scale),
                      of(u, range));
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
  std::size_t largest_matrix() const {
    std::size_t most = 0;
    for (const TensorPart& part : m_parts)
      if (part.role == TensorRole::matrix) most = std::max(most, part.size());
    return most;
  }
  int longest_smaller_side() const {
    std::size_t most = 0;
    for (const TensorPart& part : m_parts)
      if (part.role == TensorRole::matrix) most = std::max(most, std::min(part.rows, part.columns));
    return static_cast<int>(most);
  }

  const config::Input& m_input;
  Range m_range;
  std::vector<TensorPart> m_parts;
  std::vector<Range> m_tables, m_vectors;
  TensorReduction<Exec> m_sums;
  Vector<Exec, double> m_square_norms;  ///< (parts) ‖m‖_F²
  Vector<Exec, float> m_variance;       ///< (elements of tables) v
  linalg::NewtonSchulz<Exec> m_newton_schulz;
};

}  // namespace onebit::optim
