#pragma once
/// \file crossover.hpp
/// Where compression begins to pay: the number of parameters and the line rate at which a step with a compressed
/// average takes as long as one with the fastest dense average.

#include "scale/predict.hpp"

namespace onebit::scale {

/// Number of parameters above which the fastest compressed average pays: 0 if it always does, infinite if never.
double crossover_parameters(const Model& model, const Cluster& cluster, double link);
/// Line rate in bytes/s below which the fastest compressed average pays: infinite if it always does, 0 if never.
double crossover_link(const Model& model, const Cluster& cluster, double parameters);

/// The line rate in bytes/s below which one average pays, and how far it may lie from there.
struct RateLimit {
  double least;     ///< every compressed average takes longer by `predict.error`, every dense one is as much faster
  double expected;  ///< as predicted
  double greatest;  ///< the other way round
};
/// The same for one compressed average, which pays if it makes the step shorter by `predict.least_gain`.
/// \param compressed with a compressed form
RateLimit crossover_link(const Model& model, const Candidate& compressed, const Cluster& cluster, double parameters);

}  // namespace onebit::scale
