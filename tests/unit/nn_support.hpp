#pragma once
/// \file nn_support.hpp
/// What the tests of nn share: arrays in the memory of a backend, errors, and checks of gradients by differences.

#include <algorithm>
#include <cmath>
#include <random>
#include <type_traits>
#include <vector>

#include "../nn_reference.hpp"
#include "../support.hpp"
#include "nn/rows.hpp"

namespace onebit::test {

/// Runs check(Real()) for float and double.
template <class Check>
void for_both_types(const Check& check) {
  check(float());
  check(double());
}

/// An Array in the memory of a backend.
template <class Exec, class Real>
struct DeviceArray {
  int rows, columns;
  Vector<Exec, Real> memory;

  DeviceArray(int rows_, int columns_) : DeviceArray(nn::Array<Real>(rows_, columns_)) {}
  explicit DeviceArray(const nn::Array<Real>& array)
      : rows(array.rows), columns(array.columns), memory(to_device<Exec>(array.values)) {}

  MatrixRef<Exec, Real> matrix() const { return MatrixRef<Exec, Real>(memory.data(), rows, columns); }
  nn::VectorRef<Exec, Real> vector() const { return memory; }
  /// In double, for comparison with a reference.
  nn::Array<double> array() const {
    const std::vector<Real> values = to_host(memory);
    nn::Array<double> array(rows, columns);
    array.values.assign(values.begin(), values.end());
    return array;
  }
};

/// Normal numbers that float and double hold exactly.
template <class Real = double>
nn::Array<Real> random_array(int rows, int columns, unsigned seed, double deviation = 1, double mean = 0) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  nn::Array<Real> array(rows, columns);
  for (Real& value : array.values) value = normal(generator) * static_cast<float>(deviation) + static_cast<float>(mean);
  return array;
}

template <class Real>
nn::Array<double> in_double(const nn::Array<Real>& array) {
  nn::Array<double> converted(array.rows, array.columns);
  converted.values.assign(array.values.begin(), array.values.end());
  return converted;
}

/// The rounding error of a kernel's sums of some hundred terms.
template <class Real>
constexpr double rounding = std::is_same_v<Real, float> ? 3e-6 : 1e-14;

/// Of an Array in double, in Real.
template <class Real>
nn::Array<Real> of_real(const nn::Array<double>& array) {
  nn::Array<Real> converted(array.rows, array.columns);
  converted.values.assign(array.values.begin(), array.values.end());
  return converted;
}

/// Some elements are where sign or the straight-through estimator of 1-bit layers changes.
inline nn::Array<double> with_edges(nn::Array<double> array) {
  const double edges[] = {0.0, -0.0, 1.0, -1.0};
  for (std::size_t i = 0; i < array.values.size(); i += 7) array.values[i] = edges[i / 7 % 4];
  return array;
}

/// Whether each gradient that a backward pass tells to be complete is so, and all of them are told.
struct ReadyGradients {
  std::vector<std::size_t> ready;
  std::vector<std::vector<double>> seen;

  /// A GradientReady that records g when elements [begin, d) are complete.
  template <class Exec>
  auto recorder(const Exec& exec, const Vector<Exec, double>& g) {
    return [this, exec, g](std::size_t begin) {
      exec.fence();
      ready.push_back(begin);
      seen.push_back(to_host(g));
    };
  }
  /// \param expected what g holds in the end
  void expect_complete(const std::vector<double>& expected) const {
    ASSERT_FALSE(ready.empty());
    EXPECT_EQ(ready.back(), 0u);
    EXPECT_TRUE(std::is_sorted(ready.rbegin(), ready.rend()));
    for (std::size_t k = 0; k < ready.size(); ++k)
      EXPECT_TRUE(std::equal(expected.begin() + ready[k], expected.end(), seen[k].begin() + ready[k])) << k;
  }
};

/// Integers in [0, limit).
inline std::vector<int> random_integers(std::size_t length, int limit, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<int> values(length);
  for (int& value : values) value = static_cast<int>(generator() % limit);
  return values;
}

/// `count` different integers in [0, limit), in no order.
inline std::vector<int> random_choice(int count, int limit, unsigned seed) {
  std::vector<int> values(limit);
  for (int i = 0; i < limit; ++i) values[i] = i;
  std::shuffle(values.begin(), values.end(), std::mt19937(seed));
  values.resize(count);
  return values;
}

/// ‖a − b‖₂ / ‖b‖₂, or ‖a‖₂ where b = 0. NaN where there is one in a or b.
template <class A, class B>
double relative_error(const std::vector<A>& a, const std::vector<B>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    difference += (double(a[i]) - double(b[i])) * (double(a[i]) - double(b[i]));
    norm += double(b[i]) * double(b[i]);
  }
  return std::sqrt(norm > 0 ? difference / norm : difference);
}
inline double relative_error(const nn::Array<double>& a, const nn::Array<double>& b) {
  return relative_error(a.values, b.values);
}

/// Σ weights · values: a scalar function of an array, whose gradient at the array is `weights`.
inline double weighted_sum(const nn::Array<double>& weights, const nn::Array<double>& values) {
  double sum = 0;
  for (std::size_t i = 0; i < values.values.size(); ++i) sum += weights.values[i] * values.values[i];
  return sum;
}

/// Compares a gradient with differences of f around x: the largest |difference − g·v| / |g·v| along some directions v
/// that have the signs of g and random sizes, so that no part of g·v cancels another. Where g = 0, the largest
/// |difference|.
///
/// The difference is the central one of fourth order, (8 (f(h) − f(−h)) − (f(2h) − f(−2h))) / 12 h, whose error is
/// O(h⁴) + O(ε/h).
/// \param f    f() reads x
/// \param step h, with ‖v‖₂ = 1
template <class F>
double gradient_error(const F& f, std::vector<double>& x, const std::vector<double>& gradient, int directions = 2,
                      double step = 1e-3) {
  EXPECT_EQ(x.size(), gradient.size());
  std::mt19937 generator(7);
  std::uniform_real_distribution<double> size(0.5, 1.5);
  const std::vector<double> origin = x;
  double worst = 0;
  for (int direction = 0; direction < directions; ++direction) {
    std::vector<double> v(x.size());
    double square = 0, product = 0;
    for (std::size_t i = 0; i < v.size(); ++i) {
      v[i] = size(generator) * (gradient[i] < 0 ? -1 : 1);
      square += v[i] * v[i];
    }
    for (std::size_t i = 0; i < v.size(); ++i) {
      v[i] /= std::sqrt(square);
      product += gradient[i] * v[i];
    }
    const auto at = [&](double h) {
      for (std::size_t i = 0; i < v.size(); ++i) x[i] = origin[i] + h * v[i];
      return f();
    };
    const double difference = (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step);
    const double error = std::abs(difference - product) / (product > 0 ? product : 1);
    worst = error <= worst ? worst : error;  // keeps NaN
  }
  x = origin;
  return worst;
}

}  // namespace onebit::test
