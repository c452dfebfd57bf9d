#pragma once
/// \file predict.hpp
/// `onebit predict`: times, throughput and speed-up of dense and compressed averages for networks and rank counts that
/// one does not have, and where compression begins to pay (docs/reference/prediction.md).

#include <string>
#include <vector>

#include "config/input.hpp"
#include "io/figures.hpp"
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
  int buckets = 1;            ///< in which the average goes on during the backward pass; 1: after it
  std::vector<double> parts;  ///< of the average, by Part
  double call = 0;            ///< the average: the sum of its parts
  double messages = 0;        ///< of the average, without the rank's own work
  double hidden = 0;          ///< of the average, during the backward pass
  double link_bytes = 0;      ///< that leave a host
  double step = 0;            ///< forward and backward pass, average without `hidden`, update; a mean over the steps
                              ///< between two exchanges
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

  /// The step in the number of buckets that makes it shortest. \param factor multiplies the time of the average
  Step step(const Candidate& candidate, const Cluster& cluster, double parameters, double link,
            double factor = 1) const;
  /// Seconds of the messages of `step`, simulated; NaN beyond `predict.simulate_up_to` ranks, and for a form that has
  /// no schedule on this cluster.
  double simulated(const Candidate& candidate, const Cluster& cluster, double parameters, double link) const;
  /// Whether there are compressed or dense candidates.
  bool has(bool compressed) const;
  /// The candidate with the shortest step, of the dense or of the compressed ones; nullptr if there are none.
  const Candidate* best(bool compressed, const Cluster& cluster, double parameters, double link) const;
  /// The relative error that predicted averages may have.
  double error() const { return m_input.predict.error; }
  /// The share of the dense step by which a compressed average that pays makes the step shorter.
  double least_gain() const { return m_input.predict.least_gain; }

private:
  Width width() const { return {double(m_input.predict.bytes_per_element), m_input.predict.compressed_bits}; }
  Step step_in(int buckets, const Candidate& candidate, const Cluster& cluster, double parameters, double link,
               double factor) const;

  const config::Input& m_input;
  Machine m_machine;  ///< the input's parameters without the bandwidth
  std::vector<Fit> m_fits;
  std::vector<Candidate> m_candidates;
};

/// Prints the fits, a table, the line rates below which each compressed average pays, and advice; writes predict.csv,
/// crossover.csv, pays_below.csv and, with measurements, fit.csv into `run.output`.
/// \returns the figures of merit: the fastest steps of the last of `predict.ranks` on each network. The verdict is
///          whether all predicted times are finite and positive, and the fits describe their measurements
/// \throws InputError
FiguresOfMerit predict(const config::Input& input);

}  // namespace onebit::scale
