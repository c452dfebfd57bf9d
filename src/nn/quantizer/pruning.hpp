#pragma once
/// \file pruning.hpp
/// The pruning of gradients: from the ranges of N groups to the groups that are kept, on the host, in double and in the
/// order of the groups.

#include <vector>

#include "base/choices.hpp"
#include "nn/quantizer/stochastic_rounding.hpp"

namespace onebit::nn {

/// What pruning knows of a group.
struct GroupSize {
  double range = 0;    ///< R = max − min; NaN where an element is NaN or infinite
  double largest = 0;  ///< max |g|
};

/// p_i = min(1, c R_i) with Σ p_i = budget over the groups with R_i > 0, or p_i = 1 if those are at most `budget`.
/// A group without range has p_i = 1 outside the budget if it holds a number other than 0, because its Z would be lost
/// otherwise; else p_i = 0. A group with NaN or infinity has p_i = 1 outside the budget, too.
void water_fill(const std::vector<GroupSize>& groups, double budget, std::vector<double>* probabilities);

/// Chooses the groups that are kept, and keeps its memory between calls.
class GroupChoice {
public:
  GroupChoice() = default;
  /// \param bits b: the budget is N/b groups
  GroupChoice(int largest_groups, int bits, Pruning pruning);

  /// - `bernoulli` keeps group i with probability p_i, independently of the others.
  /// - `systematic` keeps it with the same probability. With C the running sum of p and one U, it keeps i if
  ///   ⌊C_i + U⌋ > ⌊C_{i−1} + U⌋. Of the groups in the budget it keeps ⌊N/b⌋ or ⌈N/b⌉, if as many have a range.
  /// - `topk` keeps the ⌊N/b⌋ groups, at least one, of greatest max |g|, of equal ones the first. Those have p = 1, so
  ///   the estimate is biased. Groups with NaN or infinity are kept besides.
  void operator()(const std::vector<GroupSize>& groups, const GradientDraws& draws);

  /// The groups that are kept, in ascending order.
  const std::vector<int>& kept() const { return m_kept; }
  /// p of each group; for `topk` 1 or 0.
  const std::vector<double>& probabilities() const { return m_probabilities; }

private:
  void choose_largest(const std::vector<GroupSize>& groups);

  int m_bits = 1;
  Pruning m_pruning = Pruning::systematic;
  std::vector<int> m_kept, m_order;
  std::vector<double> m_probabilities;
};

}  // namespace onebit::nn
