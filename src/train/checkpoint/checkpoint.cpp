#include "train/checkpoint/checkpoint.hpp"

#include <cstdio>
#include <filesystem>
#include <sstream>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/system/build_info.hpp"
#include "base/timer.hpp"
#include "io/file.hpp"
#include "io/hdf5.hpp"
#include "io/sealed/seal.hpp"
#include "train/checkpoint/checkpoint_archive.hpp"
#include "train/checkpoint/checkpoint_contents.hpp"

namespace onebit::train {
namespace {

namespace fs = std::filesystem;

/// Saves or restores all that a run is between two steps.
template <class Exec>
void archive(optim::Archive<Exec>& archive, Run<Exec>& run) {
  archive.number("step", run.step);
  archive.number("last/compressed", run.last.compressed);
  archive.number("last/synchronised", run.last.synchronised);
  archive.number("last/variance_l1", run.last.variance_l1);
  archive.number("last/variance_ratio", run.last.variance_ratio);
  archive.number("last/worker_residual_l2", run.last.worker_residual_l2);
  archive.number("last/server_residual_l2", run.last.server_residual_l2);
  archive.number("last/frozen_at", run.last.frozen_at);
  archive.number("last/mean_square_norm", run.mean_square_norm);
  archive.number("last/owes_validation", run.owes_validation);
  archive.vector("parameters", run.x, !run.last.synchronised);
  run.mean.state(archive);
  run.algorithm.state(archive);
  run.results.state(archive);
}

/// One line for each tensor: its name and its extents.
std::string tensors_text(const TensorTable& tensors) {
  std::string text;
  for (const Tensor& tensor : tensors.tensors()) {
    text += tensor.name;
    for (const std::size_t extent : tensor.shape) text += " " + std::to_string(extent);
    text += "\n";
  }
  return text;
}

/// Refuses an input that a verified checkpoint does not belong to.
/// \returns the checkpoint's input and its step
std::pair<config::Input, long> check_input(const std::string& path, const config::Input& input) {
  const ArrayReader file(path);
  const config::Input saved = config::parse(file.text("input"), path + ", its input", {});
  config::Input wanted = input;
  // `auto` averages as the checkpoint's run did, for which dense averages may have been faster.
  if (input.comm.collective == Collective::automatic && saved.compression.compressor == CompressorKind::none)
    wanted.compression.compressor = CompressorKind::none;
  if (input.model.precision == Precision::automatic) wanted.model.precision = saved.model.precision;
  std::string different;
  for (const std::string& difference : config::differences(saved, wanted)) different += "\n    " + difference;
  if (!different.empty())
    throw InputError(path, "it belongs to a run whose input differs from this one's (there, here):" + different,
                     "give these keys the values of that run, or set checkpoint.restart to none");
  const long step = whole_number(file, path, "step");
  if (step > input.train.steps)
    throw InputError(path,
                     "it is of step " + std::to_string(step) +
                         ", after the last step (train.steps: " + std::to_string(input.train.steps) + ")",
                     "raise train.steps");
  return {saved, step};
}

/// Keys of the exchange that may differ at a restart, though they cut vectors into other groups, each with its value
/// there and here.
std::string regrouped(const config::Input& saved, const config::Input& input) {
  if (!config::traits(input.optimizer.algorithm).compresses) return "";
  std::string keys;
  const auto add = [&](const char* key, const std::string& there, const std::string& here) {
    if (there != here)
      keys += (keys.empty() ? "" : ", ") + std::string(key) + " (there " + there + ", here " + here + ")";
  };
  add("comm.compressed_bucket_bytes", std::to_string(saved.comm.compressed_bucket_bytes),
      std::to_string(input.comm.compressed_bucket_bytes));
  if (input.comm.collective != Collective::automatic)
    add("comm.collective", to_string(saved.comm.collective), to_string(input.comm.collective));
  return keys;
}

}  // namespace

template <class Exec>
void write_checkpoint(const Exec& exec, const Communicator& communicator, const std::string& path, Run<Exec>& run,
                      const std::string& label) {
  const Region region("OneBit::train::checkpoint");
  const std::string partial = path + ".partial";
  std::vector<std::pair<std::string, std::string>> tables;
  communicator.collectively([&] {
    for (const std::string& name : run.results.growing_files()) tables.emplace_back(name, run.results.text(name));
  });
  try {
    ArrayWriter file(communicator, partial, seal_bytes);
    file.text("build", std::string("OneBit ") + build_version + " " + build_git + " " + build_compiler);
    file.text("input", config::resolved(run.input));
    for (const auto& [name, text] : tables) file.text(name, text);
    file.text("tensors", tensors_text(run.tensors));
    Saver<Exec> saver(exec, communicator, partial, file, run.x.extent(0));
    int ranks = communicator.size();
    saver.number("ranks", ranks);
    archive(saver, run);
    // HDF5 1.10 does not survive a full disk, so it closes the file before the large vectors are written.
    file.close();
    write_sealed(communicator, path, saver.ranges(), label);
  } catch (const AgreedError&) {
    if (communicator.rank() == 0) std::remove(partial.c_str());
    throw;
  }
}

Checkpoints::Checkpoints(const config::Input& input, const Communicator& communicator)
    : m_communicator(communicator), m_every(input.checkpoint.every) {
  const bool root = communicator.rank() == 0, is_auto = input.checkpoint.restart == "auto";
  const fs::path directory = fs::path(input.run.output) / input.checkpoint.directory;
  if (root) m_lines = LineDirectory(directory, static_cast<std::size_t>(input.checkpoint.keep));
  if (input.checkpoint.restart != "none") find_restart(input);
  long step = 0;
  communicator.collectively([&] {
    if (restarts())
      std::tie(m_saved, step) =
          located(input.where("checkpoint.restart"), [&] { return check_input(m_restart, input); });
    if (!root) return;
    if (restarts())
      m_lines.restart_from(m_restart, step, is_auto);
    else
      m_lines.begin();
    // Without checkpoint.every a signal may ask for checkpoints. Beside an earlier run's the line has its directory
    // from the start, so that a restart with `auto` does not go on with that run.
    const bool is_open = (m_every > 0 || m_lines.is_beside_another()) && m_lines.open();
    // Refused now, not after hours of training. `errno` is that of `open`.
    if (m_every > 0 && !is_open)
      throw InputError(input.where("checkpoint.directory"),
                       "directory '" + m_lines.directory().string() + "' cannot be written" + because(errno),
                       "name one that you may write");
  });
  if (!root) return;
  if (restarts())
    std::printf("restart: from %s\n", m_restart.c_str());
  else if (is_auto)
    std::printf("restart: no checkpoint in %s, beginning at step 1\n", m_lines.directory().c_str());
  const std::string keys = restarts() ? regrouped(m_saved, input) : "";
  if (!keys.empty())
    std::printf(
        "warning: other elements share a scale than in the checkpoint's run, so the bits are not those of a run "
        "without the restart: %s\n  remedy: give these keys the values of that run\n",
        keys.c_str());
}

void Checkpoints::leave() const {
  std::error_code ignored;  // of a directory that is not empty
  fs::remove(m_lines.directory(), ignored);
}

void Checkpoints::find_restart(const config::Input& input) {
  const Region region("OneBit::train::verify");
  const bool root = m_communicator.rank() == 0, is_auto = input.checkpoint.restart == "auto";
  // One path a line: the input holds no control characters.
  std::string paths = input.checkpoint.restart;
  if (is_auto)
    paths = m_communicator.text_of_root([&] {
      std::string newest_first;
      for (const auto& [step, path] : checkpoints_in(m_lines.newest())) newest_first += path.string() + "\n";
      return newest_first;
    });
  std::istringstream lines(paths);
  for (std::string path; m_restart.empty() && std::getline(lines, path);) {
    try {
      verify_seal(m_communicator, path);
      m_restart = path;
    } catch (const AgreedError& error) {
      if (error.status() == ExitStatus::stopped) throw;
      if (!is_auto) throw AgreedError(error.status(), input.where("checkpoint.restart") + ": " + error.what());
      if (root) std::printf("warning: %s\n  trying the checkpoint before it\n", error.what());
    }
  }
  if (restarts() || paths.empty()) return;
  const std::string directory = fs::path(paths.substr(0, paths.find('\n'))).parent_path().string();
  throw AgreedError(ExitStatus::bad_input,
                    input.where("checkpoint.restart") + ": every checkpoint in " + directory +
                        " is damaged or cannot be read\n  remedy: see the warnings: make those readable that cannot "
                        "be read just now; remove damaged ones, or set checkpoint.restart to none, to begin at step 1");
}

template <class Exec>
void Checkpoints::restore(const Exec& exec, Run<Exec>& run) const {
  const Region region("OneBit::train::restore");
  m_communicator.collectively([&] {
    Restorer<Exec> restorer(exec, m_restart, m_communicator.rank(), m_communicator.size());
    archive(restorer, run);
    for (const std::string& name : run.results.growing_files()) {
      // A run may begin to record groups when it restarts.
      if (name != steps_file && !restorer.reader().has(name)) continue;
      if (!run.results.go_on_from(name, restorer.reader().text(name))) throw restorer.unusable(name);
    }
  });
}

template <class Exec>
std::string Checkpoints::write(const Exec& exec, Run<Exec>& run) {
  const Stopwatch watch;
  const std::string path = m_communicator.text_of_root([&] { return m_lines.path(run.step); });
  run.results.count_checkpoint();
  write_checkpoint(exec, m_communicator, path, run, label());
  if (m_communicator.rank() == 0) m_lines.completed(run.step, path);
  run.results.add_checkpoint_time(watch.seconds());
  return path;
}

std::string describe_checkpoint(const std::string& path) {
  verify_seal(path);
  const ArrayReader file(path);
  const config::Input input = config::parse(file.text("input"), path + ", its input", {});
  std::ostringstream text;
  text << path << ": whole, " << fs::file_size(path) << " bytes\n"
       << "step:       " << whole_number(file, path, "step") << " of " << input.train.steps << "\n"
       << "ranks:      " << whole_number(file, path, "ranks") << "\n"
       << "algorithm:  " << input.optimizer.algorithm << "\n"
       << "workload:   " << to_string(input.workload.kind) << "\n"
       << "line:       " << Line::of(path).text() << "\n"
       << "written by: " << file.text("build") << "\n"
       << "datasets:\n";
  for (const std::string& name : file.datasets()) {
    const std::vector<std::size_t> shape = file.shape(name);
    text << "  " << name << ": " << (shape.empty() ? "text" : shape_text(shape)) << "\n";
  }
  return text.str();
}

#define ONEBIT_INSTANTIATE(Exec)                                                                   \
  template void write_checkpoint(const Exec&, const Communicator&, const std::string&, Run<Exec>&, \
                                 const std::string&);                                              \
  template void Checkpoints::restore(const Exec&, Run<Exec>&) const;                               \
  template std::string Checkpoints::write(const Exec&, Run<Exec>&);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::train
