/// \file trainer.cpp
/// See trainer.hpp. A step: gradient, agreement that it is finite, update, checks, a row of steps.csv.

#include "train/trainer.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <limits>

#include "base/activity.hpp"
#include "base/build_info.hpp"
#include "base/error.hpp"
#include "base/memory.hpp"
#include "base/parallel.hpp"
#include "comm/allreduce.hpp"
#include "linalg/blas.hpp"
#include "optim/algorithm.hpp"
#include "train/averaging.hpp"
#include "train/checkpoint.hpp"
#include "train/freeze.hpp"
#include "train/initial_variance.hpp"
#include "train/replicas.hpp"
#include "train/results.hpp"
#include "train/stop_signal.hpp"
#include "workload/workload.hpp"

namespace onebit::train {
namespace {

constexpr double nothing = std::numeric_limits<double>::quiet_NaN();

std::filesystem::path resolved_input(const config::Input& input) {
  return std::filesystem::path(input.run.output) / "input.resolved.yaml";
}

/// The file of `run.dump_parameters`; a relative name is taken inside `run.output`.
std::filesystem::path dump_file(const config::Input& input) {
  return std::filesystem::path(input.run.output) / input.run.dump_parameters;
}

std::filesystem::path partial(const std::filesystem::path& path) { return path.string() + ".partial"; }

/// Makes the output directory and writes the resolved input there under its partial name; refuses now what could not
/// be written at the end of the run.
void prepare_output(const config::Input& input) {
  const std::filesystem::path directory = input.run.output;
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  std::ofstream file(partial(resolved_input(input)));
  file << config::resolved(input);
  file.close();
  if (!file)
    throw InputError(input.where("run.output"), "directory '" + directory.string() + "' cannot be written",
                     "name a directory that you may write, with free space");
  for (const char* name : {"input.resolved.yaml", "steps.csv", "profile.csv", "run.csv"})
    if (std::filesystem::is_directory(directory / name, error))
      throw InputError(input.where("run.output"), "'" + (directory / name).string() + "' is a directory",
                       "remove it, or name another directory");

  if (input.run.dump_parameters.empty()) return;
  const std::filesystem::path dump = dump_file(input);
  const bool writable = std::ofstream(partial(dump), std::ios::app).is_open();
  if (writable) std::filesystem::remove(partial(dump), error);
  if (!writable || std::filesystem::is_directory(dump, error))
    throw InputError(input.where("run.dump_parameters"), "file '" + dump.string() + "' cannot be written",
                     "name a file in a directory that exists and that you may write");
}

/// Keeps what this rank threw until all ranks meet. A rank that left on its own would leave the others waiting.
class Deferred {
public:
  /// Calls `work`, unless something failed before.
  template <class Work>
  void operator()(const Work& work) {
    if (m_error) return;
    try {
      work();
    } catch (...) {
      m_error = std::current_exception();
    }
  }
  bool failed() const { return m_error != nullptr; }
  void rethrow() const {
    if (m_error) std::rethrow_exception(m_error);
  }

private:
  std::exception_ptr m_error;
};

/// i ↦ g(first + i)²
template <class Exec>
struct Square {
  Vector<Exec, float> g;
  std::size_t first;
  KOKKOS_FUNCTION double operator()(std::size_t i) const {
    return static_cast<double>(g(first + i)) * static_cast<double>(g(first + i));
  }
};

/// What ranks tell each other of their own gradients: norm, and first tensor with a non-finite element. Taken in parts,
/// because a gradient that is averaged while it is computed is nowhere whole.
template <class Exec>
class LocalGradient {
public:
  explicit LocalGradient(const TensorTable& tensors) : m_tensors(tensors), m_sum(tensors.size()) {}

  void begin() { m_first_nonfinite = nullptr; }

