/// \file thread_level_test.cpp
/// Ranks whose MPI libraries offer different thread levels: all of them know the least.

#include <gtest/gtest.h>

#include "base/mpi.hpp"

// MPI's profiling interface (MPI 3.1, chapter 14): these stand before the library's functions.
namespace {
/// The last rank has no more than MPI_THREAD_FUNNELED.
void limit(int* level) {
  int rank = 0, size = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  PMPI_Comm_size(MPI_COMM_WORLD, &size);
  if (rank == size - 1) *level = MPI_THREAD_FUNNELED;
}
}  // namespace
extern "C" {
int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  const int status = PMPI_Init_thread(argc, argv, required, provided);
  limit(provided);
  return status;
}
int MPI_Query_thread(int* provided) {
  const int status = PMPI_Query_thread(provided);
  limit(provided);
  return status;
}
}

namespace onebit {
namespace {

TEST(ThreadLevel, is_the_least_of_all_ranks) { EXPECT_FALSE(any_thread_may_call()); }

}  // namespace
}  // namespace onebit
