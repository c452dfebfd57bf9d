#pragma once
/// \file bench.hpp
/// The benchmarks of `onebit bench`. All are collective over `communicator`, check a result before they time it, and
/// write a CSV file into `run.output` and a table to standard output.
/// \throws AgreedError when a result is wrong, or the output cannot be written

#include <string>

#include "base/mpi.hpp"
#include "config/input.hpp"

namespace onebit::bench {

/// collective.csv: the averages of `bench.collectives`, dense and compressed, by vector length.
template <class Exec>
void collective(const Exec& exec, const config::Input& input, const Communicator& communicator);

/// kernels.csv: the machine, the optimiser's passes over `bench.smallest` … `bench.largest` parameters, and the kernels
/// of the model in section `model`, each against its roofline. All ranks measure at the same time.
template <class Exec>
void kernels(const Exec& exec, const config::Input& input, const Communicator& communicator);

/// layers.csv: the layers of `bench.layers`, each with one bit beside the products of float and of 8-bit factors.
template <class Exec>
void layers(const Exec& exec, const config::Input& input, const Communicator& communicator);

/// What this build has on this machine, one line each: the transports, and the precisions of each backend. Not
/// collective.
std::string features();

}  // namespace onebit::bench
