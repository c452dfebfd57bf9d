#pragma once
/// \file rounds.hpp
/// How a rank cuts its samples into rounds, each a batch of its model.

#include <cstdint>

#include "config/input.hpp"

namespace onebit::workload {

/// Rank r of n takes samples [r B/n, (r+1) B/n) of the global batch of B, in `train.accumulation` rounds.
struct Rounds {
  int of_step;        ///< of gradient accumulation
  int batch;          ///< samples of a round on a rank
  int of_validation;  ///< of `batch` samples on a rank
  int ranks;

  Rounds(const config::Input& input, int ranks_)
      : of_step(input.train.accumulation),
        batch(input.train.batch / (ranks_ * of_step)),
        of_validation(static_cast<int>((input.train.validation_batch + std::int64_t{ranks_} * batch - 1) /
                                       (std::int64_t{ranks_} * batch))),
        ranks(ranks_) {}

  /// Number of a rank's first sample in a round, among all samples of the step.
  std::uint64_t first_sample(int rank, int round) const {
    return (static_cast<std::uint64_t>(rank) * of_step + round) * batch;
  }
  /// The same among the samples of a validation.
  std::uint64_t first_validation_sample(int rank, int round) const {
    return (static_cast<std::uint64_t>(round) * ranks + rank) * batch;
  }
  /// Samples of a validation, in whole rounds of all ranks.
  std::int64_t validation_samples() const { return std::int64_t{of_validation} * ranks * batch; }
  double samples_of_step() const { return static_cast<double>(of_step) * batch * ranks; }
};

}  // namespace onebit::workload
