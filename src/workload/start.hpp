#pragma once
/// \file start.hpp
/// Whether a workload could be made, before anything is.

#include "workload/workload.hpp"

namespace onebit::workload {

/// Refuses what `make_workload` would refuse on this rank: files that are missing or do not fit, and a model that does
/// not fit into memory. Needs no execution space.
/// \throws InputError
void check_start(const config::Input& input, Share share);

}  // namespace onebit::workload
