/// \file main.cpp
/// The program: starts MPI and Kokkos, reads the input, dispatches command and backend, and agrees on one exit status.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#ifdef KOKKOS_ENABLE_OPENMP
#include <omp.h>
#endif

#include "app/identity.hpp"
#include "app/watchdog.hpp"
#include "base/activity.hpp"
#include "base/build_info.hpp"
#include "base/error.hpp"
#include "base/kokkos.hpp"
#include "base/mpi.hpp"
#include "base/subnormals.hpp"
#include "bench/collective.hpp"
#include "bench/kernels.hpp"
#include "comm/nccl.hpp"
#include "config/input.hpp"
#include "linalg/matrix_product.hpp"
#include "scale/predict.hpp"
#include "train/checkpoint.hpp"
#include "train/trainer.hpp"

namespace {

using namespace onebit;

std::string read_file(const std::string& path) {
  constexpr std::size_t longest = 1 << 20;
  std::error_code unknown;
  if (std::filesystem::is_directory(path, unknown))
    throw InputError(path, "the input file is a directory", "name a YAML file; examples are in inputs/");
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw InputError(path, "the input file does not exist or may not be read",
                     "check the name and the permissions; examples are in inputs/");
  // One byte too many, so that an endless file ends too.
  std::string text(longest + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) throw InputError(path, "the input file could not be read to its end", "check its file system");
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > longest)
    throw InputError(path, "the input file is longer than 1 MiB", "name a YAML file; examples are in inputs/");
  return text;
}

/// Rank 0 reads, every rank parses the same text, and all come to the same input.
config::Input read_input(const Communicator& world, const std::string& path,
                         const std::vector<std::string>& overrides) {
  std::string text;
  world.collectively([&] {
    if (world.rank() == 0) text = read_file(path);
  });
  text = world.broadcast(text, 0);
  config::Input input;
  world.collectively([&] { input = config::parse(text, path, overrides); });
  app::check_same_input(world, input);
  return input;
}

std::vector<std::string> backends() {
  std::vector<std::string> names;
#define ONEBIT_NAME(Exec) names.push_back(BackendName<Exec>::value);
  ONEBIT_FOR_EACH_BACKEND(ONEBIT_NAME)
  return names;
}

/// Threads that OpenMP starts where the input leaves it to the environment.
int environment_threads() {
#ifdef KOKKOS_ENABLE_OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}

/// Refuses a backend that this build or this machine does not have, and more threads than Kokkos can hold.
void check_backend(const config::Input& input) {
  const std::string wanted = config::to_string(input.run.backend);
  const std::vector<std::string> built = backends();
  if (std::find(built.begin(), built.end(), wanted) == built.end())
    throw InputError(input.where("run.backend"), "backend " + wanted + " was not compiled in",
                     "use one of those that `onebit list` shows, or build with a Kokkos that has it "
                     "(docs/guide/build.md)");
  // A Kokkos with CUDA does not start without a GPU, even for its host backends.
  if (gpu_count() == 0)
    throw InputError(input.where("run.backend"), "this build needs a GPU and the machine has none",
                     "run where a GPU is visible (nvidia-smi), or use a build without CUDA");
  if (input.run.backend == config::Backend::openmp && input.run.threads == 0 &&
      environment_threads() > config::most_threads)
    throw InputError("OMP_NUM_THREADS",
                     "OpenMP would start " + std::to_string(environment_threads()) + " threads, more than Kokkos holds",
                     "set it, or run.threads, to at most " + std::to_string(config::most_threads));
}

KokkosSession start_kokkos(const Communicator& world, const config::Input& input) {
  const Activity activity("OneBit::app::start_kokkos");
  world.collectively([&] { check_backend(input); });
  const int gpus = gpu_count();
  const bool serial = input.run.backend == config::Backend::serial;
  return KokkosSession(serial ? 1 : input.run.threads, gpus > 0 ? world.local_rank() % gpus : -1);
}

/// Starts Kokkos and calls `work` with an instance of the backend that the input names.
template <class Work>
void on_backend(const Communicator& world, const config::Input& input, const Work& work) {
  const KokkosSession kokkos = start_kokkos(world, input);
  flush_subnormals_of_backends();
#define ONEBIT_DISPATCH(Exec) \
  if (config::to_string(input.run.backend) == BackendName<Exec>::value) return work(Exec());
  ONEBIT_FOR_EACH_BACKEND(ONEBIT_DISPATCH)
}

void list() {
  std::printf("backends:");
  for (const std::string& name : backends()) std::printf(" %s", name.c_str());
  std::printf("\nalgorithms:");
  for (const std::string& name : config::algorithm_names()) std::printf(" %s", name.c_str());
  std::printf(
      "\nworkloads: transformer classification quadratic replay synthetic\ncompressors: sign sign_ternary column "
      "nbit\n");
  const std::string nccl = comm::nccl_version();
  std::printf("transports: host device%s\n", nccl.empty() ? "" : (" nccl (" + nccl + ")").c_str());
  using linalg::Precision;
#define ONEBIT_PRECISIONS(Exec)                                              \
  std::printf("precisions of %s: fp32%s%s\n", BackendName<Exec>::value,      \
              linalg::missing<Exec>(Precision::tf32).empty() ? " tf32" : "", \
              linalg::missing<Exec>(Precision::bf16).empty() ? " bf16" : "");
  ONEBIT_FOR_EACH_BACKEND(ONEBIT_PRECISIONS)
}

/// " bench collective": the subcommands that were given, from the outermost on.
std::string command_of(const CLI::App& app) {
  std::string words;
  for (const CLI::App* const command : app.get_subcommands()) words += " " + command->get_name() + command_of(*command);
  return words;
}

}  // namespace

