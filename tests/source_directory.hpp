#pragma once
/// \file source_directory.hpp
/// Where tests find the repository's files.

#include <cstdlib>
#include <string>

namespace onebit::test {

/// The environment variable ONEBIT_SOURCE_DIR, for tests that were carried to another machine, or else the checkout
/// that the test was built in.
inline std::string source_directory() {
  const char* const given = std::getenv("ONEBIT_SOURCE_DIR");
  return given != nullptr && *given != '\0' ? given : ONEBIT_SOURCE_DIR;
}

}  // namespace onebit::test
