#pragma once
/// \file source_directory.hpp
/// Where unit tests find the repository's files.

#include <string>

namespace onebit::test {

/// The environment variable ONEBIT_SOURCE_DIR, for tests that were carried to another machine, or else the checkout
/// that the test was built in.
std::string source_directory();  // main.cpp

}  // namespace onebit::test
