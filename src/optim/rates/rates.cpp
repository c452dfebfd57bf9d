/// \file rates.cpp
/// The rate of each tensor, from the input.

#include "optim/rates/rates.hpp"

#include <algorithm>
#include <string>

#include "base/error.hpp"
#include "base/names.hpp"

namespace onebit::optim {
namespace {

using Groups = std::vector<config::TensorGroup>;

/// The first group that matches a tensor, or the end.
Groups::const_iterator group_of(const Groups& groups, const Tensor& tensor) {
  return std::find_if(groups.begin(), groups.end(),
                      [&](const config::TensorGroup& group) { return matches(group.pattern, tensor.name); });
}

/// Refuses a group that no tensor is in.
void check(const Groups& groups, const TensorTable& tensors) {
  std::vector<std::string> names;
  std::vector<int> members(groups.size());
  for (const Tensor& tensor : tensors.tensors()) {
    names.push_back(tensor.name);
    if (const auto group = group_of(groups, tensor); group != groups.end()) ++members[group - groups.begin()];
  }
  for (std::size_t index = 0; index < groups.size(); ++index) {
    if (members[index] > 0) continue;
    const std::string& pattern = groups[index].pattern;
    const bool is_hidden =
        std::any_of(names.begin(), names.end(), [&](const std::string& name) { return matches(pattern, name); });
    throw InputError(groups[index].where,
                     "pattern '" + excerpt(pattern) + "' of optimizer.groups matches " +
                         (is_hidden ? "tensors of earlier groups alone" : "the name of no tensor"),
                     is_hidden ? "put this group before those, or leave it out"
                               : "did you mean '" + nearest(pattern, names, std::string::npos) + "'?");
  }
}

}  // namespace

std::vector<RateRange> rate_ranges(const config::Input& input, const TensorTable& tensors) {
  const Groups& groups = input.optimizer.groups;
  check(groups, tensors);
  std::vector<RateRange> ranges;
  for (const Tensor& tensor : tensors.tensors()) {
    const auto group = group_of(groups, tensor);
    const bool is_member = group != groups.end();
    const double of_run = tensor.decays ? input.optimizer.weight_decay : 0;
    const double decay = is_member ? group->weight_decay.value_or(of_run) : of_run;
    const RateRange range{tensor.offset + tensor.size(), is_member ? group->lr_factor : 1, decay};
    const bool goes_on = !ranges.empty() && ranges.back().lr_factor == range.lr_factor &&
                         ranges.back().weight_decay == range.weight_decay;
    if (!goes_on) ranges.push_back(range);
    ranges.back().end = range.end;
  }
  return ranges;
}

}  // namespace onebit::optim
