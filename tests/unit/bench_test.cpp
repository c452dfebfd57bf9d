/// \file bench_test.cpp
/// What the benchmarks make of their measurements.

#include <gtest/gtest.h>

#include "bench/measurement.hpp"

namespace onebit::bench {
namespace {

TEST(TimesOfSlowestRank, are_the_greatest_of_each_repetition) {
  // Rank 1 is the slow one in repetitions 0 to 2, rank 2 in the last.
  const std::vector<double> seconds = {1, 1, 1, 1,   //
                                       5, 3, 4, 1,   //
                                       2, 2, 2, 9};  // (ranks × repetitions)
  const RepetitionTimes times = times_of_slowest_rank(seconds, 4);
  EXPECT_DOUBLE_EQ(times.min, 3);
  EXPECT_DOUBLE_EQ(times.median, 4);
  EXPECT_DOUBLE_EQ(times.mean, (5.0 + 3 + 4 + 9) / 4);
  EXPECT_DOUBLE_EQ(times.max, 9);
  EXPECT_DOUBLE_EQ(times.percentile_99, 9);
}

TEST(TimesOfSlowestRank, of_one_rank_and_one_repetition_is_its_time) {
  const RepetitionTimes times = times_of_slowest_rank({2}, 1);
  for (const double time : {times.min, times.median, times.mean, times.max, times.percentile_99})
    EXPECT_DOUBLE_EQ(time, 2);
}

}  // namespace
}  // namespace onebit::bench
