#include "bench/measurement.hpp"

#include <algorithm>
#include <numeric>

#include "base/error.hpp"
#include "base/quantile.hpp"
#include "io/run_lock.hpp"

namespace onebit::bench {
namespace {

/// (columns) greatest value of each column. \param matrix (rows × columns)
std::vector<double> column_maxima(const std::vector<double>& matrix, std::size_t columns) {
  std::vector<double> maxima(matrix.begin(), matrix.begin() + static_cast<std::ptrdiff_t>(columns));
  for (std::size_t i = 0; i < matrix.size(); ++i) maxima[i % columns] = std::max(maxima[i % columns], matrix[i]);
  return maxima;
}

}  // namespace

std::unique_ptr<CsvFile> open_csv(const config::Input& input, const Communicator& communicator, const CsvTable& table) {
  std::unique_ptr<CsvFile> file;
  communicator.on_root([&] {
    const std::string path = input.run.output + "/" + table.file;
    keep_earlier(path + ".partial");
    try {
      file = std::make_unique<CsvFile>(path, table.names());
    } catch (const Error& error) {
      throw Error(ExitStatus::bad_input, input.where("run.output") + ": " + error.what());
    }
  });
  return file;
}

std::vector<double> slowest_rank(const Communicator& communicator, const std::vector<double>& values) {
  return column_maxima(communicator.gather(values.data(), static_cast<int>(values.size())), values.size());
}

RepetitionTimes times_of_slowest_rank(const std::vector<double>& seconds, int repetitions) {
  std::vector<double> times = column_maxima(seconds, static_cast<std::size_t>(repetitions));
  std::sort(times.begin(), times.end());
  const double sum = std::accumulate(times.begin(), times.end(), 0.0);
  return {times.front(), quantile(times, 0.5), sum / repetitions, times.back(), quantile(times, 0.99)};
}

RepetitionTimes times_of_slowest_rank(const Communicator& communicator, const std::vector<double>& seconds) {
  const int repetitions = static_cast<int>(seconds.size());
  return times_of_slowest_rank(communicator.gather(seconds.data(), repetitions), repetitions);
}

std::vector<RankTimes> times_over_ranks(const std::vector<double>& seconds, int repetitions) {
  const int ranks = static_cast<int>(seconds.size()) / repetitions;
  std::vector<RankTimes> all;
  for (int repetition = 0; repetition < repetitions; ++repetition) {
    RankTimes times{seconds[repetition], 0, seconds[repetition], 0};
    for (int rank = 0; rank < ranks; ++rank) {
      const double time = seconds[rank * repetitions + repetition];
      if (time > times.slowest) {
        times.slowest = time;
        times.slowest_rank = rank;
      }
      times.least = std::min(times.least, time);
      times.mean += time / ranks;
    }
    all.push_back(times);
  }
  return all;
}

Latency latency_over_ranks(const std::vector<double>& seconds, int repetitions) {
  std::vector<double> means;
  for (auto first = seconds.begin(); first != seconds.end(); first += repetitions)
    means.push_back(std::accumulate(first, first + repetitions, 0.0) / repetitions);
  const auto [least, greatest] = std::minmax_element(means.begin(), means.end());
  const double sum = std::accumulate(means.begin(), means.end(), 0.0);
  return {sum / static_cast<double>(means.size()), *least, *greatest};
}

}  // namespace onebit::bench
