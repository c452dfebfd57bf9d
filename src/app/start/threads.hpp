#pragma once
/// \file threads.hpp
/// How many threads a rank starts, and whether the ranks of a host have a core for each of theirs.

#include "base/mpi.hpp"
#include "config/input.hpp"

namespace onebit::app {

/// Takes the variables by which Kokkos::initialize is told of threads and devices out of the environment, because the
/// input decides about these. To be called before any other thread starts.
void take_kokkos_variables();

/// Threads of this rank on the host: `run.threads`, else KOKKOS_NUM_THREADS, else OpenMP's number.
/// \throws InputError that names the variable which says something else than a number of threads that can be started,
///         or that chooses a GPU
int host_threads(const config::Input& input);

/// Rank 0 prints how many threads the ranks start, and on how many cores they may run. It warns where the threads of a
/// host are more than these cores, or where several are bound to the same one. Collective; Kokkos has started.
/// \param threads of this rank
void report_threads(const Communicator& world, int threads);

}  // namespace onebit::app
