#pragma once
/// \file fit.hpp
/// The model's numbers from measurements: collective.csv files of `onebit bench collective`.

#include <string>
#include <vector>

#include "scale/model.hpp"

namespace onebit::scale {

/// A row of collective.csv, as far as the model needs it.
struct Measurement {
  std::string collective;
  double parameters = 0;
  int ranks = 1, hosts = 1;
  double link = 0;     ///< line rate of a host's link, bytes/s; 0 where all ranks are on one host
  double seconds = 0;  ///< of a call: median over repetitions of the slowest rank
  double compress = 0, average = 0, decompress = 0;  ///< seconds of these parts, which are the rank's own work

  Cluster cluster() const { return {hosts, ranks / hosts}; }
};

/// Reads columns by their names; the others are ignored.
/// \param link line rate in bytes/s for rows of several hosts that do not say theirs; 0 for none
/// \throws InputError with file and line
std::vector<Measurement> read_measurements(const std::string& path, double link);

/// The form of a collective of `bench.collectives`. `mpi_allreduce` is taken as a ring: what its library does with long
/// vectors. \throws InputError
Form form_of_collective(const std::string& collective);

/// The numbers of one collective.
struct Fit {
  std::string collective;
  Form form;
  int rows = 0;
  bool inside = false;  ///< all rows are of one host: α and β are those of its channels
  double latency = 0;   ///< α, s
  double wait = 0;      ///< s that a message waits for its rank's turn, for each other rank on that rank's core
  double share = 0;     ///< of the line rate (inside: of the input's channel); infinite where bytes made no difference
  /// γ of each kind of work, s an element. Their ratios are those of the parts' measured times.
  double reduce = 0, compress = 0, average = 0, decompress = 0;
  /// False where all rows have one line rate, so that work and bytes cannot be told apart in a call's time: γ is then
  /// what the parts' times say, and 0 for a dense average.
  bool work_fitted = false;
  double median_error = 0, largest_error = 0;  ///< |predicted − measured| / measured over the rows

  /// `machine` with these numbers in place of its own, and with what sharing cores costs.
  /// \param link line rate in bytes/s \param slow of `slowdown`
  Machine applied_to(Machine machine, double link, double slow) const;
};

/// Least squares of the relative errors, no number below 0, one fit for each collective, from its rows of several hosts
/// where it has such.
/// \param machine the numbers that are not fitted: overhead, and inside hosts
/// \param shared_cores of all hosts together; 0 where each rank has its own
std::vector<Fit> fit(const std::vector<Measurement>& measurements, const Machine& machine, int shared_cores);

/// How much longer a rank's work takes where ranks share cores.
inline double slowdown(int ranks, int shared_cores) {
  return shared_cores > 0 && ranks > shared_cores ? static_cast<double>(ranks) / shared_cores : 1.0;
}

/// Multiplies all costs of work.
void slow_down(Machine& machine, double factor);

/// The x ≥ 0 with the least ‖A x − b‖₂; A by rows. Of all sets of columns that may be above 0 the best is taken, so
/// there should be few columns.
std::vector<double> least_squares(const std::vector<std::vector<double>>& rows, const std::vector<double>& right);

}  // namespace onebit::scale
