/// \file pruning.cpp
/// See pruning.hpp.

#include "nn/quantizer/pruning.hpp"

#include <algorithm>
#include <cmath>

namespace onebit::nn {

void water_fill(const std::vector<GroupSize>& groups, double budget, std::vector<double>* probabilities) {
  double largest = 0;
  std::size_t with_range = 0;
  probabilities->resize(groups.size());
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const GroupSize& group = groups[i];
    (*probabilities)[i] = std::isnan(group.range) || (group.range == 0 && group.largest > 0) ? 1 : 0;
    if (!(group.range > 0)) continue;
    ++with_range;
    largest = std::max(largest, group.range);
  }
  if (with_range <= budget) {
    for (std::size_t i = 0; i < groups.size(); ++i)
      if (groups[i].range > 0) (*probabilities)[i] = 1;
    return;
  }
  // c grows from pass to pass, because groups with c R_i ≥ 1 leave more of the budget to the others than c R_i would.
  // So the groups at 1 stay there, and a pass that adds none is the last. Quotients by the largest range keep the sum
  // finite.
  std::size_t full = 0;
  for (;;) {
    double sum = 0;
    for (std::size_t i = 0; i < groups.size(); ++i)
      if (groups[i].range > 0 && (*probabilities)[i] < 1) sum += groups[i].range / largest;
    const double c = (budget - static_cast<double>(full)) / sum;
    std::size_t reached = 0;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      if (!(groups[i].range > 0) || (*probabilities)[i] >= 1) continue;
      (*probabilities)[i] = std::min(1.0, c * (groups[i].range / largest));
      if ((*probabilities)[i] >= 1) ++reached;
    }
    if (reached == 0) return;
    full += reached;
  }
}

GroupChoice::GroupChoice(int largest_groups, int bits, Pruning pruning) : m_bits(bits), m_pruning(pruning) {
  m_kept.reserve(largest_groups);
  m_order.reserve(largest_groups);
  m_probabilities.reserve(largest_groups);
}

void GroupChoice::operator()(const std::vector<GroupSize>& groups, const GradientDraws& draws) {
  m_kept.clear();
  if (m_pruning == Pruning::topk) {
    choose_largest(groups);
    return;
  }
  water_fill(groups, static_cast<double>(groups.size()) / m_bits, &m_probabilities);
  const int count = static_cast<int>(groups.size());
  if (m_pruning == Pruning::bernoulli) {
    for (int i = 0; i < count; ++i)
      if (draws.decision(i) < m_probabilities[i]) m_kept.push_back(i);
    return;
  }
  const double u = draws.decision(0);
  double before = 0;
  for (int i = 0; i < count; ++i) {
    const double after = before + m_probabilities[i];
    // Rounding of the running sum must not lose a group that is certain.
    if (m_probabilities[i] >= 1 || std::floor(after + u) > std::floor(before + u)) m_kept.push_back(i);
    before = after;
  }
}

void GroupChoice::choose_largest(const std::vector<GroupSize>& groups) {
  m_order.clear();
  for (int i = 0; i < static_cast<int>(groups.size()); ++i)
    if (std::isnan(groups[i].range))
      m_kept.push_back(i);
    else
      m_order.push_back(i);
  const std::size_t wanted = std::min(std::max<std::size_t>(groups.size() / m_bits, 1), m_order.size());
  std::nth_element(m_order.begin(), m_order.begin() + wanted, m_order.end(), [&](int a, int b) {
    return groups[a].largest > groups[b].largest || (groups[a].largest == groups[b].largest && a < b);
  });
  m_kept.insert(m_kept.end(), m_order.begin(), m_order.begin() + wanted);
  std::sort(m_kept.begin(), m_kept.end());
  m_probabilities.assign(groups.size(), 0);
  for (const int group : m_kept) m_probabilities[group] = 1;
}

}  // namespace onebit::nn
