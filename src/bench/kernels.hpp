#pragma once
/// \file kernels.hpp
/// `onebit bench kernels`: the machine, and every kernel of a training step against the machine's floor.

#include "base/mpi.hpp"
#include "config/input.hpp"

namespace onebit::bench {

/// Measures the machine, the optimiser's passes over `bench.smallest` … `bench.largest` parameters and the kernels of the
/// model in section `model`; writes kernels.csv into `run.output` and a table to standard output. All ranks measure at once.
/// Collective over `communicator`.
/// \throws AgreedError when a kernel's result is not its twin's, or the output cannot be written
template <class Exec>
void kernels(const Exec& exec, const config::Input& input, const Communicator& communicator);

}  // namespace onebit::bench