  /// Looks at elements [begin, end) of g; parts of one step are those of OrderedSum, in any order.
  void look_at(const Exec& exec, const Vector<Exec, float>& g, std::size_t begin, std::size_t end) {
    if (std::isfinite(m_sum.part(exec, "OneBit::train::gradient_norm", begin, end, Square<Exec>{g, 0}))) return;
    for (const Tensor& tensor : m_tensors.tensors()) {
      if (m_first_nonfinite != nullptr && tensor.offset >= m_first_nonfinite->offset) return;
      const std::size_t low = std::max(begin, tensor.offset), high = std::min(end, tensor.offset + tensor.size());
      if (low >= high) continue;
      const OrderedSum<Exec> sum(high - low);
      if (!std::isfinite(sum(exec, "OneBit::train::nonfinite_tensor", Square<Exec>{g, low})))
        m_first_nonfinite = &tensor;
    }
  }

  /// ‖g‖₂², the same bits whatever the parts were.
  double square_norm(const Exec& exec) const { return m_sum.total(exec, "OneBit::train::gradient_norm"); }
  /// Empty where all elements are finite.
  std::string nonfinite_tensor() const { return m_first_nonfinite != nullptr ? m_first_nonfinite->name : ""; }

private:
  const TensorTable& m_tensors;
  OrderedSum<Exec> m_sum;
  const Tensor* m_first_nonfinite = nullptr;
};

/// What all ranks know of the step's gradients.
struct Agreement {
  double mean_loss;
  double mean_square_norm;
  bool finite;
  bool failed;  ///< some rank threw
  bool stops;   ///< a signal asked some rank to stop
  bool ready;   ///< all ranks are, to go on with the checkpoint that is under way
};

/// Adds up loss, gradient norms, failures, stop signals and readiness over ranks: the one small message of a step beside
/// the algorithm's own.
Agreement agree(const Communicator& communicator, double loss, double square_norm, bool failed, bool stops,
                bool ready) {
  double sums[5] = {loss, square_norm, failed ? 1.0 : 0.0, stops ? 1.0 : 0.0, ready ? 1.0 : 0.0};
  communicator.sum(sums, 5);
  const double ranks = communicator.size();
  return {sums[0] / ranks, sums[1] / ranks, std::isfinite(sums[0]) && std::isfinite(sums[1]),
          sums[2] > 0,     sums[3] > 0,     sums[4] == ranks};
}

/// Ends the run on all ranks with the place of the lowest rank's first non-finite value.
/// \param tensor of this rank with such a value; empty for none
[[noreturn]] void abort_nonfinite(const Communicator& communicator, double loss, const std::string& tensor, long step) {
  const double found = !tensor.empty() || !std::isfinite(loss);
  const std::vector<double> all = communicator.gather(&found, 1);
  const auto first = std::find(all.begin(), all.end(), 1.0);
  const int rank = first != all.end() ? static_cast<int>(first - all.begin()) : 0;
  const std::string place = "rank " + std::to_string(rank) + ", step " + std::to_string(step);
  const std::string what =
      tensor.empty() ? "the loss is not finite" : "the gradient of tensor '" + tensor + "' is not finite";
  throw AgreedError(ExitStatus::failed_run,
                    communicator.broadcast(place + ": " + what, rank) +
                        "\n  remedy: lower optimizer.lr, lengthen schedule.warmup_steps or freeze.step, set "
                        "optimizer.clip, or set optimizer.on_nonfinite to skip");
}

/// Means over all ranks' validation samples; NaN for a workload without.
struct Validation {
  double loss = nothing, accuracy = nothing;
};
template <class Exec>
Validation validate(const Exec& exec, const Communicator& communicator, workload::Workload<Exec>& workload,
                    const Vector<Exec, float>& x, Deferred& deferred) {
  const Region region("OneBit::train::validate");
  workload::LossSum mine;
  deferred([&] { mine = workload.validation_loss(exec, x); });
  double sums[3] = {mine.sum, mine.right, mine.samples};
  communicator.sum(sums, 3);
  return sums[2] > 0 ? Validation{sums[0] / sums[2], sums[1] / sums[2]} : Validation();
}

/// The most of any rank.
long most_overruns(const Communicator& communicator, long mine) {
  const double value = static_cast<double>(mine);
  const std::vector<double> all = communicator.gather(&value, 1);
  return static_cast<long>(*std::max_element(all.begin(), all.end()));
}

/// Columns of run.csv on memory: of the rank that took most.
RunColumns memory_columns(const Communicator& communicator, const ViewMemory& views, std::size_t parameters) {
  const double mine[3] = {views.of("optim") + views.of("comm") + views.of("compress"), views.peak(),
                          peak_host_memory()};
  const std::vector<double> all = communicator.gather(mine, 3);
  double most[3] = {};
  for (std::size_t i = 0; i < all.size(); ++i) most[i % 3] = std::max(most[i % 3], all[i]);
  return {{"optimizer_bytes_per_parameter", most[0] / static_cast<double>(parameters)},
          {"peak_view_bytes", most[1]},
          {"peak_memory_bytes", most[2]}};
}

/// Ranks that take their memory from the same GPU, at most.
int ranks_of_a_gpu(const Communicator& communicator) {
  const int gpus = std::max(1, gpu_count());
  return (communicator.local_size() + gpus - 1) / gpus;
}

std::string hexadecimal(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

/// Prints a line every now and then, on rank 0.
class Progress {
public:
  /// \param first_step of this process
  Progress(const config::Input& input, bool prints, long first_step)
      : m_interval(prints ? input.run.progress_interval_s : 0), m_first_step(first_step), m_steps(input.train.steps) {}

  void operator()(const StepRecord& record, double tokens_per_second) {
    if (m_interval <= 0) return;
    const bool last = record.step == m_steps, validated = !std::isnan(record.validation_loss);
    if (!last && !validated && record.step > m_first_step && m_since_line.seconds() < m_interval) return;
    m_since_line.restart();
    const double left =
        m_since_start.seconds() / static_cast<double>(record.step - m_first_step + 1) * (m_steps - record.step);
    std::printf("step %ld/%ld  loss %.4f  lr %.3g  phase %s  %.0f tokens/s  time left %ld:%02ld", record.step, m_steps,
                record.loss, record.lr, record.state.compressed ? "compressed" : "dense", tokens_per_second,
                static_cast<long>(left) / 60, static_cast<long>(left) % 60);
    if (validated) std::printf("  validation loss %.4f", record.validation_loss);
    if (!std::isnan(record.validation_accuracy)) std::printf("  accuracy %.4f", record.validation_accuracy);
    std::printf("\n");
    std::fflush(stdout);
  }

private:
  double m_interval;
  long m_first_step, m_steps;
  Stopwatch m_since_start, m_since_line;
};

/// Columns of run.csv that say by which Slurm job, from rank 0's environment; empty cells outside Slurm.
RunColumns slurm_columns() {
  constexpr std::pair<const char*, const char*> variables[] = {
      {"slurm_job_id", "SLURM_JOB_ID"},
      {"slurm_job_name", "SLURM_JOB_NAME"},
      {"slurm_array_job_id", "SLURM_ARRAY_JOB_ID"},
      {"slurm_array_task_id", "SLURM_ARRAY_TASK_ID"},
      {"slurm_restarts", "SLURM_RESTART_COUNT"},
      {"slurm_cluster", "SLURM_CLUSTER_NAME"},
      {"slurm_partition", "SLURM_JOB_PARTITION"},
      {"slurm_account", "SLURM_JOB_ACCOUNT"},
      {"slurm_nodes", "SLURM_JOB_NUM_NODES"},
      {"slurm_nodelist", "SLURM_JOB_NODELIST"},
      {"slurm_tasks_per_node", "SLURM_TASKS_PER_NODE"},
      {"slurm_cpus_per_task", "SLURM_CPUS_PER_TASK"},
  };
  RunColumns columns;
  for (const auto& [column, variable] : variables) {
    const char* const value = std::getenv(variable);
    columns.emplace_back(column, value != nullptr ? value : "");
  }
  return columns;
}

/// Columns of run.csv that say what was run, on what.
template <class Exec>
RunColumns run_columns(const Exec& exec, const config::Input& input, const Communicator& communicator,
                       const Averaging<Exec>& averaging, std::size_t parameters) {
  const linalg::BlasInfo blas = linalg::blas_info();
  const comm::DeviceSupport& support = averaging.transport->device_support();
  const char* const network = std::getenv("ONEBIT_NETWORK");
  return {{"version", build_version},
          {"git", build_git},
          {"compiler", build_compiler},
          {"kokkos", kokkos_version()},
          {"backend", BackendName<Exec>::value},
          {"mpi", mpi_library()},
          {"transport", averaging.transport->name()},
          {"collective", averaging.name()},
          {"collective_reason", averaging.reason},
          {"device_mpi", support.supported ? "yes" : "no"},
          {"device_mpi_evidence", support.evidence},
          {"network", network != nullptr ? network : ""},
          {"blas", blas.library},
          {"blas_core", blas.core},
          {"input", input.file},
          {"workload", to_string(input.workload.kind)},
          {"algorithm", input.optimizer.algorithm},
          {"seed", static_cast<long>(input.run.seed)},
          {"ranks", communicator.size()},
          {"threads_per_rank", is_host<Exec> ? concurrency(exec) : 1},
          {"parameters", static_cast<std::uint64_t>(parameters)},
          {"steps", input.train.steps},
          {"batch", input.train.batch}};
}

/// Sets up what trains, and takes the steps.
template <class Exec>
ExitStatus run_steps(const Exec& exec, const config::Input& input, const Communicator& communicator,
                     Checkpoints& checkpoints) {
  const ViewMemory view_memory;
  const int rank = communicator.rank(), ranks = communicator.size();
  // Measured here by every rank, before any of them has taken its share.
  const double available = available_memory<Exec>();
  const int sharing = is_host<Exec> ? communicator.local_size() : ranks_of_a_gpu(communicator);
  std::unique_ptr<workload::Workload<Exec>> workload;
  communicator.collectively([&] {
    workload = workload::make_workload(exec, input, workload::Share{rank, ranks, available / sharing});
  });
  const TensorTable& tensors = workload->tensors();
  config::Input resolved = input;  // with what `auto` came to
  const bool as_before = checkpoints.restarts() && input.comm.collective == Collective::automatic;
  if (as_before) checkpoints.average_as_before(resolved);
  Averaging<Exec> averaging = make_averaging(exec, resolved, communicator, tensors);
  if (as_before) averaging.reason = "the checkpoint's run did";
  comm::Transport<Exec>* const transport = averaging.transport.get();
  resolved.comm.collective = averaging.collective;
  resolved.compression.compressor = averaging.compressor;
  if (checkpoints.restarts()) resolved.freeze.from.clear();  // the checkpoint holds the variance
  Vector<Exec, float> x, g;
  std::string initialized;  // with what, in words
  const Communicator bucket_communicator(communicator.get());
  const auto overlapped_average = make_overlapped_average<Exec>(resolved, bucket_communicator, tensors.size());
  std::unique_ptr<optim::Algorithm<Exec>> algorithm;
  std::unique_ptr<Results> results;
  communicator.collectively([&] {
    const Region region("OneBit::train::set_up");
    x = make_uninitialized<Exec, float>("OneBit::train::parameters", tensors.size());
    g = make_uninitialized<Exec, float>("OneBit::train::gradient", tensors.size());
    workload->initialize(exec, x);
    const std::string& from = input.checkpoint.initialize_from;
    if (!from.empty() && !checkpoints.restarts())
      located(input.where("checkpoint.initialize_from"),
              [&] { initialized = read_parameters(exec, from, tensors, x); });
    algorithm = optim::make_algorithm<Exec>({resolved, tensors, *transport, rank, ranks});
    read_initial_variance(exec, resolved, *algorithm);
    results = std::make_unique<Results>(communicator, input.run.output);
  });
  LocalGradient<Exec> local(tensors);
  const auto traffic = [&] {
    comm::Traffic all = transport->traffic();
    if (overlapped_average) all += overlapped_average->transport().traffic();
    return all;
  };
  const auto traffic_within_host = [&] {
    comm::Traffic all = transport->traffic_within_host();
    if (overlapped_average) all += overlapped_average->transport().traffic_within_host();
    return all.total();
  };
  if (rank == 0) {
    std::printf("%s: %s, %zu parameters, %d rank(s), backend %s\n", input.optimizer.algorithm.c_str(),
                to_string(input.workload.kind).c_str(), tensors.size(), ranks, BackendName<Exec>::value);
    std::printf("averages: %s, because %s\n", averaging.name().c_str(), averaging.reason.c_str());
    if (!initialized.empty()) std::printf("%s\n", initialized.c_str());
    const std::string warning = linalg::blas_info().warning;
    if (!warning.empty()) std::printf("warning: %s\n", warning.c_str());
    if (ranks > 1 && !any_thread_may_call())
      std::printf(
          "warning: this MPI library takes calls by one thread alone (no MPI_THREAD_SERIALIZED): gradients are "
          "averaged after the backward pass, not in buckets beside it\n");
  }

  Run<Exec> run{resolved, tensors, x, *algorithm, *results};
  run.label = checkpoints.label();
  if (checkpoints.restarts()) checkpoints.restore(exec, run);
  Progress progress(input, rank == 0, run.step + 1);
  Deferred deferred;
  optim::StepState& state = run.last;
  for (long step = run.step + 1; step <= input.train.steps; ++step) {
    const Region region("OneBit::train::step");
    Activity::set_step(step);
    StepRecord record{};
    const std::uint64_t bytes_before = traffic().total();
    const Stopwatch watch;
    double loss = 0;
    local.begin();
    const auto look = [&](std::size_t begin, std::size_t end) { local.look_at(exec, g, begin, end); };
    const bool overlaps = overlapped_average && algorithm->averages_gradient(step);
    if (overlaps) {
      overlapped_average->start(exec, g, look);
      const GradientProgress final_from = [&](std::size_t b) { overlapped_average->final_from(b); };
      deferred([&] {
        loss = workload->gradient(exec, x, step, g, record.times, final_from);
        final_from(0);
      });
      record.hidden_allreduce = overlapped_average->wait(record.times);
    } else {
      deferred([&] { loss = workload->gradient(exec, x, step, g, record.times, {}); });
      look(0, tensors.size());
    }
    const Agreement agreement = agree(communicator, loss, local.square_norm(exec), deferred.failed(),
                                      StopSignal::received(), checkpoints.is_ready());
    if (agreement.failed) communicator.collectively([&] { deferred.rethrow(); });
    record.lr = optim::learning_rate(input, step);
    if (agreement.finite) {
      const bool was_frozen = state.frozen_at > 0;
      state = algorithm->step(exec, x, g, {step, record.lr, agreement.mean_square_norm, overlaps}, record.times);
      if (rank == 0 && state.frozen_at > 0 && !was_frozen) announce_freeze(resolved, state);
    } else {
      if (input.optimizer.on_nonfinite == OnNonfinite::abort)
        abort_nonfinite(communicator, loss, local.nonfinite_tensor(), step);
      record.skipped = true;
      // A run ends with the same parameters everywhere, whatever its last step was.
      if (step == input.train.steps && !state.synchronised) {
        comm::average(exec, *transport, ranks, x, record.times);
        state.synchronised = true;
      }
    }
    record.seconds = watch.seconds();
    record.step = step;
    record.loss = agreement.mean_loss;
    record.gradient_norm = std::sqrt(agreement.mean_square_norm);
    record.tokens = workload->tokens_per_step();
    record.state = state;
    record.bytes = traffic().total() - bytes_before;

    if (agreement.ready) checkpoints.advance(*results);
    if (step == input.train.steps) checkpoints.complete(*results);
    const int every = input.train.validate_every;
    const bool validates = step == input.train.steps || (every > 0 && step % every == 0);
    const Validation validation = validates ? validate(exec, communicator, *workload, x, deferred) : Validation();
    record.validation_loss = validation.loss;
    record.validation_accuracy = validation.accuracy;
    const int check_every = input.run.check_replicas_every;
    if (ranks > 1 && check_every > 0 && state.synchronised && (step % check_every == 0 || step == input.train.steps))
      check_replicas(exec, communicator, x, step);
    {
      const Region writing("OneBit::train::results");
      deferred([&] { results->add(record); });
      progress(record, results->tokens_per_second());
    }

    run.step = step;
    run.traffic = traffic();
    run.traffic_within_host = traffic_within_host();
    const bool stops = agreement.stops && step < input.train.steps;
    if (!stops && !checkpoints.due(step)) continue;
    communicator.collectively([&] { deferred.rethrow(); });
    const std::string checkpoint = checkpoints.begin(exec, run);
    if (!stops) continue;
    checkpoints.complete(*results);
    if (rank == 0)
      std::printf("stopped by a signal after step %ld; checkpoint: %s\n  to go on: --set checkpoint.restart=auto\n",
                  step, checkpoint.c_str());
    return ExitStatus::stopped;
  }

  communicator.collectively([&] { deferred.rethrow(); });
  checkpoints.complete(*results);
  const long overruns = most_overruns(communicator, workload->compute_overruns());
  if (rank == 0 && overruns > 0)
    std::printf(
        "warning: in %ld of %d steps a gradient took longer than workload.compute_time_ms: raise it, or run fewer "
        "ranks "
        "on these cores\n",
        overruns, input.train.steps);
  if (!input.run.dump_parameters.empty()) write_checkpoint(exec, communicator, dump_file(input).string(), run);
  RunColumns leading = run_columns(exec, input, communicator, averaging, tensors.size());
  for (auto& column : slurm_columns()) leading.push_back(std::move(column));
  RunColumns trailing = {{"bucket_bytes", overlapped_average ? input.comm.bucket_bytes : 0},
                         {"compute_time_ms", input.workload.compute_time_ms},
                         {"compute_overruns", overruns},
                         {"parameters_hash", hexadecimal(hash(exec, x))}};
  for (auto& column : memory_columns(communicator, view_memory, tensors.size())) trailing.push_back(std::move(column));
  results->finish(leading, trailing, tensors.size(), traffic(), traffic_within_host());
  communicator.collectively([&] {
    if (rank > 0) return;
    std::filesystem::rename(partial(resolved_input(input)), resolved_input(input));
  });
  if (rank == 0) {
    warn_without_freeze(resolved, state);
    std::printf("%s\nresults are in %s\n", results->compression_summary(tensors.size()).c_str(),
                input.run.output.c_str());
  }
  return ExitStatus::success;
}

}  // namespace

template <class Exec>
ExitStatus train(const Exec& exec, const config::Input& input, const Communicator& communicator) {
  const StopSignal stop_signal;
  communicator.collectively([&] {
    if (communicator.rank() == 0) prepare_output(input);
  });
  Checkpoints checkpoints(input, communicator);
  try {
    return run_steps(exec, input, communicator, checkpoints);
  } catch (const AgreedError&) {
    // All ranks are here, so the last checkpoint need not be lost with the run.
    try {
      checkpoints.complete();
    } catch (const AgreedError&) {  // what came first is what is said
    }
    throw;
  }
}

#define ONEBIT_INSTANTIATE(Exec) template ExitStatus train(const Exec&, const config::Input&, const Communicator&);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::train