int main(int argc, char** argv) {
  // Before any thread of ours begins: threads inherit it.
  flush_subnormals();
  // Before all else, so that every rank ends by way of MPI_Finalize whatever the command line holds.
  const MpiSession mpi(argc, argv);
  const Communicator world;
  const bool root = world.rank() == 0;
  CLI::App app("OneBit trains a transformer data-parallel over MPI with 1-bit Adam, and measures what that buys.");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("onebit ") + build_version + " (" + build_git + ")");
  std::string path;
  std::vector<std::string> overrides;
  bool input_keys = false;
  const auto input_command = [&](CLI::App& parent, const char* name, const char* meaning) {
    CLI::App* const command = parent.add_subcommand(name, meaning);
    command->add_option("INPUT", path, "YAML file (docs/reference/input.md)")->required();
    command->add_option("--set", overrides, "override a key: section.key=value")->allow_extra_args(false);
    return command;
  };
  const CLI::App* const train_command = input_command(app, "train", "train; CSV files into run.output");
  const CLI::App* const validate_command =
      input_command(app, "validate", "check an input, print it resolved, run nothing");
  CLI::App* const bench_command = app.add_subcommand("bench", "measure, without training");
  bench_command->require_subcommand(1);
  const CLI::App* const collective_command = input_command(
      *bench_command, "collective", "averages over ranks, dense and compressed, checked and timed; collective.csv");
  const CLI::App* const kernels_command = input_command(
      *bench_command, "kernels", "each kernel against what this machine can do, checked and timed; kernels.csv");
  CLI::App* const checkpoint_command = app.add_subcommand("checkpoint", "look at a checkpoint");
  checkpoint_command->require_subcommand(1);
  const auto file_command = [&](const char* name, const char* meaning) {
    CLI::App* const command = checkpoint_command->add_subcommand(name, meaning);
    command->add_option("FILE", path, "checkpoint (docs/guide/checkpoint.md)")->required();
    return command;
  };
  const CLI::App* const info_command = file_command("info", "verify it and print what it holds");
  const CLI::App* const verify_command = file_command("verify", "check that no byte of it has changed");
  const CLI::App* const predict_command =
      input_command(app, "predict", "step times on networks and rank counts one does not have; predict.csv");
  CLI::App* const list_command = app.add_subcommand("list", "what this build has");
  list_command->add_flag("--input-keys", input_keys, "print docs/reference/input.md");
  std::string command = " with a wrong command line";
  std::unique_ptr<const CLI::ParseError> unparsed;
  try {
    app.parse(argc, argv);
    command = command_of(app);
  } catch (const CLI::ParseError& error) {
    unparsed = std::make_unique<const CLI::ParseError>(error);
    if (error.get_exit_code() == 0) command = " --help";
  }

  ExitStatus status = ExitStatus::success;
  try {
    app::check_same_program(world, command);
    if (unparsed && unparsed->get_exit_code() == 0) return root ? app.exit(*unparsed) : 0;
    if (unparsed)
      throw AgreedError(ExitStatus::bad_input, std::string("command line: ") + unparsed->what() +
                                                   "\n  remedy: see onebit --help, or --help behind a command");
    if (*train_command || *collective_command || *kernels_command) {
      const config::Input input = read_input(world, path, overrides);
      // `bench collective` takes neither samples nor a model.
      if (!*collective_command) world.collectively([&] { config::check(input, world.size()); });
      const app::Watchdog watchdog(world, input);
      on_backend(world, input, [&](const auto& exec) {
        if (*train_command)
          status = train::train(exec, input, world);
        else if (*collective_command)
          bench::collective(exec, input, world);
        else
          bench::kernels(exec, input, world);
      });
      watchdog.remove_file();
    }
    if (*validate_command) {
      const config::Input input = read_input(world, path, overrides);
      world.collectively([&] { config::check(input, world.size()); });
      if (root) std::fputs(config::resolved(input).c_str(), stdout);
    }
    if (*info_command || *verify_command)
      world.collectively([&] {
        if (!root) return;
        const std::string description = train::describe_checkpoint(path);
        std::fputs((*info_command ? description : description.substr(0, description.find('\n') + 1)).c_str(), stdout);
      });
    if (*predict_command) {
      const config::Input input = read_input(world, path, overrides);
      world.collectively([&] {
        if (root) scale::predict(input);
      });
    }
    if (*list_command && root) {
      if (input_keys)
        std::fputs(config::documentation().c_str(), stdout);
      else
        list();
    }
  } catch (const AgreedError& error) {
    if (root) std::fprintf(stderr, "error: %s\n", error.what());
    status = error.status();
  } catch (const std::exception& error) {
    // The other ranks do not know and may wait for this one.
    const Error described = describe(error);
    status = described.status();
    std::fprintf(stderr, "error: rank %d: %s\n", world.rank(), described.what());
    std::fflush(nullptr);
    if (world.size() > 1) MPI_Abort(world.get(), static_cast<int>(status));
  }
  if (root && std::fflush(stdout) != 0 && status == ExitStatus::success) {
    std::fprintf(stderr, "error: standard output: writing failed\n  remedy: check where it goes and its free space\n");
    status = ExitStatus::failed_run;
  }
  return static_cast<int>(status);
}
