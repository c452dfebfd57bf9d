/// \file main.cpp
/// Runs the unit tests of one executable with Kokkos started; two host threads, so that races have a chance.

#include <gtest/gtest.h>

#include "base/kokkos.hpp"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const onebit::KokkosSession kokkos(0, -1);
  return RUN_ALL_TESTS();
}
