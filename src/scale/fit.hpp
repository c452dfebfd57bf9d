#pragma once
/// \file fit.hpp
/// The model's parameters, fitted to collective.csv files of `onebit bench collective`.

#include <string>
#include <vector>

#include "scale/model.hpp"

namespace onebit::scale {

/// What the model needs of a row of collective.csv.
struct Measurement {
  std::string collective;
  double parameters = 0;
  int ranks = 1, hosts = 1;
  double link = 0;                                   ///< line rate of a host's link, bytes/s; 0 for one host
  double seconds = 0;                                ///< of a call: median over repetitions of the slowest rank
  double compress = 0, average = 0, decompress = 0;  ///< seconds of the rank's own work

  Cluster cluster() const { return {hosts, ranks / hosts}; }
};

/// Reads columns by their names and ignores others.
/// \param link line rate in bytes/s for rows of several hosts that do not give one; 0 for none
/// \throws InputError with file and line
std::vector<Measurement> read_measurements(const std::string& path, double link);

/// The form of a collective of `bench.collectives`. `mpi_allreduce` counts as a ring, which MPI libraries use for long
/// vectors, and `mpi_bf16` as messages between all pairs. \throws InputError about `where`
Form form_of_collective(const std::string& collective, const std::string& where = "measurements");

/// The fitted parameters of one collective.
struct Fit {
  std::string collective;
  Form form;
  int rows = 0;
  bool inside = false;  ///< all rows are of one host: α and β are those of its channels
  double latency = 0;   ///< α, s
  double wait = 0;      ///< s that a message waits for its rank's turn, for each other rank on the same core
  double share = 0;     ///< of the line rate (inside: of the input's channel); infinite if bytes make no difference
  /// γ of each kind of work, s an element, in the ratios of the measured times of compress, average and decompress.
  double reduce = 0, compress = 0, average = 0, decompress = 0;
  /// False if all rows have one line rate, so that a call's time does not tell work from bytes. Then γ comes from the
  /// measured times of compress, average and decompress, and is 0 for a dense average.
  bool work_fitted = false;
  double median_error = 0, largest_error = 0;  ///< |predicted − measured| / measured over the rows

  /// `machine` with these parameters, slowed down by sharing cores.
  /// \param link line rate in bytes/s \param slow from `slowdown`
  Machine applied_to(Machine machine, double link, double slow) const;
};

/// Least squares of the relative errors with no parameter below 0. Each collective has its own fit, from its rows of
/// several hosts if it has any.
/// \param machine gives the parameters that are not fitted: the overhead, and those inside hosts
/// \param shared_cores of all hosts together; 0 if each rank has its own
std::vector<Fit> fit(const std::vector<Measurement>& measurements, const Machine& machine, int shared_cores);

/// How much longer a rank's work takes because ranks share cores.
inline double slowdown(int ranks, int shared_cores) {
  return shared_cores > 0 && ranks > shared_cores ? static_cast<double>(ranks) / shared_cores : 1.0;
}

/// Multiplies all costs of work.
void slow_down(Machine& machine, double factor);

/// The x ≥ 0 with the least ‖A x − b‖₂; A by rows. Tries every set of columns with x > 0, so A must have few columns.
std::vector<double> least_squares(const std::vector<std::vector<double>>& rows, const std::vector<double>& right);

}  // namespace onebit::scale
