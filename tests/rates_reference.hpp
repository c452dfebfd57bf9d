#pragma once
/// \file rates_reference.hpp
/// The learning rate and the weight decay of an element by `optimizer.groups`, in plain words.

#include <string_view>

#include "base/tensor_table.hpp"
#include "config/input.hpp"

namespace onebit::test {

/// Whether a pattern with `*` (any characters) and `?` (one) matches all of a name.
inline bool matches(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern.front() == '*')
    return matches(pattern.substr(1), name) || (!name.empty() && matches(pattern, name.substr(1)));
  return !name.empty() && (pattern.front() == '?' || pattern.front() == name.front()) &&
         matches(pattern.substr(1), name.substr(1));
}

/// f and λ of element i.
struct RateOf {
  double lr_factor = 1, weight_decay;
  RateOf(const config::Input& input, const TensorTable& tensors, std::size_t i) {
    const Tensor& tensor = tensors.at_element(i);
    weight_decay = tensor.decays ? input.optimizer.weight_decay : 0;
    for (const config::TensorGroup& group : input.optimizer.groups) {
      if (!matches(group.pattern, tensor.name)) continue;
      lr_factor = group.lr_factor;
      if (group.weight_decay) weight_decay = *group.weight_decay;
      return;
    }
  }
};

}  // namespace onebit::test
