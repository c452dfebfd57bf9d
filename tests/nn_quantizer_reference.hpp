#pragma once
/// \file nn_quantizer_reference.hpp
/// The definition of quantised gradients, as plain loops (docs/reference/algorithms/onebit_layers.md).

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "base/choices.hpp"
#include "base/random.hpp"
#include "nn/reference.hpp"

namespace onebit::nn {

/// Codes of the kept rows or columns, and what makes numbers of them.
template <class Real>
struct QuantizedRef {
  int kept = 0, elements = 0;
  std::vector<int> line;                    ///< (kept) rows or columns
  std::vector<std::vector<unsigned>> code;  ///< (kept, elements)
  std::vector<Real> scale, offset;          ///< (kept)
  std::vector<double> probability;          ///< of all groups
};

/// What selects the random numbers.
struct DrawRef {
  std::uint64_t seed, step, first_sample;
  int layer, product;

  Philox4 words(Stream stream, int line, int call) const {
    const std::uint64_t place = static_cast<std::uint64_t>(2 * layer + product) * 65536 + call;
    return philox(stream_key(seed, stream), static_cast<std::uint64_t>(line) * 0x100000000u + place,
                  step * 0x100000000u + first_sample % 0x100000000u);
  }
  /// The n of element e of a row or column.
  unsigned rounding(int line, int e) const {
    const int w = e % 8;
    const std::uint32_t word = words(Stream::gradient_rounding, line, e / 8).word[w % 4];
    return w < 4 ? word % 65536 : word / 65536;
  }
  double pruning(int group) const { return (words(Stream::gradient_pruning, group, 0).word[0] + 0.5) / 4294967296.0; }
};

/// p by water-filling: sorts the ranges and tries each number of groups with p = 1.
inline std::vector<double> water_fill_ref(const std::vector<double>& range, const std::vector<double>& largest,
                                          double budget) {
  std::vector<double> sorted, p(range.size());
  for (const double r : range)
    if (r > 0) sorted.push_back(r);
  std::sort(sorted.rbegin(), sorted.rend());
  const int count = static_cast<int>(sorted.size());
  double c = std::numeric_limits<double>::infinity();
  for (int full = 0; full < count; ++full) {
    double rest = 0;
    for (int i = count; i-- > full;) rest += sorted[i];
    const double attempt = (budget - full) / rest;
    if (attempt * sorted[full] <= 1) {
      c = attempt;
      break;
    }
  }
  for (std::size_t i = 0; i < range.size(); ++i) {
    if (std::isnan(range[i]) || (range[i] == 0 && largest[i] != 0)) p[i] = 1;
    if (range[i] > 0) p[i] = std::min(1.0, c * range[i]);
  }
  return p;
}

/// The kept groups. Sets the probabilities, which are 1 or 0 for `topk`.
inline std::vector<int> choose_ref(Pruning pruning, const std::vector<double>& range,
                                   const std::vector<double>& largest, int bits, const DrawRef& draw,
                                   std::vector<double>* probability) {
  const int groups = static_cast<int>(range.size());
  std::vector<int> kept;
  if (pruning == Pruning::topk) {
    std::vector<int> order(groups);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return largest[a] > largest[b]; });
    kept.assign(order.begin(), order.begin() + std::max(1, groups / bits));
    std::sort(kept.begin(), kept.end());
    probability->assign(groups, 0);
    for (const int i : kept) (*probability)[i] = 1;
    return kept;
  }
  *probability = water_fill_ref(range, largest, static_cast<double>(groups) / bits);
  double sum = 0;
  for (int i = 0; i < groups; ++i) {
    const double p = (*probability)[i], before = sum;
    sum += p;
    const double u = draw.pruning(pruning == Pruning::bernoulli ? i : 0);
    if (pruning == Pruning::bernoulli ? u < p : p == 1 || std::floor(sum + u) > std::floor(before + u))
      kept.push_back(i);
  }
  return kept;
}

/// Quantises the rows of `gradient`, in groups of some consecutive rows with one range. For columns the caller
/// transposes.
template <class Real>
QuantizedRef<Real> quantize_ref(const Array<Real>& gradient, int bits, std::optional<Pruning> pruning,
                                const DrawRef& draw, int rows_per_group = 1) {
  const int groups = gradient.rows / rows_per_group, elements = gradient.columns;
  const Real B = static_cast<Real>((1 << bits) - 1);
  std::vector<double> range(groups), largest(groups);
  std::vector<Real> low(groups), width(groups);
  for (int i = 0; i < groups; ++i) {
    Real high = gradient(i * rows_per_group, 0);
    low[i] = high;
    bool finite = true;
    for (int e = 0; e < rows_per_group * elements; ++e) {
      const Real g = gradient(i * rows_per_group + e / elements, e % elements);
      finite = finite && std::isfinite(g);
      low[i] = std::min(low[i], g);
      high = std::max(high, g);
    }
    width[i] = high - low[i];
    if (!std::isfinite(B / width[i])) width[i] = 0;
    if (!finite) width[i] = std::numeric_limits<Real>::quiet_NaN();
    range[i] = width[i];
    largest[i] = width[i] == 0 ? std::abs(low[i]) : std::max(std::abs(low[i]), std::abs(high));
  }
  QuantizedRef<Real> result;
  result.elements = elements;
  std::vector<int> kept(groups);
  std::iota(kept.begin(), kept.end(), 0);
  result.probability.assign(groups, 1);
  if (pruning && bits > 1) kept = choose_ref(*pruning, range, largest, bits, draw, &result.probability);
  for (const int i : kept)
    for (int r = i * rows_per_group; r < (i + 1) * rows_per_group; ++r) {
      const double p = result.probability[i];
      std::vector<unsigned> codes(elements, 0);
      for (int j = 0; j < elements && width[i] > 0; ++j) {
        const Real u = (draw.rounding(r, j) + Real(0.5)) / Real(65536);
        const Real level = std::floor((gradient(r, j) - low[i]) * (B / width[i]) + u);
        codes[j] = static_cast<unsigned>(std::min(B, level));
      }
      result.line.push_back(r);
      result.code.push_back(codes);
      result.scale.push_back(static_cast<Real>(width[i] / (2 * B * p)));
      result.offset.push_back(static_cast<Real>(std::isnan(width[i]) ? width[i] : (low[i] + width[i] * 0.5) / p));
    }
  result.kept = static_cast<int>(result.line.size());
  return result;
}

}  // namespace onebit::nn
