#include "train/averaging.hpp"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/timer.hpp"
#include "comm/transport/hierarchical.hpp"
#include "optim/compression.hpp"
#include "train/agreement.hpp"

namespace onebit::train {
namespace {

template <class Exec>
std::unique_ptr<comm::Transport<Exec>> make_transport(const config::Input& input, const Communicator& communicator,
                                                      Collective collective, TransportKind kind) {
  const comm::Exchange exchange{
      input.comm.exchange == ExchangeKind::pairwise ? static_cast<std::size_t>(input.comm.message_bytes) : 0};
  const bool hierarchical = collective == Collective::hierarchical;
  std::unique_ptr<comm::Transport<Exec>> transport;
  Deferred deferred;  // a fault is the same on every rank, but some ranks find it only after they have communicated
  deferred([&] {
    located(input.where(hierarchical ? "comm.collective" : "comm.transport"), [&] {
      transport = hierarchical
                      ? comm::make_hierarchical_transport<Exec>(kind, communicator, communicator.hosts(), exchange)
                      : comm::make_transport<Exec>(kind, communicator, std::numeric_limits<int>::max(), exchange);
    });
  });
  deferred.rethrow(communicator);
  return transport;
}

template <class Exec>
std::unique_ptr<comm::Transport<Exec>> make_transport(const config::Input& input, const Communicator& communicator,
                                                      Collective collective) {
  return make_transport<Exec>(input, communicator, collective, input.comm.transport);
}

/// Whether there are several hosts, all with the same number of ranks, and several ranks on each.
bool has_hierarchy(const Communicator& communicator) {
  const auto ranks = comm::ranks_by_host(communicator.hosts());
  return ranks.size() > 1 && ranks.begin()->second.size() > 1 && comm::all_hosts_are_alike(ranks);
}

/// Seconds that an average takes on the slowest rank: the median of three, after one to warm up.
template <class Exec>
double measure(const Exec& exec, const config::Input& input, const Communicator& communicator,
               const TensorTable& tensors, comm::Transport<Exec>& transport) {
  constexpr int repetitions = 3;
  comm::DenseAverage<Exec> dense(transport, optim::dense_options(input));
  auto allreduce = config::traits(input.optimizer.algorithm).compresses
                       ? optim::make_compressed_average(optim::Setup<Exec>{input, tensors, transport, dense})
                       : comm::CompressedAverage<Exec>(dense);
  const Vector<Exec, float> x("OneBit::train::trial", tensors.size());
  PhaseTimes unused;
  std::vector<double> slowest;
  for (int repetition = 0; repetition <= repetitions; ++repetition) {
    communicator.barrier();
    const Stopwatch watch;
    allreduce(exec, x, unused);
    const double seconds = watch.seconds();
    const std::vector<double> all = communicator.gather(&seconds, 1);
    if (repetition > 0) slowest.push_back(*std::max_element(all.begin(), all.end()));
  }
  std::sort(slowest.begin(), slowest.end());
  return slowest[slowest.size() / 2];
}

}  // namespace

template <class Exec>
std::string Averaging<Exec>::name() const {
  if (compressor != CompressorKind::none) return to_string(collective);
  return collective == Collective::flat ? "dense" : "dense " + to_string(collective);
}

template <class Exec>
Averaging<Exec> make_averaging(const Exec& exec, const config::Input& input, const Communicator& communicator,
                               const TensorTable& tensors) {
  const Region region("OneBit::train::make_averaging");
  const CompressorKind compressor = input.compression.compressor;
  if (input.comm.collective != Collective::automatic)
    return {make_transport<Exec>(input, communicator, input.comm.collective), input.comm.collective, compressor,
            input.given.count("comm.collective") > 0 ? "the input says so" : "it is the default"};

  std::vector<Averaging<Exec>> candidates;
  candidates.push_back({nullptr, Collective::flat, compressor, ""});
  const config::AlgorithmTraits& algorithm = config::traits(input.optimizer.algorithm);
  if (has_hierarchy(communicator) && !algorithm.shards_state)
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
        measure(exec, trial, communicator, tensors, *make_transport<Exec>(trial, communicator, candidate.collective));
    char text[64];
    std::snprintf(text, sizeof text, "%s%s %.3g ms", measured.empty() ? "" : ", ", candidate.name().c_str(),
                  1e3 * seconds);
    measured += text;
    if (seconds >= least) continue;
    least = seconds;
    best = std::move(candidate);
  }
  best.transport = make_transport<Exec>(input, communicator, best.collective);  // counts no trial
  best.reason = "an average of " + std::to_string(tensors.size()) + " parameters took: " + measured;
  return best;
}

