#pragma once
/// \file predict.hpp
/// `onebit predict`: phase times, step time, throughput and speed-up of dense and compressed averages for networks and
/// rank counts that one does not have, and where compression begins to pay (docs/reference/prediction.md).

#include <string>
#include <vector>

#include "config/input.hpp"
#include "scale/fit.hpp"
#include "scale/model.hpp"

namespace onebit::scale {

/// One way to average, with the numbers that hold for it.
struct Candidate {
  std::string collective;
  Form form;
  const Fit* fit = nullptr;  ///< nullptr: the input's numbers
};

/// A predicted step. Times in seconds.
struct Step {
  std::vector<double> parts;  ///< of the average, by Part; work included
  double call = 0;            ///< the average: the sum of its parts
  double messages = 0;        ///< of it, what is not the rank's own work
  double hidden = 0;          ///< of it, what goes on during the backward pass
  double link_bytes = 0;      ///< that leave a host
  double step = 0;            ///< forward and backward pass, what of the average is not hidden, update
};

/// What the input says, made ready for predictions.
class Model {
public:
  /// Reads and fits the measurements. \throws InputError
  explicit Model(const config::Input& input);
  explicit Model(config::Input&&) = delete;

  const std::vector<Fit>& fits() const { return m_fits; }
  const std::vector<Candidate>& candidates() const { return m_candidates; }
  /// Ranks fill one host after the other.
  Cluster cluster(int ranks) const;
  /// \param link line rate of a host's link, bytes/s
  Machine machine(const Candidate& candidate, const Cluster& cluster, double link) const;

  Step step(const Candidate& candidate, const Cluster& cluster, double parameters, double link) const;
  /// The shortest step of all dense, or of all compressed, candidates; nullptr where there are none.
  const Candidate* best(bool compressed, const Cluster& cluster, double parameters, double link) const;

  /// Compression pays above so many parameters: 0 for any number, infinite for none.
  double crossover_parameters(const Cluster& cluster, double link) const;
  /// Compression pays on links below so many bytes/s: infinite for any, 0 for none.
  double crossover_link(const Cluster& cluster, double parameters) const;

private:
  /// By how many seconds the best compressed step is shorter than the best dense one.
  double gain(const Cluster& cluster, double parameters, double link) const;

  const config::Input& m_input;
  Machine m_machine;  ///< the input's numbers; its bandwidth is the network's
  std::vector<Fit> m_fits;
  std::vector<Candidate> m_candidates;
};

/// Prints the fits, a table and advice; writes predict.csv, crossover.csv and, with measurements, fit.csv into
/// `run.output`. \throws InputError
void predict(const config::Input& input);

}  // namespace onebit::scale
