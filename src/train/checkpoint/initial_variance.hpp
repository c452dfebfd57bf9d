#pragma once
/// \file initial_variance.hpp
/// `freeze.from`: a run that starts with the variance of an earlier one.

#include "optim/algorithm.hpp"

namespace onebit::train {

/// Restores the variance of the checkpoint that `freeze.from` names, if it names one, and the number of steps that this
/// variance is the average of. All other state of the algorithm stays as it is.
/// \throws Error, with the place of the key, for a file without a variance of this model
template <class Exec>
void read_initial_variance(const Exec& exec, const config::Input& input, std::size_t length,
                           optim::Algorithm<Exec>& algorithm);

}  // namespace onebit::train
