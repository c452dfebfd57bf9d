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

TEST(TimesOverRanks, name_the_slowest_rank_of_each_repetition) {
  const std::vector<double> seconds = {1, 4, 2,   //
                                       5, 3, 2,   //
                                       3, 2, 2};  // (ranks × repetitions)
  const std::vector<RankTimes> times = times_over_ranks(seconds, 3);
  ASSERT_EQ(times.size(), 3u);
  const int slowest_ranks[] = {1, 0, 0};  // the lowest of equal ones
  const double slowest[] = {5, 4, 2}, least[] = {1, 2, 2}, mean[] = {3, 3, 2};
  for (int repetition = 0; repetition < 3; ++repetition) {
    EXPECT_EQ(times[repetition].slowest_rank, slowest_ranks[repetition]);
    EXPECT_DOUBLE_EQ(times[repetition].slowest, slowest[repetition]);
    EXPECT_DOUBLE_EQ(times[repetition].least, least[repetition]);
    EXPECT_DOUBLE_EQ(times[repetition].mean, mean[repetition]);
  }
}

TEST(LatencyOverRanks, is_of_the_means_of_ranks) {
  const std::vector<double> seconds = {1, 3,   //
                                       8, 4,   //
                                       2, 0};  // (ranks × repetitions)
  const Latency latency = latency_over_ranks(seconds, 2);
  EXPECT_DOUBLE_EQ(latency.mean, 3);
  EXPECT_DOUBLE_EQ(latency.least, 1);
  EXPECT_DOUBLE_EQ(latency.greatest, 6);
}

}  // namespace
}  // namespace onebit::bench
