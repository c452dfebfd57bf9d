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

}  // namespace onebit::bench
