#include "app/start/on_backend.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <tuple>

#include "base/device/gpus.hpp"
#include "base/device/memory.hpp"
#include "base/error.hpp"
#include "base/names.hpp"
#include "base/system/activity.hpp"
#include "config/checks.hpp"
#include "data/tokenizer.hpp"
#include "io/file.hpp"
#include "io/hdf5.hpp"
#include "optim/memory.hpp"
#include "workload/workload.hpp"

namespace onebit::app {

std::vector<std::string> backends() {
  std::vector<std::string> names;
#define ONEBIT_NAME(Exec) names.push_back(BackendName<Exec>::value);
  ONEBIT_FOR_EACH_BACKEND(ONEBIT_NAME)
  return names;
}

namespace {

/// Refuses a backend that this build or this machine lacks.
void check_backend(const config::Input& input) {
  const std::string wanted = to_string(input.run.backend);
  const std::vector<std::string> built = backends();
  if (std::find(built.begin(), built.end(), wanted) == built.end())
    throw InputError(input.where("run.backend"), "backend " + wanted + " was not compiled in",
                     "use one of those that `onebit list` shows, or build with a Kokkos that has it "
                     "(docs/guide/build.md)");
  // A Kokkos with CUDA or HIP does not start without a GPU, even for its host backends.
  if (gpu_count() == 0)
    throw InputError(input.where("run.backend"), "this build needs a GPU and the machine has none",
                     "run where a GPU is visible (nvidia-smi, rocm-smi), or use a build without CUDA and HIP");
}

/// Refuses keys whose run needs a library that this build lacks.
void check_libraries(const config::Input& input) {
  const auto refuse = [&](const std::string& key, const std::string& library, const std::string& otherwise) {
    throw InputError(input.where(key), key + " needs " + library + ", and this build has none",
                     "build OneBit with " + library + " (docs/guide/build.md), or " + otherwise);
  };
  const bool has_subwords = config::has_model(input) && input.data.tokenizer == TokenizerKind::sentencepiece;
  if (has_subwords && !data::has_sentencepiece())
    refuse("data.tokenizer", "SentencePiece", "set it to bytes or characters");
  if (has_hdf5()) return;
  const std::string& restart = input.checkpoint.restart;
  const std::tuple<bool, const char*, const char*> keys[] = {
      {input.workload.kind == WorkloadKind::replay, "replay.file", "choose another workload.kind"},
      {input.checkpoint.every > 0, "checkpoint.every", "set it to 0"},
      {restart != "none" && restart != "auto", "checkpoint.restart", "set it to none"},
      {!input.checkpoint.initialize_from.empty(), "checkpoint.initialize_from", "leave it out"},
      {!input.freeze.from.empty(), "freeze.from", "leave it out"},
      {!input.run.dump_parameters.empty(), "run.dump_parameters", "leave it out"}};
  for (const auto& [needs, key, otherwise] : keys)
    if (needs) refuse(key, "parallel HDF5", otherwise);
}

namespace fs = std::filesystem;

/// Refuses a checkpoint that cannot be opened or lacks what is read from it.
void check_checkpoint(const config::Input& input, const std::string& key, const std::string& path,
                      const std::string& dataset) {
  if (!path.empty()) located(input.where(key), [&] { ArrayReader(path).shape(dataset); });
}

/// Refuses a directory that could not be made or written.
void check_directory(const config::Input& input, const std::string& key, const fs::path& directory) {
  const auto refuse = [&](const std::string& why) {
    throw unwritable_directory(input.where(key), directory.string(), ": " + why);
  };
  std::error_code error;
  fs::path nearest = fs::absolute(directory, error).lexically_normal();
  while (nearest.has_relative_path() && !fs::exists(nearest, error)) nearest = nearest.parent_path();
  if (!fs::is_directory(nearest, error)) refuse("'" + nearest.string() + "' is not a directory");
  if (::access(nearest.c_str(), W_OK | X_OK) != 0) refuse(std::string(std::strerror(errno)) + ", " + nearest.string());
}

/// Refuses files that are missing or do not fit, a run that does not fit into memory, checkpoints that cannot be read,
/// and an output directory that cannot be written. Writes nothing, and allocates nothing of the model's size.
/// \param memory bytes that a rank may take
void check_resources(const config::Input& input, int ranks, double memory) {
  const auto run_bytes = [&](const TensorTable& tensors) { return optim::run_bytes(input, tensors, ranks); };
  workload::check_memory(input, workload::footprint(input, ranks), {0, ranks, memory, run_bytes});
  const std::string& restart = input.checkpoint.restart;
  if (restart != "none" && restart != "auto") check_checkpoint(input, "checkpoint.restart", restart, "parameters");
  check_checkpoint(input, "checkpoint.initialize_from", input.checkpoint.initialize_from, "parameters");
  check_checkpoint(input, "freeze.from", input.freeze.from, "variance");
  const fs::path output = input.run.output;
  check_directory(input, "run.output", output);
  if (input.checkpoint.every > 0) check_directory(input, "checkpoint.directory", output / input.checkpoint.directory);
}

}  // namespace

void check_start(const Communicator& world, const config::Input& input, int ranks, bool here) {
  double memory = std::numeric_limits<double>::infinity();
  if (here && !is_gpu(input.run.backend)) memory = available_host_memory() / ranks;
  world.collectively([&] {
    if (here) check_backend(input);
    check_libraries(input);
    if (world.rank() == 0) check_resources(input, ranks, memory);
  });
}

std::unique_ptr<KokkosSession> start_kokkos(const Communicator& world, const config::Input& input, int& threads) {
  const Activity activity("OneBit::app::start_kokkos");
  world.collectively([&] {
    check_backend(input);
    threads = host_threads(input);
  });
  const int gpu = gpu_of_rank(world.local_rank(), gpu_count());
  const std::string shared = sharing_warning(world.local_size(), gpu_count());
  if (world.rank() == 0 && !shared.empty()) std::printf("warning: %s\n", shared.c_str());
  std::unique_ptr<KokkosSession> session;
  world.collectively([&] {
    try {
      session = std::make_unique<KokkosSession>(threads, gpu);
    } catch (const std::exception& error) {
      const std::string text = error.what();
      throw InputError("Kokkos", text.substr(0, text.find('\n')),
                       "correct or unset the variable of the environment (KOKKOS_…) that this names");
    }
  });
  return session;
}

std::unique_ptr<RunLocks> lock_output(const Communicator& world, const config::Input& input, bool trains) {
  std::unique_ptr<RunLocks> locks;
  world.collectively([&] {
    if (trains) check_libraries(input);
    if (world.rank() == 0) locks = std::make_unique<RunLocks>(input, trains);
  });
  return locks;
}

}  // namespace onebit::app
