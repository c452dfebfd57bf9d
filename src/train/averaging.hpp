#pragma once
/// \file averaging.hpp
/// How the ranks of a run average: as section `comm` of the input says, or as measured at the start.

#include <memory>
#include <string>

#include "base/mpi.hpp"
#include "base/tensor_table.hpp"
#include "comm/overlapped_average.hpp"
#include "comm/transport.hpp"
#include "config/input.hpp"

namespace onebit::train {

/// How a run averages over its ranks.
template <class Exec>
struct Averaging {
  std::unique_ptr<comm::Transport<Exec>> transport;
  Collective collective;      ///< not automatic
  CompressorKind compressor;  ///< `none` where dense averages are asked for or were measured to be faster
  std::string reason;         ///< why that one, in words

  /// "flat", "hierarchical", and without compression "dense" or "dense hierarchical".
  std::string name() const;
};

/// Makes what `comm.collective` names. For `auto`, averages vectors of the model's length in each way that is possible
/// here, with the input's algorithm, its compressor and none, and takes the one whose slowest rank is fastest. Collective.
/// \throws InputError, on all ranks, where the way that is asked for is impossible here
template <class Exec>
Averaging<Exec> make_averaging(const Exec& exec, const config::Input& input, const Communicator& communicator,
                               const TensorTable& tensors);

/// Makes the average of gradients in buckets of `comm.bucket_bytes`, or nothing where there would be nothing to overlap
/// with, the MPI library takes calls by one thread alone, or NCCL is to average. Collective.
/// \param input        with `comm.collective` as `make_averaging` found it
/// \param communicator that nothing else uses
/// \param length       d
template <class Exec>
std::unique_ptr<comm::OverlappedAverage<Exec>> make_overlapped_average(const config::Input& input,
                                                                       const Communicator& communicator,
                                                                       std::size_t length);

}  // namespace onebit::train
