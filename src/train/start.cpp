#include "train/start.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.hpp"
#include "io/hdf5.hpp"
#include "optim/memory.hpp"
#include "workload/workload.hpp"

namespace onebit::train {
namespace {

namespace fs = std::filesystem;

/// Refuses a checkpoint that cannot be opened or lacks what is read from it.
void check_checkpoint(const config::Input& input, const std::string& key, const std::string& path,
                      const std::string& dataset) {
  if (!path.empty()) located(input.where(key), [&] { ArrayReader(path).shape(dataset); });
}

/// Refuses a directory that could not be made or written.
void check_directory(const config::Input& input, const std::string& key, const fs::path& directory) {
  const auto refuse = [&](const std::string& why) {
    throw InputError(input.where(key), "directory '" + directory.string() + "' cannot be written: " + why,
                     "name a directory that you may write, with free space");
  };
  std::error_code error;
  fs::path nearest = fs::absolute(directory, error).lexically_normal();
  while (nearest.has_relative_path() && !fs::exists(nearest, error)) nearest = nearest.parent_path();
  if (!fs::is_directory(nearest, error)) refuse("'" + nearest.string() + "' is not a directory");
  if (::access(nearest.c_str(), W_OK | X_OK) != 0) refuse(std::string(std::strerror(errno)) + ", " + nearest.string());
}

}  // namespace

void check_start(const config::Input& input, int ranks, double memory, int hosts) {
  const auto run_bytes = [&](const TensorTable& tensors) { return optim::run_bytes(input, tensors, ranks, hosts); };
  workload::check_memory(input, workload::footprint(input, ranks), {0, ranks, memory, run_bytes});
  const std::string& restart = input.checkpoint.restart;
  if (restart != "none" && restart != "auto") check_checkpoint(input, "checkpoint.restart", restart, "parameters");
  check_checkpoint(input, "checkpoint.initialize_from", input.checkpoint.initialize_from, "parameters");
  check_checkpoint(input, "freeze.from", input.freeze.from, "variance");
  const fs::path output = input.run.output;
  check_directory(input, "run.output", output);
  if (input.checkpoint.every > 0) check_directory(input, "checkpoint.directory", output / input.checkpoint.directory);
}

}  // namespace onebit::train
