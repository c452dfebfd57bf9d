#pragma once
/// \file start.hpp
/// Whether a run could start, before it waits for its turn in a queue.

#include "config/input.hpp"

namespace onebit::train {

/// Refuses what a run would refuse when it starts: files that are missing or do not fit, a run that does not fit into
/// memory, checkpoints that cannot be read, and an output directory that cannot be written. Writes nothing, and
/// allocates nothing of the model's size. Needs no execution space.
/// \param memory bytes that a rank may take \param hosts that the ranks are on
/// \throws InputError
void check_start(const config::Input& input, int ranks, double memory, int hosts = 1);

}  // namespace onebit::train