template <class Exec>
std::unique_ptr<comm::OverlappedAverage<Exec>> make_overlapped_average(const config::Input& input,
                                                                       const Communicator& communicator,
                                                                       TransportKind kind, std::size_t length) {
  using Overlapped = comm::OverlappedAverage<Exec>;
  using OnHost = Kokkos::Serial;
  const std::size_t bucket_bytes = input.comm.bucket_bytes;
  const bool possible = communicator.size() > 1 && (kind == TransportKind::nccl || any_thread_may_call());
  if (!possible || bucket_bytes == 0 || !Overlapped::worthwhile(length, bucket_bytes)) return nullptr;
  const auto over = [&](auto transport) {
    std::unique_ptr<Overlapped> average;
    communicator.collectively([&] {
      average = std::make_unique<Overlapped>(
          comm::make_bucket_average<Exec>(std::move(transport), optim::dense_options(input)), length, bucket_bytes);
    });
    return average;
  };
  if constexpr (!is_host<Exec>)
    if (kind != TransportKind::host)
      return over(make_transport<Exec>(input, communicator, input.comm.collective, kind));
  return over(make_transport<OnHost>(input, communicator, input.comm.collective, TransportKind::host));
}

namespace {

/// Why buckets of momenta cannot be averaged beside the computation; empty if they can.
template <class Exec>
std::string obstacle(const config::Input& input, const comm::CompressedBuckets<Exec>& buckets) {
  if (input.comm.overlap_compressed == Overlap::none) return "comm.overlap_compressed is none";
  if (input.optimizer.clip > 0 && input.optimizer.clip_norm == ClipNorm::this_step)
    return "optimizer.clip needs the norm of the whole gradient (optimizer.clip_norm: last_step does not)";
  if (buckets.ranks() == 1) return "one rank sends nothing";
  // The thread also makes the step's agreement, by MPI, whatever the transport is.
  if (!any_thread_may_call()) return "in this MPI library only one thread may call";
  return "";
}

}  // namespace

template <class Exec>
MomentumBuckets<Exec> make_momentum_buckets(const config::Input& input, const Communicator& communicator,
                                            TransportKind kind, const TensorTable& tensors, bool asks) {
  using On = typename comm::CompressedBuckets<Exec>::On;
  if (input.comm.compressed_bucket_bytes == 0) return {};
  auto transport =
      make_transport<On>(input, communicator, input.comm.collective, is_host<Exec> ? TransportKind::host : kind);
  MomentumBuckets<Exec> made;
  communicator.collectively([&] {
    made.buckets = optim::make_compressed_buckets<Exec>(input, tensors, std::move(transport));
    made.reason = obstacle(input, *made.buckets);
    if (!made.reason.empty()) return;
    made.overlapped = std::make_unique<comm::OverlappedAverage<Exec>>(made.buckets, tensors.size(),
                                                                      input.comm.compressed_bucket_bytes);
    made.overlap = asks ? input.comm.overlap_compressed : Overlap::backward;
    made.reason = made.overlap == Overlap::step ? "a layer needs its own part of them alone"
                                                : "each needs its own part of the gradient alone";
  });
  return made;
}

#define ONEBIT_INSTANTIATE(Exec)                                                                                       \
  template struct Averaging<Exec>;                                                                                     \
  template Averaging<Exec> make_averaging(const Exec&, const config::Input&, const Communicator&, const TensorTable&); \
  template std::unique_ptr<comm::OverlappedAverage<Exec>> make_overlapped_average(                                     \
      const config::Input&, const Communicator&, TransportKind, std::size_t);                                          \
  template MomentumBuckets<Exec> make_momentum_buckets(const config::Input&, const Communicator&, TransportKind,       \
                                                       const TensorTable&, bool);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::train
