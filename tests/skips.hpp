#pragma once
/// \file skips.hpp
/// Reports the tests that skip, as tests/skips.py does for scripts: a line `test: piece<TAB>reason` in the file that
/// the environment variable ONEBIT_SKIPS names.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

namespace onebit::test {

/// Begins the reason of a skip that depends on the number of ranks alone. Such a test runs at another number of ranks
/// of tests/CMakeLists.txt, so nothing is left out.
inline constexpr const char* other_ranks = "for other numbers of ranks: ";

class SkipReport : public ::testing::EmptyTestEventListener {
public:
  void OnTestEnd(const ::testing::TestInfo& test) override {
    const char* path = std::getenv("ONEBIT_SKIPS");
    if (path == nullptr || *path == '\0') return;
    const char* name = std::getenv("ONEBIT_TEST");
    for (int i = 0; i < test.result()->total_part_count(); ++i) {
      const ::testing::TestPartResult& part = test.result()->GetTestPartResult(i);
      std::string reason = part.message();
      if (!part.skipped() || reason.rfind(other_ranks, 0) == 0) continue;
      reason.erase(reason.find_last_not_of(" \n") + 1);
      std::replace_if(
          reason.begin(), reason.end(), [](char c) { return c == '\n' || c == '\t'; }, ' ');
      std::ofstream(path, std::ios::app) << (name != nullptr ? std::string(name) + ": " : "") + test.test_suite_name() +
                                                "." + test.name() + "\t" + reason + "\n";
    }
  }
};

}  // namespace onebit::test
