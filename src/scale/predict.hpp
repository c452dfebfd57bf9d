#pragma once
/// \file predict.hpp
/// `onebit predict`: times, throughput and speed-up of dense and compressed averages for networks and rank counts that
/// one does not have, and where compression begins to pay (docs/reference/prediction.md).

#include <string>
#include <vector>

#include "config/input.hpp"
#include "scale/fit.hpp"
#include "scale/model.hpp"

namespace onebit::scale {

/// One way to average, with its parameters of the model.
struct Candidate {
  std::string collective;
  Form form;
  const Fit* fit = nullptr;  ///< nullptr: the input's parameters
};

/// A predicted step. Times in seconds.
struct Step {
  std::vector<double> parts;  ///< of the average, by Part
  double call = 0;            ///< the average: the sum of its parts
  double messages = 0;        ///< of the average, without the rank's own work
  double hidden = 0;          ///< of the average, during the backward pass
  double link_bytes = 0;      ///< that leave a host
  double step = 0;            ///< forward and backward pass, average without `hidden`, update
};

/// Predictions for the section `predict` of the input.
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
  /// Seconds of the messages of `step`, simulated; NaN beyond `predict.simulate_up_to` ranks, and for a form that has
  /// no schedule on this cluster.
  double simulated(const Candidate& candidate, const Cluster& cluster, double parameters, double link) const;
  /// The candidate with the shortest step, of the dense or of the compressed ones; nullptr if there are none.
  const Candidate* best(bool compressed, const Cluster& cluster, double parameters, double link) const;

  /// Number of parameters above which compression pays: 0 if it always does, infinite if never.
  double crossover_parameters(const Cluster& cluster, double link) const;
  /// Line rate in bytes/s below which compression pays: infinite if it always does, 0 if never.
  double crossover_link(const Cluster& cluster, double parameters) const;

private:
  /// Buckets of a candidate's average.
  int buckets(const Candidate& candidate) const;
  /// Seconds by which the best compressed step is shorter than the best dense one.
  double gain(const Cluster& cluster, double parameters, double link) const;

  const config::Input& m_input;
  Machine m_machine;  ///< the input's parameters without the bandwidth
  std::vector<Fit> m_fits;
  std::vector<Candidate> m_candidates;
};

/// Prints the fits, a table and advice; writes predict.csv, crossover.csv and, with measurements, fit.csv into
/// `run.output`. \throws InputError
void predict(const config::Input& input);

}  // namespace onebit::scale
