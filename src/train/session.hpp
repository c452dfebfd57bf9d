#pragma once
/// \file session.hpp
/// The set-up of a training run: what the step loop works with.

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/device/gpus.hpp"
#include "base/device/memory.hpp"
#include "base/error.hpp"
#include "base/system/host.hpp"
#include "base/system/stop_signal.hpp"
#include "base/timer.hpp"
#include "comm/transport/combined/hierarchical.hpp"
#include "linalg/blas.hpp"
#include "optim/compression.hpp"
#include "optim/memory.hpp"
#include "train/averaging.hpp"
#include "train/checkpoint/checkpoint.hpp"
#include "train/checkpoint/initial_parameters.hpp"
#include "train/checkpoint/initial_variance.hpp"
#include "train/gradient_exchange.hpp"
#include "train/results/energy.hpp"
#include "workload/precision.hpp"
#include "workload/workload.hpp"

namespace onebit::train {

/// What a run works with. Members are made in this order, because later ones refer to earlier ones.
template <class Exec>
struct Session {
  /// Makes the workload, chooses how the ranks average, initialises the parameters and makes the algorithm. Rank 0
  /// prints what was set up. Collective.
  /// \throws AgreedError
  Session(const Exec& exec, const config::Input& given, const Communicator& communicator,
          const Checkpoints& checkpoints)
      : energy(exec, communicator),
        exec(exec),
        communicator(communicator),
        input(given),
        precision(choose_precision(exec, input, communicator, checkpoints)),
        hosts(static_cast<int>(comm::ranks_by_host(communicator.hosts()).size())),
        workload(make_workload(exec, input, communicator, hosts)),
        averaging(choose_averaging(exec, input, communicator, tensors(), checkpoints)),
        dense_average(*averaging.transport, input.comm.dense_type),
        exchange_communicator(communicator.get()),
        exchange(input, exchange_communicator, averaging.transport->kind(), tensors()) {
    if (checkpoints.restarts()) input.freeze.from.clear();  // the checkpoint holds the variance
    std::string initialized;
    communicator.collectively([&] {
      const Region region("OneBit::train::set_up");
      StopSignal::check();
      x = make_uninitialized<Exec, float>("OneBit::train::parameters", tensors().size());
      g = make_uninitialized<Exec, float>("OneBit::train::gradient", tensors().size());
      workload->initialize(exec, x);
      const std::string& from = input.checkpoint.initialize_from;
      if (!from.empty() && !checkpoints.restarts())
        located(input.where("checkpoint.initialize_from"),
                [&] { initialized = read_parameters(exec, from, tensors(), x); });
      algorithm = optim::make_algorithm<Exec>({input, tensors(), *averaging.transport, dense_average,
                                               exchange.gradient_buckets(), exchange.momentum_buckets()});
      read_initial_variance(exec, input, tensors().size(), *algorithm);
      results = std::make_unique<Results>(communicator, input.run.output, input.model.quantization.record_every > 0,
                                          input.train.target_loss);
    });
    if (communicator.rank() == 0) announce(initialized);
  }

  const TensorTable& tensors() const { return workload->tensors(); }
  /// What the run was expected to take of a rank's memory, before it was set up.
  PhaseBytes predicted_bytes() const {
    PhaseBytes bytes = optim::run_bytes(input, tensors(), communicator.size(), hosts);
    bytes.dense += workload->bytes();
    bytes.compressed += workload->bytes();
    return bytes;
  }
  /// The run before its first step.
  Run<Exec> run() {
    Run<Exec> run{input, tensors(), x, *algorithm, *results};
    if (input.schedule.decay == Decay::averaging) run.mean = optim::ParameterMean<Exec>(x.extent(0));
    return run;
  }

