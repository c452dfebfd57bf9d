#pragma once
/// \file averaging.hpp
/// How the ranks of a run average: as section `comm` of the input says, or as is fastest here.

#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/mpi.hpp"
#include "base/tensor_table.hpp"
#include "base/timer.hpp"
#include "comm/transport/combined/hierarchical.hpp"
#include "comm/transport/transport.hpp"
#include "config/input.hpp"
#include "optim/compression.hpp"
#include "train/agreement.hpp"

namespace onebit::train {

/// The choice, and what carries it out.
template <class Exec>
struct Averaging {
  std::unique_ptr<comm::Transport<Exec>> transport;
  Collective collective;      ///< not `automatic`
  CompressorKind compressor;  ///< `none` if the input asks for dense averages, or if they were measured to be faster
  std::string reason;         ///< a sentence that follows "because"

  /// "flat", "hierarchical", and without compression "dense" or "dense hierarchical".
  std::string name() const {
    if (compressor != CompressorKind::none) return to_string(collective);
    return collective == Collective::flat ? "dense" : "dense " + to_string(collective);
  }
};

/// Makes a transport as section `comm` says. Collective. \throws AgreedError if it is impossible here
template <class Exec>
std::unique_ptr<comm::Transport<Exec>> make_transport(const config::Input& input, const Communicator& communicator,
                                                      Collective collective, TransportKind kind) {
  comm::Exchange exchange;
  if (input.comm.exchange == ExchangeKind::pairwise)
    exchange.message_bytes = static_cast<std::size_t>(input.comm.message_bytes);
  exchange.grid = input.comm.exchange == ExchangeKind::grid;
  const bool hierarchical = collective == Collective::hierarchical;
  std::unique_ptr<comm::Transport<Exec>> transport;
  LocalErrors errors;  // a fault is the same on every rank, but some ranks find it only after they have communicated
  errors.capture([&] {
    located(input.where(hierarchical ? "comm.collective" : "comm.transport"), [&] {
      transport = hierarchical
                      ? comm::make_hierarchical_transport<Exec>(kind, communicator, communicator.hosts(), exchange)
                      : comm::make_transport<Exec>(kind, communicator, exchange);
    });
  });
  errors.rethrow(communicator);
  return transport;
}

/// Whether there are several hosts, all with the same number of ranks, and several ranks on each.
inline bool has_hierarchy(const Communicator& communicator) {
  const auto ranks = comm::ranks_by_host(communicator.hosts());
  return ranks.size() > 1 && ranks.begin()->second.size() > 1 && comm::all_hosts_are_alike(ranks);
}

/// Seconds that an average takes on the slowest rank: the median of three, after one to warm up.
template <class Exec>
double seconds_of_average(const Exec& exec, const config::Input& input, const Communicator& communicator,
                          const TensorTable& tensors, comm::Transport<Exec>& transport) {
  constexpr int repetitions = 3;
  comm::DenseAverage<Exec> dense(transport, input.comm.dense_type);
  config::Input trial = input;
  if (!config::traits(input.optimizer.algorithm).compresses) trial.compression.compressor = CompressorKind::none;
  optim::Average<Exec> average(optim::Setup<Exec>{trial, tensors, transport, dense});
  const Vector<Exec, float> x("OneBit::train::trial", tensors.size());
  PhaseTimes unused;
  std::vector<double> slowest;
  for (int repetition = 0; repetition <= repetitions; ++repetition) {
    communicator.barrier();
    const Stopwatch watch;
    average(exec, x, unused);
    const double seconds = watch.seconds();
    const std::vector<double> all = communicator.gather(&seconds, 1);
    if (repetition > 0) slowest.push_back(*std::max_element(all.begin(), all.end()));
  }
  std::sort(slowest.begin(), slowest.end());
  return slowest[slowest.size() / 2];
}

/// Makes the transport for `comm.collective`. For `auto`, measures each collective that is possible here, with a vector
/// of the model's length, with the run's compressor and without, and takes the one whose slowest rank is fastest.
/// Collective. \throws AgreedError if the collective or the transport that the input names is impossible here
template <class Exec>
Averaging<Exec> make_averaging(const Exec& exec, const config::Input& input, const Communicator& communicator,
                               const TensorTable& tensors) {
  const Region region("OneBit::train::make_averaging");
  const CompressorKind compressor = input.compression.compressor;
  if (input.comm.collective != Collective::automatic)
    return {make_transport<Exec>(input, communicator, input.comm.collective, input.comm.transport),
            input.comm.collective, compressor,
            input.given.count("comm.collective") > 0 ? "the input says so" : "it is the default"};

  std::vector<Averaging<Exec>> candidates;
  candidates.push_back({nullptr, Collective::flat, compressor, ""});
  const config::AlgorithmTraits& algorithm = config::traits(input.optimizer.algorithm);
  if (has_hierarchy(communicator) && !algorithm.is_flat())
    candidates.push_back({nullptr, Collective::hierarchical, compressor, ""});
  if (algorithm.compresses && compressor != CompressorKind::none)
    candidates.push_back({nullptr, Collective::flat, CompressorKind::none, ""});
  Averaging<Exec> best;
  double least = std::numeric_limits<double>::infinity();
  std::string measured;
  for (Averaging<Exec>& candidate : candidates) {
    config::Input trial = input;
    trial.comm.collective = candidate.collective;
    trial.compression.compressor = candidate.compressor;
    const double seconds =
        seconds_of_average(exec, trial, communicator, tensors,
                           *make_transport<Exec>(trial, communicator, candidate.collective, input.comm.transport));
    char text[64];
    std::snprintf(text, sizeof text, "%s%s %.3g ms", measured.empty() ? "" : ", ", candidate.name().c_str(),
                  1e3 * seconds);
    measured += text;
    if (seconds >= least) continue;
    least = seconds;
    best = std::move(candidate);
  }
  best.transport = make_transport<Exec>(input, communicator, best.collective, input.comm.transport);  // counts no trial
  best.reason = "an average of " + std::to_string(tensors.size()) + " parameters took: " + measured;
  return best;
}

}  // namespace onebit::train
