#pragma once
/// \file memory.hpp
/// What a run takes of a rank's memory beside its workload, known before anything is allocated.

#include "base/device/memory.hpp"
#include "base/tensor_table.hpp"
#include "config/input.hpp"

namespace onebit::optim {

/// Of parameters, gradient, the algorithm's state, messages, sums, and what MPI takes inside while it averages a dense
/// vector. docs/develop/performance/memory.md has the sums by algorithm.
/// \param ranks n \param hosts that hierarchical averages run over
PhaseBytes run_bytes(const config::Input& input, const TensorTable& tensors, int ranks, int hosts = 1);

}  // namespace onebit::optim
