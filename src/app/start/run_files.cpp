#include "app/start/run_files.hpp"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <map>

#include "base/error.hpp"

namespace onebit::app {
namespace {

namespace fs = std::filesystem;

/// A file of a command, and what it is in words.
struct File {
  fs::path path;
  std::string name;   ///< "run.dump_parameters"
  std::string where;  ///< for messages
};

/// What each command writes into `run.output`.
const std::map<std::string, std::vector<std::string>>& written_by() {
  static const std::map<std::string, std::vector<std::string>> names = {
      {"train", {"input.resolved.yaml", "steps.csv", "gradient_groups.csv", "profile.csv", "run.csv", "watchdog.txt"}},
      {"bench collective", {"collective.csv", "repetitions.csv", "watchdog.txt"}},
      {"bench kernels", {"kernels.csv", "watchdog.txt"}},
      {"bench layers", {"layers.csv", "passes.csv", "watchdog.txt"}}};
  return names;
}

/// The path from the root, without links and "..", of a file that may be missing.
fs::path whole(const fs::path& path) {
  std::error_code error;
  const fs::path canonical = fs::weakly_canonical(fs::absolute(path), error);
  return error ? fs::absolute(path).lexically_normal() : canonical;
}

bool is_same(const fs::path& one, const fs::path& other) {
  std::error_code error;
  return fs::equivalent(one, other, error) || whole(one) == whole(other);
}

/// Whether `path` is below a directory; both may be missing.
bool is_below(const fs::path& path, const fs::path& directory) {
  const fs::path relative = whole(path).lexically_relative(whole(directory));
  return !relative.empty() && *relative.begin() != "..";
}

fs::path checkpoints_of(const config::Input& input) { return fs::path(input.run.output) / input.checkpoint.directory; }
fs::path dump_of(const config::Input& input) { return fs::path(input.run.output) / input.run.dump_parameters; }

std::vector<File> read_files(const config::Input& input, const std::string& path, bool trains) {
  std::vector<File> files = {{path, "the input", "INPUT"}};
  const auto add = [&](const char* key, const std::vector<std::string>& names) {
    for (const std::string& name : names)
      if (!name.empty()) files.push_back({name, key, input.where(key)});
  };
  if (!trains) return files;
  add("data.corpus", input.data.corpus);
  add("data.labelled", {input.data.labelled});
  add("data.labelled_validation", {input.data.labelled_validation});
  add("replay.file", {input.replay.file});
  add("freeze.from", {input.freeze.from});
  add("checkpoint.initialize_from", {input.checkpoint.initialize_from});
  if (input.checkpoint.restart != "none" && input.checkpoint.restart != "auto")
    add("checkpoint.restart", {input.checkpoint.restart});
  return files;
}

/// What the command writes, under its final and its temporary name. Those that the user names come last.
std::vector<File> written_files(const config::Input& input, const std::string& command, const std::string& json) {
  std::vector<File> files;
  const auto add = [&](const fs::path& path, const std::string& name, const std::string& where) {
    files.push_back({path, name, where});
    files.push_back({path.string() + ".partial", name + " while it is written", where});
  };
  const fs::path output = input.run.output;
  for (const std::string& name : written_by().at(command)) add(output / name, name, input.where("run.output"));
  add(output / "run.lock", "the lock of run.output", input.where("run.output"));
  if (command == "train" && !input.run.dump_parameters.empty())
    add(dump_of(input), "the file of run.dump_parameters", input.where("run.dump_parameters"));
  if (!json.empty()) add(json, "the file of --json", "--json");
  return files;
}

}  // namespace

void check_files(const config::Input& input, const std::string& command, const std::string& path,
                 const std::string& json) {
  const bool trains = command == "train";
  const std::vector<File> written = written_files(input, command, json), read = read_files(input, path, trains);
  for (auto file = written.begin(); file != written.end(); ++file) {
    const auto refuse = [&](const std::string& other, const char* also) {
      throw InputError(file->where, "'" + file->path.string() + "' would be " + file->name + " and " + other + also,
                       "give one of them another name");
    };
    for (auto other = written.begin(); other != file; ++other)
      if (is_same(file->path, other->path)) refuse(other->name, "");
    // An earlier run's resolved input may be run again in its place: it was read, and it is kept.
    const bool is_resolved = file->path.filename() == "input.resolved.yaml" && file->name == "input.resolved.yaml";
    for (const File& other : read)
      if (is_same(file->path, other.path) && !(is_resolved && other.name == "the input"))
        refuse(other.name, ", which is read");
    const bool is_named = file->where == "--json" || file->where == input.where("run.dump_parameters");
    const bool is_step = file->path.filename().string().rfind("step_", 0) == 0;
    if (trains && is_named && is_step && is_below(file->path, checkpoints_of(input))) refuse("a checkpoint", "");
  }
}

RunLocks::RunLocks(const config::Input& input, bool trains) {
  const fs::path output = input.run.output;
  const std::string where = input.where("run.output"), what = "directory '" + output.string() + "'";
  if (!m_made.make(output)) throw unwritable_directory(where, output.string(), because(errno));
  lock((output / "run.lock").string(), where, what);
  if (!trains) return;
  const fs::path checkpoints = checkpoints_of(input);
  // A run that writes no checkpoints of its own accord may read them where it may not write.
  const bool writes = input.checkpoint.every > 0;
  if (!is_below(checkpoints, output) && (m_made.make(checkpoints) || writes) &&
      (writes || ::access(checkpoints.c_str(), W_OK) == 0))
    lock((checkpoints / "run.lock").string(), input.where("checkpoint.directory"),
         "directory '" + checkpoints.string() + "'");
  if (const fs::path dump = dump_of(input); !input.run.dump_parameters.empty() && !is_below(dump, output))
    lock(dump.string() + ".lock", input.where("run.dump_parameters"), "file '" + dump.string() + "'");
}

void RunLocks::lock(const std::string& path, const std::string& where, const std::string& what) {
  m_locks.push_back(std::make_unique<RunLock>(path, where, what));
}

}  // namespace onebit::app
