#pragma once
/// \file quantile.hpp
/// Quantiles of sorted values.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace onebit {

/// The least of the ascending values that at least a share q of them, in [0, 1], do not exceed; NaN without values.
inline double quantile(const std::vector<double>& ascending, double q) {
  if (ascending.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto rank = static_cast<std::size_t>(std::ceil(q * static_cast<double>(ascending.size())));
  return ascending[std::max<std::size_t>(rank, 1) - 1];
}

}  // namespace onebit
