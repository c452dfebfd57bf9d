#pragma once
/// \file compression.hpp
/// The averages that sections `compression` and `comm` of the input ask for, with their state and report.

#include <memory>
#include <vector>

#include "comm/compressed_average.hpp"
#include "optim/algorithm.hpp"

namespace onebit::optim {

/// (n + 1) first element of each rank's chunk in CA of vectors with these tensors, flat.
template <class Exec>
std::vector<std::size_t> chunk_begins(const Setup<Exec>& setup);

/// (n + 1) first element of what each rank is the server of, where the server of a matrix needs all of it.
template <class Exec>
std::vector<std::size_t> server_begins(const Setup<Exec>& setup);

/// CA of elements `range` of vectors with these tensors; residuals are 0. The input must name a compressor.
template <class Exec>
std::unique_ptr<comm::CompressedAverage<Exec>> make_compressed_average(const Setup<Exec>& setup, Range range);

/// CA of momenta with these tensors, in buckets of `comm.compressed_bucket_bytes` or, without that key, as one bucket.
/// It has no memory yet. This one averages by the run's transport, after the backward pass.
template <class Exec>
std::unique_ptr<comm::CompressedBuckets<Exec>> make_momentum_buckets(const Setup<Exec>& setup);
/// This one averages beside the backward pass. \param transport flat, on a communicator that only one thread uses
template <class Exec>
std::unique_ptr<comm::CompressedBuckets<Exec>> make_overlapped_momentum_buckets(
    const config::Input& input, const TensorTable& tensors,
    std::unique_ptr<comm::Transport<comm::ForSecondThread<Exec>>> transport);

/// Saves or restores the residuals. δ_i belongs to a rank, or to a host where averages are hierarchical; for another
/// number of them each gets the mean, so that (1/n) Σ δ_i stays. The δ̄_k together are one vector of length d, of which
/// each rank has its chunk.
/// \param first the first element of the vectors, where they are a range of all d \param of_server name of the δ̄_k
template <class Exec>
void archive_residuals(Archive<Exec>& archive, comm::CompressedAverage<Exec>& average, std::size_t first = 0,
                       const char* of_server = "server_residual");
/// The same for buckets. A run with buckets restores what one without them has saved, and the other way round.
template <class Exec>
void archive_residuals(Archive<Exec>& archive, comm::CompressedBuckets<Exec>& buckets);

/// Puts ‖δ_i‖₂ and ‖δ̄_k‖₂ into `state` and marks the step as compressed.
template <class Exec>
void report_residuals(const Exec& exec, const comm::CompressedAverage<Exec>& average, StepState& state);

/// The average of a vector: CA, or the dense average where `compression.compressor` is `none`.
template <class Exec>
class Average {
public:
  /// \param setup must outlive it, with what it refers to
  explicit Average(const Setup<Exec>& setup) : Average(setup, {0, setup.tensors.size()}) {}
  /// Of elements `range` of all d.
  Average(const Setup<Exec>& setup, Range range);

  /// x ← the average of the ranks' x. \param x (elements of the range) \param residual_factor f of CA
  void operator()(const Exec& exec, const Vector<Exec, float>& x, PhaseTimes& times, float residual_factor = 1);
  bool compresses() const { return m_compressed != nullptr; }
  /// As report_residuals, if it compresses.
  void report(const Exec& exec, StepState& state) const;
  void state(Archive<Exec>& archive);

private:
  comm::DenseAverage<Exec>* m_dense;
  std::unique_ptr<comm::CompressedAverage<Exec>> m_compressed;  ///< null for the dense average
  std::size_t m_first;                                          ///< of the range
};

}  // namespace onebit::optim
