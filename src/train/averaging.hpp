#pragma once
/// \file averaging.hpp
/// How the ranks of a run average: as section `comm` of the input says, or as is fastest here.

#include <memory>
#include <string>

#include "base/mpi.hpp"
#include "base/tensor_table.hpp"
#include "comm/overlap/compressed_buckets.hpp"
#include "comm/overlap/overlapped_average.hpp"
#include "comm/transport/transport.hpp"
#include "config/input.hpp"

namespace onebit::train {

/// The choice, and what carries it out.
template <class Exec>
struct Averaging {
  std::unique_ptr<comm::Transport<Exec>> transport;
  Collective collective;      ///< not `automatic`
  CompressorKind compressor;  ///< `none` if the input asks for dense averages, or if they were measured to be faster
  std::string reason;         ///< a sentence that follows "because"

  /// "flat", "hierarchical", and without compression "dense" or "dense hierarchical".
  std::string name() const;
};

/// Makes the transport for `comm.collective`. For `auto`, measures each collective that is possible here, with a vector
/// of the model's length, with the run's compressor and without, and takes the one whose slowest rank is fastest.
/// Collective. \throws AgreedError if the collective or the transport that the input names is impossible here
template <class Exec>
Averaging<Exec> make_averaging(const Exec& exec, const config::Input& input, const Communicator& communicator,
                               const TensorTable& tensors);

/// Makes the average of gradients in buckets of `comm.bucket_bytes` during the backward pass, in device memory where
/// the run's transport exchanges it. Null if there is nothing to overlap (one rank, one bucket, buckets off), or if MPI
/// averages but only one thread may call it. Collective.
/// \param input        with the collective that `make_averaging` chose
/// \param communicator nothing else may use it
/// \param kind         of the transport that `make_averaging` made
/// \param length       d
template <class Exec>
std::unique_ptr<comm::OverlappedAverage<Exec>> make_overlapped_average(const config::Input& input,
                                                                       const Communicator& communicator,
                                                                       TransportKind kind, std::size_t length);

/// The compressed average of momenta in buckets (`comm.compressed_bucket_bytes`).
template <class Exec>
struct MomentumBuckets {
  std::shared_ptr<comm::CompressedBuckets<Exec>> buckets;     ///< null if the input asks for none
  std::unique_ptr<comm::OverlappedAverage<Exec>> overlapped;  ///< averages them beside the computation; else null
  Overlap overlap = Overlap::none;                            ///< what is done
  std::string reason;                                         ///< a sentence that follows "because"
};

/// Makes the buckets, and what averages them beside the computation, where that is asked for and possible. Arguments as
/// of `make_overlapped_average`. Collective.
/// \param asks whether the workload asks for parameters as it goes on
template <class Exec>
MomentumBuckets<Exec> make_momentum_buckets(const config::Input& input, const Communicator& communicator,
                                            TransportKind kind, const TensorTable& tensors, bool asks);

}  // namespace onebit::train
