/// \file main.cpp
/// Runs the MPI tests of one executable on every rank. Rank 0 reports; a failure on any rank fails all.
/// Subnormal numbers count as 0, as in the program.

#include <gtest/gtest.h>

#include "../skips.hpp"
#include "base/device/gpus.hpp"
#include "base/mpi.hpp"
#include "base/system/subnormals.hpp"

namespace {

/// Prints the failures of the other ranks, which have no printer of their own.
class RankFailures : public ::testing::EmptyTestEventListener {
public:
  explicit RankFailures(int rank) : m_rank(rank) {}
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (result.failed())
      std::fprintf(stderr, "rank %d: %s:%d: %s\n", m_rank, result.file_name(), result.line_number(), result.summary());
  }

private:
  int m_rank;
};

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  onebit::flush_subnormals();
  const onebit::MpiSession mpi(argc, argv);
  const onebit::Communicator world;
  const onebit::KokkosSession kokkos(0, onebit::gpu_of_rank(world.local_rank(), onebit::gpu_count()));
  onebit::flush_subnormals_of_backends();
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (world.rank() > 0) {
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new RankFailures(world.rank()));
  }
  listeners.Append(new onebit::test::SkipReport);
  double failed = RUN_ALL_TESTS();
  world.sum(&failed, 1);
  return failed == 0 ? 0 : 1;
}
