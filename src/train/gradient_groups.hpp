#pragma once
/// \file gradient_groups.hpp
/// The rows of gradient_groups.csv: the ranges of a gradient's groups (Figures 2, 8 and 9 of the 1-bit FQT paper) and
/// the variance of its quantiser (Figure 6). tables.cpp describes the columns.

#include <algorithm>
#include <numeric>

#include "base/quantile.hpp"
#include "train/results/results.hpp"

namespace onebit::train {

/// The share of the sum that the greatest 1/b of the ascending values have; NaN if all are zero.
inline double share_of_greatest(const std::vector<double>& values, int b) {
  const auto greatest = static_cast<std::ptrdiff_t>(values.size()) / std::max(b, 1);
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return sum > 0 ? std::accumulate(values.end() - greatest, values.end(), 0.0) / sum : optim::no_value;
}

inline Columns group_columns(long step, const nn::GradientGroups& gradient) {
  const std::vector<double>& ranges = gradient.ranges;
  const auto count = static_cast<double>(ranges.size());
  return {{"step", step},
          {"layer", gradient.layer},
          {"axis", gradient.axis == nn::GroupAxis::rows ? "rows" : "columns"},
          {"bits", gradient.bits},
          {"groups", gradient.groups},
          {"kept", gradient.kept},
          {"elements", gradient.elements},
          {"norm_squared", gradient.error.norm_squared},
          {"variance", gradient.error.exact},
          {"paper_variance", gradient.error.paper},
          {"drawn_error", gradient.drawn_error},
          {"range_min", quantile(ranges, 0)},
          {"range_p10", quantile(ranges, 0.1)},
          {"range_p25", quantile(ranges, 0.25)},
          {"range_p50", quantile(ranges, 0.5)},
          {"range_p75", quantile(ranges, 0.75)},
          {"range_p90", quantile(ranges, 0.9)},
          {"range_p99", quantile(ranges, 0.99)},
          {"range_max", quantile(ranges, 1)},
          {"range_mean", std::accumulate(ranges.begin(), ranges.end(), 0.0) / count},
          {"share_of_greatest", share_of_greatest(ranges, gradient.bits)}};
}

}  // namespace onebit::train
