#pragma once
/// \file flat_vectors.hpp
/// What all models do with flat vectors: parts of them, normal initial weights, and the sum of losses.

#include <cstdint>

#include "base/device/parallel.hpp"
#include "base/random.hpp"
#include "nn/rows.hpp"

namespace onebit::nn {

/// A matrix or vector that begins at an offset in a flat buffer.
template <class Exec, class T>
MatrixRef<Exec, T> matrix_at(const Vector<Exec, T>& buffer, std::size_t offset, int rows, int columns) {
  return MatrixRef<Exec, T>(buffer.data() + offset, rows, columns);
}
template <class Exec, class T>
VectorRef<Exec, T> vector_at(const Vector<Exec, T>& buffer, std::size_t offset, int length) {
  return VectorRef<Exec, T>(buffer.data() + offset, length);
}

/// x(begin + i) ← a normal number that depends on the key and on begin + i alone.
template <class Exec, class Real>
struct FillNormal {
  std::uint64_t key;
  std::size_t begin;
  Real deviation;
  Vector<Exec, Real> x;

  KOKKOS_FUNCTION void operator()(std::size_t i) const {
    const Philox4 random = philox(key, begin + i, 0);
    x(begin + i) = deviation * static_cast<Real>(normal(random.word[0], random.word[1]));
  }
};
/// Elements [begin, begin + size) of x ← N(0, deviation²); does not fence.
template <class Exec, class Real>
void fill_normal(const Exec& exec, std::uint64_t key, std::size_t begin, std::size_t size, Real deviation,
                 const Vector<Exec, Real>& x) {
  for_each(exec, "OneBit::nn::initialize", size, FillNormal<Exec, Real>{key, begin, deviation, x});
}

/// An element in double.
template <class Exec, class Real>
struct InDouble {
  VectorRef<Exec, const Real> values;
  KOKKOS_FUNCTION double operator()(std::size_t i) const { return static_cast<double>(values(i)); }
};
/// Σ losses, in double and in a fixed order; fences.
template <class Exec, class Real>
double sum_losses(const Exec& exec, const OrderedSum<Exec>& sum, VectorRef<Exec, const Real> losses) {
  return sum(exec, "OneBit::nn::loss", InDouble<Exec, Real>{losses});
}

}  // namespace onebit::nn
