#pragma once
/// \file newton_schulz_reference.hpp
/// The orthogonal factor of a matrix by the iteration of linalg/newton_schulz.hpp, in plain loops and in double.

#include <cmath>
#include <cstddef>
#include <vector>

namespace onebit::test {

/// O of a matrix (rows, columns): X ← M / ‖M‖, then X ← a X + b X Xᵀ X + c X Xᵀ X Xᵀ X, so many times.
inline std::vector<double> newton_schulz(const std::vector<double>& m, std::size_t rows, std::size_t columns,
                                         int iterations) {
  double norm = 0;
  for (const double one : m) norm += one * one;
  std::vector<double> x = m;
  for (double& one : x) one = norm > 0 ? one / std::sqrt(norm) : 0;
  for (int k = 0; k < iterations; ++k) {
    const auto gram_times = [&](const std::vector<double>& y) {  // X Xᵀ y
      std::vector<double> gram(rows * rows), result(rows * columns);
      for (std::size_t i = 0; i < rows; ++i)
        for (std::size_t j = 0; j < rows; ++j)
          for (std::size_t l = 0; l < columns; ++l) gram[i * rows + j] += x[i * columns + l] * x[j * columns + l];
      for (std::size_t i = 0; i < rows; ++i)
        for (std::size_t j = 0; j < rows; ++j)
          for (std::size_t l = 0; l < columns; ++l) result[i * columns + l] += gram[i * rows + j] * y[j * columns + l];
      return result;
    };
    const std::vector<double> cubic = gram_times(x), quintic = gram_times(cubic);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = 3.4445 * x[i] - 4.7750 * cubic[i] + 2.0315 * quintic[i];
  }
  return x;
}

}  // namespace onebit::test
