#pragma once
/// \file variance_change.hpp
/// `onebit checkpoint variance`: how far the variance has settled, tensor by tensor. r_t, which sets T_w (Tang et al.,
/// ICML 2021, Section 7.1), is of all elements together, so changes that cancel out are not in it.

#include <string>
#include <vector>

namespace onebit::train {

/// What became of a tensor's variance v between two checkpoints; v' is the later one's.
struct VarianceChange {
  std::string name;
  std::size_t elements = 0;
  double l1 = 0, later_l1 = 0;                 ///< ‖v‖₁ and ‖v'‖₁
  double least = 1, median = 1, greatest = 1;  ///< 5, 50 and 95 % of √(v'/v), over elements with v > 0

  double ratio() const { return later_l1 / l1; }  ///< r
  double stability() const;                       ///< min(r, 1/r)
};

/// Compares the elements of a tensor. \param before, after v and v'
VarianceChange variance_change(const std::string& name, const std::vector<float>& before,
                               const std::vector<float>& after);

/// A table of all tensors that a gradient has reached, in the order of the flat vector, and min(r, 1/r) of all elements
/// together, of the median tensor and of the least settled one. Not collective.
/// \throws InputError if a checkpoint is damaged or has no variance, or the models differ
std::string describe_variance_change(const std::string& earlier, const std::string& later);

}  // namespace onebit::train
