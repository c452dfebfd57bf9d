#include "scale/crossover.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

namespace onebit::scale {
namespace {

/// The largest x in [low, high] at which `positive` changes from false to true, searched on a logarithmic scale: `low`
/// if it is true everywhere, infinite if it is false at `high`.
double last_change(double low, double high, const std::function<bool(double)>& positive) {
  if (!positive(high)) return infinity;
  constexpr double step = 1.1;
  double above = high;
  while (above > low && positive(above / step)) above /= step;
  if (above <= low) return low;
  double below = above / step;
  for (int bisection = 0; bisection < 60; ++bisection) {
    const double middle = std::sqrt(below * above);
    (positive(middle) ? above : below) = middle;
  }
  return above;
}

/// The highest line rate in bytes/s below which `pays` is true: infinite if it always is, 0 if never.
double last_rate(const std::function<bool(double)>& pays) {
  constexpr double least = 1e2, most = 1e14;
  const double slowness = last_change(1 / most, 1 / least, [&](double x) { return pays(1 / x); });
  return slowness <= 1 / most ? infinity : 1 / slowness;
}

/// Whether the fastest compressed average gives the shorter step.
bool pays(const Model& model, const Cluster& cluster, double parameters, double link) {
  const auto seconds = [&](bool compressed) {
    return model.step(*model.best(compressed, cluster, parameters, link), cluster, parameters, link).step;
  };
  return seconds(true) < seconds(false);
}

}  // namespace

double crossover_parameters(const Model& model, const Cluster& cluster, double link) {
  constexpr double least = 100, most = 1e13;
  const double found = last_change(least, most, [&](double d) { return pays(model, cluster, d, link); });
  return found <= least ? 0 : found;
}

double crossover_link(const Model& model, const Cluster& cluster, double parameters) {
  return last_rate([&](double link) { return pays(model, cluster, parameters, link); });
}

RateLimit crossover_link(const Model& model, const Candidate& compressed, const Cluster& cluster, double parameters) {
  const auto limit = [&](double compressed_error, double dense_error) {
    return last_rate([&](double link) {
      const double step = model.step(compressed, cluster, parameters, link, 1 + compressed_error).step;
      const auto is_shorter_than = [&](const Candidate& dense) {
        return step < (1 - model.least_gain()) * model.step(dense, cluster, parameters, link, 1 + dense_error).step;
      };
      return std::all_of(model.candidates().begin(), model.candidates().end(), [&](const Candidate& candidate) {
        return is_compressed(candidate.form) || is_shorter_than(candidate);
      });
    });
  };
  const double error = model.error();
  return {limit(error, -error), limit(0, 0), limit(-error, error)};
}

}  // namespace onebit::scale
