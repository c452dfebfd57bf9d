#pragma once
/// \file averaging.hpp
/// How the ranks of a run average: as section `comm` of the input says, or as measured at the start.

#include <memory>
#include <string>

#include "base/mpi.hpp"
#include "base/tensor_table.hpp"
#include "comm/transport.hpp"
#include "config/input.hpp"

namespace onebit::train {

template <class Exec>
struct Averaging {
  std::unique_ptr<comm::Transport<Exec>> transport;
  config::Collective collective;  ///< not automatic
  std::string reason;             ///< why that one, in words
};

/// Makes what `comm.collective` names. For `auto`, averages vectors of the model's length in each way that is possible
/// here, with `run`'s algorithm and compressor, and takes the one whose slowest rank is fastest. Collective.
/// \throws InputError, on all ranks, where the way that is asked for is impossible here
template <class Exec>
Averaging<Exec> make_averaging(const Exec& exec, const config::Input& input, const Communicator& communicator,
                               const TensorTable& tensors);

}  // namespace onebit::train
