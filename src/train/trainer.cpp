/// \file trainer.cpp
/// See trainer.hpp. A step: gradient, agreement that it is finite, update, checks, a row of steps.csv.

#include "train/trainer.hpp"

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>

#include "base/error.hpp"
#include "base/hdf5.hpp"
#include "base/parallel.hpp"
#include "linalg/blas.hpp"
#include "optim/algorithm.hpp"
#include "train/build_info.hpp"
#include "train/replicas.hpp"
#include "train/results.hpp"
#include "workload/workload.hpp"

namespace onebit::train {
namespace {

constexpr double nothing = std::numeric_limits<double>::quiet_NaN();

/// Makes the output directory and writes the resolved input there; fails early where nothing could be written later.
void prepare_output(const config::Input& input) {
  const std::filesystem::path directory = input.run.output;
  std::error_code failed;
  std::filesystem::create_directories(directory, failed);
  const std::filesystem::path path = directory / "input.resolved.yaml", partial = path.string() + ".partial";
  std::ofstream file(partial);
  file << config::resolved(input);
  file.close();
  if (file) std::filesystem::rename(partial, path, failed);
  if (!file || failed)
    throw InputError(input.where("run.output"), "directory '" + directory.string() + "' cannot be written",
                     "name a directory that you may write, with free space");
}

comm::TransportKind transport_kind(config::Transport transport) {
  switch (transport) {
    case config::Transport::host:
      return comm::TransportKind::host;
    case config::Transport::device:
      return comm::TransportKind::device;
    case config::Transport::automatic:
      break;
  }
  return comm::TransportKind::automatic;
}

/// First tensor of g with a non-finite element.
template <class Exec>
std::string nonfinite_tensor(const Exec& exec, const TensorTable& tensors, const Vector<Exec, float>& g) {
  for (const Tensor& tensor : tensors.tensors()) {
    const std::size_t offset = tensor.offset;
    const double sum = OrderedSum<Exec>(tensor.size())(
        exec, "OneBit::train::nonfinite_tensor",
        KOKKOS_LAMBDA(std::size_t i) { return static_cast<double>(g(offset + i)) * static_cast<double>(g(offset + i)); });
    if (!std::isfinite(sum)) return tensor.name;
  }
  return "";
}

/// What all ranks know of the step's gradients.
struct Agreement {
  double mean_loss;
  double mean_square_norm;
  bool finite;
};

/// Adds up loss and gradient norms over ranks: the one small message of a step beside the algorithm's own.
template <class Exec>
Agreement agree(const Exec& exec, const Communicator& communicator, const OrderedSum<Exec>& sum, double loss,
                const Vector<Exec, float>& g) {
  const double square_norm = sum(
      exec, "OneBit::train::gradient_norm",
      KOKKOS_LAMBDA(std::size_t i) { return static_cast<double>(g(i)) * static_cast<double>(g(i)); });
  double sums[2] = {loss, square_norm};
  communicator.sum(sums, 2);
  const double ranks = communicator.size();
  return {sums[0] / ranks, sums[1] / ranks, std::isfinite(sums[0]) && std::isfinite(sums[1])};
}

/// Ends the run on all ranks with the place of the first non-finite value.
template <class Exec>
void abort_nonfinite(const Exec& exec, const Communicator& communicator, const TensorTable& tensors, double loss,
                     const Vector<Exec, float>& g, long step) {
  const std::string tensor = nonfinite_tensor(exec, tensors, g);
  const std::string what = !tensor.empty() ? "the gradient of tensor '" + tensor + "' is not finite"
                           : !std::isfinite(loss) ? "the loss is not finite"
                                                  : "";
  communicator.collectively([&] {
    if (!what.empty())
      throw RunError("step " + std::to_string(step), what,
                     "lower optimizer.lr, lengthen schedule.warmup_steps or warmup.steps, set optimizer.clip, or set "
                     "optimizer.on_nonfinite to skip");
  });
}

/// Mean over all ranks' validation samples; NaN for a workload without.
template <class Exec>
double validate(const Exec& exec, const Communicator& communicator, workload::Workload<Exec>& workload,
                const Vector<Exec, float>& x) {
  const workload::LossSum mine = workload.validation_loss(exec, x);
  double sums[2] = {mine.sum, mine.samples};
  communicator.sum(sums, 2);
  return sums[1] > 0 ? sums[0] / sums[1] : nothing;
}

std::string hexadecimal(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

/// Prints a line every now and then, on rank 0.
class Progress {
public:
  Progress(const config::Input& input, bool prints)
      : m_interval(prints ? input.run.progress_interval_s : 0), m_steps(input.train.steps) {}

  void operator()(const StepRecord& record, double tokens_per_second) {
    if (m_interval <= 0) return;
    const bool last = record.step == m_steps, validated = !std::isnan(record.validation_loss);
    if (!last && !validated && record.step > 1 && m_since_line.seconds() < m_interval) return;
    m_since_line.restart();
    const double left = m_since_start.seconds() / static_cast<double>(record.step) * (m_steps - record.step);
    std::printf("step %ld/%ld  loss %.4f  lr %.3g  phase %s  %.0f tokens/s  time left %ld:%02ld", record.step, m_steps,
                record.loss, record.lr, record.state.compressed ? "compressed" : "dense", tokens_per_second,
                static_cast<long>(left) / 60, static_cast<long>(left) % 60);
    if (validated) std::printf("  validation loss %.4f", record.validation_loss);
    std::printf("\n");
    std::fflush(stdout);
  }

private:
  double m_interval;
  long m_steps;
  Stopwatch m_since_start, m_since_line;
};

/// Columns of run.csv that say what was run, on what.
template <class Exec>
RunColumns run_columns(const Exec& exec, const config::Input& input, const Communicator& communicator,
                       const comm::Transport<Exec>& transport, std::size_t parameters) {
  const linalg::BlasInfo blas = linalg::blas_info();
  const comm::DeviceSupport support = comm::device_support<Exec>();
  return {{"version", build_version},
          {"git", build_git},
          {"compiler", build_compiler},
          {"kokkos", kokkos_version()},
          {"backend", BackendName<Exec>::value},
          {"mpi", mpi_library()},
          {"transport", transport.name()},
          {"device_mpi", support.supported ? "yes" : "no"},
          {"device_mpi_evidence", support.evidence},
          {"blas", blas.library},
          {"blas_core", blas.core},
          {"input", input.file},
          {"workload", config::to_string(input.workload.kind)},
          {"algorithm", input.optimizer.algorithm},
          {"seed", static_cast<long>(input.run.seed)},
          {"ranks", communicator.size()},
          {"threads_per_rank", is_host<Exec> ? concurrency(exec) : 1},
          {"parameters", static_cast<std::uint64_t>(parameters)},
          {"steps", input.train.steps},
          {"batch", input.train.batch}};
}

}  // namespace

template <class Exec>
void train(const Exec& exec, const config::Input& input, const Communicator& communicator) {
  const int rank = communicator.rank(), ranks = communicator.size();
  communicator.collectively([&] {
    config::check(input, ranks);
    if (rank == 0) prepare_output(input);
  });

  std::unique_ptr<workload::Workload<Exec>> workload;
  std::unique_ptr<comm::Transport<Exec>> transport;
  communicator.collectively([&] {
    workload = workload::make_workload(exec, input, workload::Share{rank, ranks});
    transport = comm::make_transport<Exec>(transport_kind(input.comm.transport), communicator);
  });
  const TensorTable& tensors = workload->tensors();
  const Vector<Exec, float> x = make_uninitialized<Exec, float>("OneBit::train::parameters", tensors.size());
  const Vector<Exec, float> g = make_uninitialized<Exec, float>("OneBit::train::gradient", tensors.size());
  workload->initialize(exec, x);
  const auto algorithm = optim::make_algorithm<Exec>({input, tensors, *transport, rank, ranks});
  const OrderedSum<Exec> sum(tensors.size());
  std::unique_ptr<Results> results;
  communicator.collectively([&] { results = std::make_unique<Results>(communicator, input.run.output); });
  if (rank == 0) {
    std::printf("%s: %s, %zu parameters, %d rank(s), backend %s\n", input.optimizer.algorithm.c_str(),
                config::to_string(input.workload.kind).c_str(), tensors.size(), ranks, BackendName<Exec>::value);
    const std::string warning = linalg::blas_info().warning;
    if (!warning.empty()) std::printf("warning: %s\n", warning.c_str());
  }

  Progress progress(input, rank == 0);
  optim::StepState state;
  for (long step = 1; step <= input.train.steps; ++step) {
    StepRecord record{};
    const std::uint64_t bytes_before = transport->traffic().total();
    const Stopwatch watch;
    const double loss = workload->gradient(exec, x, step, g, record.times);
    const Agreement agreement = agree(exec, communicator, sum, loss, g);
    record.lr = optim::learning_rate(input, step);
    if (agreement.finite) {
      state = algorithm->step(exec, x, g, {step, record.lr, agreement.mean_square_norm}, record.times);
    } else {
      if (input.optimizer.on_nonfinite == config::OnNonfinite::abort)
        abort_nonfinite(exec, communicator, tensors, loss, g, step);
      record.skipped = true;
    }
    record.seconds = watch.seconds();
    record.step = step;
    record.loss = agreement.mean_loss;
    record.gradient_norm = std::sqrt(agreement.mean_square_norm);
    record.tokens = workload->tokens_per_step();
    record.state = state;
    record.bytes = transport->traffic().total() - bytes_before;

    const int every = input.train.validate_every;
    const bool validates = step == input.train.steps || (every > 0 && step % every == 0);
    record.validation_loss = validates ? validate(exec, communicator, *workload, x) : nothing;
    const int check_every = input.run.check_replicas_every;
    if (ranks > 1 && check_every > 0 && (step % check_every == 0 || step == input.train.steps))
      check_replicas(exec, communicator, x, step);
    results->add(record);
    progress(record, results->tokens_per_second());
  }

  results->finish(run_columns(exec, input, communicator, *transport, tensors.size()),
                  {{"parameters_hash", hexadecimal(hash(exec, x))}}, tensors.size(), transport->traffic());
  communicator.collectively([&] {
    if (rank > 0 || input.run.dump_parameters.empty()) return;
    std::vector<float> parameters(tensors.size());
    Kokkos::deep_copy(Kokkos::View<float*, Kokkos::LayoutRight, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>(
                          parameters.data(), parameters.size()),
                      x);
    const std::filesystem::path path = std::filesystem::path(input.run.output) / input.run.dump_parameters;
    write_array(path.string(), "parameters", parameters);
  });
  if (rank == 0) std::printf("results are in %s\n", input.run.output.c_str());
}

#define ONEBIT_INSTANTIATE(Exec) template void train(const Exec&, const config::Input&, const Communicator&);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::train
