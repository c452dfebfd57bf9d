#pragma once
/// \file rounds.hpp
/// How a rank cuts its samples into rounds, each a batch of its model, and how a batch comes to the device.

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/kokkos.hpp"
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

  /// \param found samples in `name`, to validate with \throws InputError if a validation takes more
  void check_validation(const config::Input& input, std::size_t found, const std::string& name) const {
    if (static_cast<std::int64_t>(found) >= validation_samples()) return;
    throw InputError(input.where("train.validation_batch"),
                     "a validation takes " + std::to_string(validation_samples()) +
                         " samples, in whole batches of all ranks, and " + name + " has " + std::to_string(found),
                     "lower train.validation_batch");
  }
};

/// device ← host, of one length; the host's memory must stay as it is until the execution space has copied it.
template <class Exec, class T>
void copy_batch(const Exec& exec, const std::vector<T>& host, const Vector<Exec, T>& device) {
  Kokkos::deep_copy(exec, device,
                    Kokkos::View<const T*, Kokkos::LayoutRight, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>(
                        host.data(), host.size()));
}

}  // namespace onebit::workload