  const std::string date = utc_now();
  const Stopwatch watch;
  Energy energy;
  const ViewMemory view_memory;  ///< counts the Views of all that follows
  const Exec exec;
  const Communicator& communicator;
  config::Input input;  ///< with the choices that were made for `auto`
  const workload::ChosenPrecision precision;
  const int hosts;  ///< that the ranks are on
  std::unique_ptr<workload::Workload<Exec>> workload;
  Averaging<Exec> averaging;
  comm::DenseAverage<Exec> dense_average;
  const Communicator exchange_communicator;  ///< for `exchange` alone
  GradientExchange<Exec> exchange;
  Vector<Exec, float> x, g;  ///< (d) parameters, gradient
  std::unique_ptr<optim::Algorithm<Exec>> algorithm;
  std::unique_ptr<Results> results;

private:
  /// Chooses the precision of the products. With `model.precision: auto`, a restarted run multiplies as before.
  /// \param input gets the choice
  static workload::ChosenPrecision choose_precision(const Exec& exec, config::Input& input,
                                                    const Communicator& communicator, const Checkpoints& checkpoints) {
    workload::ChosenPrecision choice{checkpoints.precision(), "the checkpoint's run did"};
    if (!checkpoints.restarts() || input.model.precision != Precision::automatic)
      choice = workload::choose_precision(exec, input, communicator);
    input.model.precision = choice.precision;
    return choice;
  }

  /// The workload of this rank, which may take an equal part of the available memory.
  static std::unique_ptr<workload::Workload<Exec>> make_workload(const Exec& exec, const config::Input& input,
                                                                 const Communicator& communicator, int hosts) {
    // Every rank measures this before any rank allocates.
    const double available = available_memory<Exec>();
    const std::vector<int> sharers = lowest_sharers<Exec>(communicator);
    const auto sharing = std::count(sharers.begin(), sharers.end(), sharers[communicator.rank()]);
    std::unique_ptr<workload::Workload<Exec>> workload;
    communicator.collectively([&] {
      workload = workload::make_workload(
          exec, input,
          {communicator.rank(), communicator.size(), available / static_cast<double>(sharing),
           [&](const TensorTable& tensors) { return optim::run_bytes(input, tensors, communicator.size(), hosts); }});
    });
    return workload;
  }

  /// Chooses how the ranks average. With `comm.collective: auto`, a restarted run averages as before.
  /// \param input gets the choice
  static Averaging<Exec> choose_averaging(const Exec& exec, config::Input& input, const Communicator& communicator,
                                          const TensorTable& tensors, const Checkpoints& checkpoints) {
    const bool as_before = checkpoints.restarts() && input.comm.collective == Collective::automatic;
    if (as_before) checkpoints.average_as_before(input);
    Averaging<Exec> averaging = make_averaging(exec, input, communicator, tensors);
    if (as_before) averaging.reason = "the checkpoint's run did";
    input.comm.collective = averaging.collective;
    input.compression.compressor = averaging.compressor;
    return averaging;
  }

  /// \param initialized where the parameters are from, in words; may be empty
  void announce(const std::string& initialized) const {
    const int ranks = communicator.size();
    std::printf("%s: %s, %zu parameters, %d rank(s), backend %s\n", input.optimizer.algorithm.c_str(),
                to_string(input.workload.kind).c_str(), tensors().size(), ranks, BackendName<Exec>::value);
    if (const std::string samples = workload->samples(); !samples.empty())
      std::printf("samples: %s\n", samples.c_str());
    std::printf("products: %s, because %s\n", to_string(precision.precision).c_str(), precision.reason.c_str());
    const std::string type =
        input.comm.dense_type == DenseType::fp32 ? "" : ", dense ones in " + to_string(input.comm.dense_type);
    std::printf("averages: %s%s, because %s\n", averaging.name().c_str(), type.c_str(), averaging.reason.c_str());
    if (!exchange.about_momenta().empty()) std::printf("momenta: %s\n", exchange.about_momenta().c_str());
    if (!initialized.empty()) std::printf("%s\n", initialized.c_str());
    const std::string warning = linalg::blas_info().warning;
    if (!warning.empty()) std::printf("warning: %s\n", warning.c_str());
    if (ranks > 1 && !any_thread_may_call() && averaging.transport->kind() != TransportKind::nccl)
      std::printf(
          "warning: in this MPI library only one thread may call (no MPI_THREAD_SERIALIZED): gradients are averaged "
          "after the backward pass, not in buckets during it\n");
  }
};

}  // namespace onebit::train
