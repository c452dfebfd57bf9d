#pragma once
/// \file compression.hpp
/// The averages that sections `compression` and `comm` of the input ask for; the compressed one's state and report.

#include <memory>
#include <optional>

#include "comm/compressed_average.hpp"
#include "optim/algorithm.hpp"

namespace onebit::optim {

/// How dense averages of gradients and momenta are sent.
comm::DenseOptions dense_options(const config::Input& input);

/// (n + 1) first element of each rank's chunk in CA of vectors with these tensors, flat.
template <class Exec>
std::vector<std::size_t> chunk_begins(const Setup<Exec>& setup);

/// The compressor of vectors with these tensors, flat; the input must name one.
template <class Exec>
std::shared_ptr<const compress::Compressor<Exec>> make_compressor(const Setup<Exec>& setup);

/// CA of vectors with these tensors; residuals are 0.
template <class Exec>
comm::CompressedAverage<Exec> make_compressed_average(const Setup<Exec>& setup);
/// CA of elements [begin, end) of such vectors.
template <class Exec>
comm::CompressedAverage<Exec> make_compressed_average(const Setup<Exec>& setup, std::size_t begin, std::size_t end);

/// CA of momenta with these tensors in buckets of `comm.compressed_bucket_bytes`; it has no memory yet.
/// \param transport flat, on a communicator that nothing else uses
template <class Exec>
std::shared_ptr<comm::CompressedBuckets<Exec>> make_compressed_buckets(
    const config::Input& input, const TensorTable& tensors,
    std::unique_ptr<comm::Transport<typename comm::CompressedBuckets<Exec>::On>> transport);

/// Saves or restores the residuals. δ_i belongs to a rank, or to a host where averages are hierarchical; for another
/// number of them each gets the mean, so that (1/n) Σ δ_i stays. The δ̄_k together are one vector of length d, of which
/// each rank has its chunk.
/// \param first the first element of the vectors, where they are a range of all d
template <class Exec>
void archive_residuals(Archive<Exec>& archive, comm::CompressedAverage<Exec>& allreduce, std::size_t first = 0);
/// The same for an allreduce that does not exist before compression begins. Restoring makes it where one was saved.
template <class Exec>
void archive_residuals(Archive<Exec>& archive, const Setup<Exec>& setup,
                       std::optional<comm::CompressedAverage<Exec>>& allreduce);
/// The same for buckets. A run with buckets restores what one without them has saved, and the other way round.
template <class Exec>
void archive_residuals(Archive<Exec>& archive, comm::CompressedBuckets<Exec>& buckets);

/// Puts ‖δ_i‖₂ and ‖δ̄_k‖₂ into `state` and marks the step as compressed, unless the allreduce is dense.
template <class Exec>
void report_residuals(const Exec& exec, const comm::CompressedAverage<Exec>& allreduce, StepState& state);
template <class Exec>
void report_residuals(const comm::CompressedBuckets<Exec>& buckets, StepState& state);

}  // namespace onebit::optim
