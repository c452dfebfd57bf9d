/// \file measurement.cpp
/// See measurement.hpp.

#include "bench/measurement.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "base/error.hpp"

namespace onebit::bench {

std::unique_ptr<report::CsvFile> open_csv(const config::Input& input, const Communicator& communicator,
                                          const std::string& name, const std::vector<std::string>& columns) {
  std::unique_ptr<report::CsvFile> file;
  communicator.collectively([&] {
    if (communicator.rank() > 0) return;
    std::error_code error;
    std::filesystem::create_directories(input.run.output, error);
    try {
      file = std::make_unique<report::CsvFile>(input.run.output + "/" + name, columns);
    } catch (const std::exception&) {
      throw InputError(input.where("run.output"), "directory '" + input.run.output + "' cannot be written",
                       "name a directory that you may write, with free space");
    }
  });
  return file;
}

std::vector<double> slowest_rank(const Communicator& communicator, const std::vector<double>& values) {
  const std::vector<double> all = communicator.gather(values.data(), static_cast<int>(values.size()));
  std::vector<double> slowest = values;
  for (std::size_t i = 0; i < all.size(); ++i) {
    double& greatest = slowest[i % values.size()];
    greatest = std::max(greatest, all[i]);
  }
  return slowest;
}

double quantile(const std::vector<double>& sorted, double share) {
  return sorted[static_cast<std::size_t>(std::ceil(share * static_cast<double>(sorted.size()))) - 1];
}

RepetitionTimes times_of_slowest_rank(const std::vector<double>& seconds, int repetitions) {
  std::vector<double> slowest(repetitions, 0);
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    double& greatest = slowest[i % slowest.size()];
    greatest = std::max(greatest, seconds[i]);
  }
  std::sort(slowest.begin(), slowest.end());
  const double sum = std::accumulate(slowest.begin(), slowest.end(), 0.0);
  return {slowest.front(), quantile(slowest, 0.5), sum / repetitions, slowest.back(), quantile(slowest, 0.99)};
}

}  // namespace onebit::bench
