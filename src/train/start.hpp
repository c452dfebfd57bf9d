#pragma once
/// \file start.hpp
/// Whether a run could start, before it waits for its turn in a queue.

#include "workload/workload.hpp"

namespace onebit::train {

/// Refuses what a run on `share.ranks` ranks would refuse when it starts: as workload::check_start, checkpoints that
/// cannot be read, and an output directory that cannot be written. Writes nothing.
/// \throws InputError
void check_start(const config::Input& input, workload::Share share);

}  // namespace onebit::train
