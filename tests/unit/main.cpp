/// \file main.cpp
/// Runs the unit tests of one executable with Kokkos started; two host threads, so that races have a chance.
/// Subnormal numbers count as 0, as in the program.

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "../skips.hpp"
#include "../source_directory.hpp"
#include "base/kokkos.hpp"
#include "base/system/subnormals.hpp"

std::string onebit::test::source_directory() {
  const char* const given = std::getenv("ONEBIT_SOURCE_DIR");
  return given != nullptr && *given != '\0' ? given : ONEBIT_SOURCE_DIR;
}

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  onebit::flush_subnormals();
  const onebit::KokkosSession kokkos(0, -1);
  ::testing::UnitTest::GetInstance()->listeners().Append(new onebit::test::SkipReport);
  onebit::flush_subnormals_of_backends();
  return RUN_ALL_TESTS();
}
