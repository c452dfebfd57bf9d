#pragma once
/// \file bench.hpp
/// The benchmarks of `onebit bench`. All are collective over `communicator`, check a result before they time it, and
/// write CSV files into `run.output` and a table to standard output. Rank 0 returns the figures of merit
/// (docs/reference/output/figures_of_merit.md); those of the other ranks say nothing.
/// \throws WrongResult when a result is wrong, and another AgreedError when the output cannot be written

#include <string>

#include "base/mpi.hpp"
#include "config/input.hpp"
#include "io/figures.hpp"

namespace onebit::bench {

/// collective.csv and repetitions.csv: the averages of `bench.collectives`, dense and compressed, by vector length.
template <class Exec>
FiguresOfMerit collective(const Exec& exec, const config::Input& input, const Communicator& communicator);

/// kernels.csv: the machine, the optimiser's passes over `bench.smallest` … `bench.largest` parameters, and the kernels
/// of the model in section `model`, each against its roofline. All ranks measure at the same time.
template <class Exec>
FiguresOfMerit kernels(const Exec& exec, const config::Input& input, const Communicator& communicator);

/// layers.csv: the layers of `bench.layers`, each with one bit beside the products of float and of 8-bit factors.
template <class Exec>
FiguresOfMerit layers(const Exec& exec, const config::Input& input, const Communicator& communicator);

/// What this build has on this machine, one line each: the transports, and the precisions of each backend. Not
/// collective.
std::string features();

}  // namespace onebit::bench
