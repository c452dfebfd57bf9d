#pragma once
/// \file collective_report.hpp
/// The output of `onebit bench collective`: its table, CSV files and figures of merit.

#include <memory>
#include <string>
#include <vector>

#include "base/mpi.hpp"
#include "base/timer.hpp"
#include "config/input.hpp"
#include "io/csv.hpp"
#include "io/figures.hpp"

namespace onebit::bench {

/// The timed calls of an average.
struct Measurement {
  std::vector<double> seconds;  ///< (ranks × repetitions)
  double wire_bytes = 0;        ///< greatest number that a rank hands over for others
  PhaseTimes phases{};          ///< means over the repetitions, of the slowest rank
};

/// Rates are those of nccl-tests: algbw = bytes / time and busbw = algbw · 2 (n−1)/n. For a dense average with any
/// number of ranks, the bandwidth of the links bounds busbw. Both are of the logical bytes (4 d); another rate is of
/// the bytes that left a rank. The time is the median of the slowest rank's times.
class CollectiveReport {
public:
  /// Opens collective.csv and repetitions.csv, and prints the head of the table. Collective.
  /// \throws AgreedError when a file cannot be written
  CollectiveReport(const config::Input& input, const Communicator& communicator, const char* backend);

  /// Adds an average of vectors of d elements. \param checked elements, over all ranks, that equal the oracle
  void add(const std::string& collective, std::size_t d, double checked, const Measurement& measured);

  /// Completes the files. The figures are those of the longest vectors. Collective. \throws AgreedError
  FiguresOfMerit finish();

private:
  const config::Input& m_input;
  const Communicator& m_communicator;
  std::string m_network;  ///< the environment variable ONEBIT_NETWORK
  std::size_t m_hosts;
  std::unique_ptr<CsvFile> m_file, m_repetitions;  ///< on rank 0
  FiguresOfMerit m_figures;                        ///< on rank 0
  double m_checked = 0;
};

}  // namespace onebit::bench
