#pragma once
/// \file precision.hpp
/// The precision of a run's products: the one that the input names, or for `model.precision: auto` the fastest here.

#include <string>

#include "base/mpi.hpp"
#include "config/input.hpp"

namespace onebit::workload {

struct ChosenPrecision {
  Precision precision;  ///< not `automatic`
  std::string reason;   ///< a sentence that follows "because"
};

/// For `auto`, all ranks time a gradient of the model with at most two layers at the same time, in each precision that
/// the backend has. The precision whose slowest rank is fastest wins. Training in each of them converges: sums,
/// parameters and attention are in float (Kalamkar et al. 2019, A Study of BFLOAT16 for Deep Learning Training).
/// Collective. \throws AgreedError
template <class Exec>
ChosenPrecision choose_precision(const Exec& exec, const config::Input& input, const Communicator& communicator);

}  // namespace onebit::workload
