#pragma once
/// \file averaging.hpp
/// How the ranks of a run average: as section `comm` of the input says, or as is fastest here.

#include <memory>
#include <string>

#include "base/mpi.hpp"
#include "base/tensor_table.hpp"
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

/// Makes a transport as section `comm` says. Collective. \throws AgreedError if it is impossible here
template <class Exec>
std::unique_ptr<comm::Transport<Exec>> make_transport(const config::Input& input, const Communicator& communicator,
                                                      Collective collective, TransportKind kind);

}  // namespace onebit::train
