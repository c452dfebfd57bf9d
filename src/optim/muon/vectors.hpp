#pragma once
/// \file vectors.hpp
/// Biases and the parameters of LayerNorm, which Muon leaves to Adam.

#include <vector>

#include "optim/adam_update.hpp"
#include "optim/muon/tensor_parts.hpp"

namespace onebit::optim {

/// Adam of the vectors alone, which all ranks compute alike. They are few, so that their gradient travels densely.
template <class Exec>
class AdamOfVectors {
public:
  explicit AdamOfVectors(const TensorTable& tensors)
      : m_places(copy_to_device<Exec>("OneBit::optim::vector_places", places(tensors))),
        m_gradient("OneBit::optim::vector_gradient", m_places.extent(0)),
        m_momentum("OneBit::optim::vector_momentum", m_places.extent(0)),
        m_variance("OneBit::optim::vector_variance", m_places.extent(0)) {}

  /// Elements of all vectors.
  std::size_t size() const { return m_places.extent(0); }

  /// Takes the vectors' elements out of a gradient, which has 0 there afterwards; fences.
  /// \param g (d) \returns (elements of vectors) memory that the caller may overwrite until `update`
  const Vector<Exec, float>& take(const Exec& exec, const Vector<Exec, float>& g) const {
    const auto places = m_places;
    const auto gradient = m_gradient;
    for_each(
        exec, "OneBit::optim::take_vectors", places.extent(0), KOKKOS_LAMBDA(std::size_t j) {
          gradient(j) = g(places(j));
          g(places(j)) = 0;
        });
    fence(exec, "OneBit::optim::take_vectors");
    return m_gradient;
  }

  /// m ← β1 m + (1−β1) g; v ← β2 v + (1−β2) g²; x ← x − f γ (m / (√v + η) + λ x) for the vectors, with g as `take` and
  /// the caller left it; does not fence. \param x (d)
  void update(const Exec& exec, const AdamUpdate& update, const Rates<Exec>& rates,
              const Vector<Exec, float>& x) const {
    const auto places = m_places;
    const auto gradient = m_gradient, m = m_momentum, v = m_variance;
    for_each(
        exec, "OneBit::optim::adam_of_vectors", places.extent(0), KOKKOS_LAMBDA(std::size_t j) {
          const std::size_t i = places(j);
          const float g = update.gradient_factor * gradient(j);
          m(j) = update.momentum(m(j), g);
          v(j) = update.variance(v(j), g);
          x(i) = update.apply(x(i), m(j), v(j), rates(i));
        });
  }

  void state(Archive<Exec>& archive) {
    archive_numbers(archive, "state/vector_momentum", m_momentum);
    archive_numbers(archive, "state/vector_variance", m_variance);
  }

private:
  static std::vector<std::size_t> places(const TensorTable& tensors) {
    std::vector<std::size_t> places;
    for (const Range& range : ranges_of(parts_of(tensors), TensorRole::vector, {0, tensors.size()}))
      for (std::size_t i = range.begin; i < range.end; ++i) places.push_back(i);
    return places;
  }

  Vector<Exec, std::size_t> m_places;  ///< (elements of vectors) where each of them is
  Vector<Exec, float> m_gradient, m_momentum, m_variance;
};

}  // namespace onebit::optim
