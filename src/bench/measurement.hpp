#pragma once
/// \file measurement.hpp
/// What the benchmarks share: their CSV file, and times over ranks and repetitions.

#include <memory>
#include <string>
#include <vector>

#include "base/mpi.hpp"
#include "config/input.hpp"
#include "report/csv.hpp"

namespace onebit::bench {

/// The file `name` in `run.output`, on rank 0; the others have none. Collective.
/// \throws AgreedError when it cannot be written
std::unique_ptr<report::CsvFile> open_csv(const config::Input& input, const Communicator& communicator,
                                          const std::string& name, const std::vector<std::string>& columns);

/// (values) the greatest of all ranks' values at each place: the slowest rank's time of each repetition. Collective.
std::vector<double> slowest_rank(const Communicator& communicator, const std::vector<double>& values);

/// The value below which a share of the sorted values lies.
double quantile(const std::vector<double>& sorted, double share);

/// Times of a collective over the repetitions, in seconds.
struct RepetitionTimes {
  double min, median, mean, max, percentile_99;
};

/// A collective is finished when its slowest rank is, so a repetition takes as long as the greatest time of any rank.
/// \param seconds (ranks × repetitions) of each rank and repetition, one rank's after another's
/// \returns statistics of the repetitions' times
RepetitionTimes times_of_slowest_rank(const std::vector<double>& seconds, int repetitions);

}  // namespace onebit::bench
