#pragma once
/// \file measurement.hpp
/// Common parts of the benchmarks: their CSV file, and times over ranks and repetitions.

#include <memory>
#include <string>
#include <vector>

#include "base/mpi.hpp"
#include "config/input.hpp"
#include "io/csv.hpp"
#include "io/csv_table.hpp"

namespace onebit::bench {

/// Opens a file in `run.output` on rank 0; null on the other ranks. Collective.
/// \throws AgreedError when it cannot be written
std::unique_ptr<CsvFile> open_csv(const config::Input& input, const Communicator& communicator, const CsvTable& table);

/// (values) greatest value of any rank at each place. Collective.
std::vector<double> slowest_rank(const Communicator& communicator, const std::vector<double>& values);

/// Times over the repetitions, in seconds.
struct RepetitionTimes {
  double min, median, mean, max, percentile_99;
};

/// Statistics of the repetitions. A repetition ends on its slowest rank, so its time is the greatest of all ranks.
/// \param seconds (ranks × repetitions)
RepetitionTimes times_of_slowest_rank(const std::vector<double>& seconds, int repetitions);

/// The same of this rank's times. Collective. \param seconds (repetitions)
RepetitionTimes times_of_slowest_rank(const Communicator& communicator, const std::vector<double>& seconds);

/// One repetition over the ranks, in seconds.
struct RankTimes {
  double slowest;
  int slowest_rank;  ///< the lowest of those that took so long
  double least, mean;
};
/// (repetitions) \param seconds (ranks × repetitions)
std::vector<RankTimes> times_over_ranks(const std::vector<double>& seconds, int repetitions);

/// Latency as in the OSU benchmarks: each rank's mean time over the repetitions, in seconds, and its mean, least and
/// greatest value over the ranks.
struct Latency {
  double mean, least, greatest;
};
/// \param seconds (ranks × repetitions)
Latency latency_over_ranks(const std::vector<double>& seconds, int repetitions);

}  // namespace onebit::bench
