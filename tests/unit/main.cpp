/// \file main.cpp
/// Runs the unit tests of one executable with Kokkos started; two host threads, so that races have a chance.
/// Subnormal numbers count as 0, as in the program.

#include <gtest/gtest.h>

#include "../skips.hpp"
#include "base/kokkos.hpp"
#include "base/subnormals.hpp"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  onebit::flush_subnormals();
  const onebit::KokkosSession kokkos(0, -1);
  ::testing::UnitTest::GetInstance()->listeners().Append(new onebit::test::SkipReport);
  onebit::flush_subnormals_of_backends();
  return RUN_ALL_TESTS();
}
