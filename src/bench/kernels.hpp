#pragma once
/// \file kernels.hpp
/// `onebit bench kernels`: every kernel of a training step against its roofline on this machine.

#include "base/mpi.hpp"
#include "config/input.hpp"

namespace onebit::bench {

/// Measures the machine, the optimiser's passes over `bench.smallest` … `bench.largest` parameters, and the kernels of
/// the model in section `model`; writes kernels.csv into `run.output` and a table to standard output. All ranks measure
/// at the same time. Collective over `communicator`.
/// \throws AgreedError when a result differs from that of the plain twin, or the output cannot be written
template <class Exec>
void kernels(const Exec& exec, const config::Input& input, const Communicator& communicator);

}  // namespace onebit::bench
