#pragma once
/// \file memory_check.hpp
/// The check of a run's memory without the run.

#include "optim/memory.hpp"
#include "workload/workload.hpp"

namespace onebit::train {

/// Refuses an input whose run would not fit into a rank's memory. Reads the files that the model's size depends on, and
/// allocates nothing of that size. Not collective.
/// \param memory bytes that a rank may take, e.g. available_host_memory() over the ranks of a host
/// \returns the peaks of a rank's bytes \throws InputError as a run would
inline PhaseBytes check_memory(const config::Input& input, int ranks, double memory, int hosts = 1) {
  const auto run_bytes = [&](const TensorTable& tensors) { return optim::run_bytes(input, tensors, ranks, hosts); };
  const workload::Footprint footprint = workload::footprint(input, ranks);
  workload::check_memory(input, footprint, {0, ranks, memory, run_bytes});
  PhaseBytes bytes = run_bytes(footprint.tensors);
  bytes.dense += footprint.bytes;
  bytes.compressed += footprint.bytes;
  return bytes;
}

}  // namespace onebit::train
