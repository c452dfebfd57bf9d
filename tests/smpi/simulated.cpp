/// \file simulated.cpp
/// What a simulated rank calls in place of two functions: the linker gives calls of F to __wrap_F.

#include <mpi.h>
#include <simgrid/engine.h>

#include <chrono>

using Clock = std::chrono::steady_clock;

extern "C" {

/// The simulator's time in place of the machine's: std::chrono::steady_clock::now.
Clock::time_point __wrap__ZNSt6chrono3_V212steady_clock3nowEv() {
  const std::chrono::duration<double> simulated(simgrid_get_clock());
  return Clock::time_point(std::chrono::duration_cast<Clock::duration>(simulated));
}

/// Waits, where Messages::wait polls. A simulated rank that waits keeps no core busy. Each poll would cost the
/// simulator work for every message, and a simulated pause (smpi/test) that no network has.
int __wrap_MPI_Testall(int count, MPI_Request* requests, int* complete, MPI_Status* statuses) {
  *complete = 1;
  return MPI_Waitall(count, requests, statuses);
}
}
