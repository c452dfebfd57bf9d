#include "train/results/output.hpp"

#include <cerrno>
#include <fstream>
#include <system_error>

#include "base/error.hpp"
#include "io/run_lock.hpp"
#include "train/results/results.hpp"

namespace onebit::train {

namespace fs = std::filesystem;

namespace {
// Generated samples, in the format of the "netpbm" programs.
constexpr const char *grey_file = "samples.pgm", *colour_file = "samples.ppm";
}  // namespace

fs::path resolved_input(const config::Input& input) { return fs::path(input.run.output) / "input.resolved.yaml"; }

fs::path dump_file(const config::Input& input) { return fs::path(input.run.output) / input.run.dump_parameters; }

fs::path partial(const fs::path& path) { return path.string() + ".partial"; }

void check_output(const config::Input& input) {
  const fs::path directory = input.run.output;
  std::error_code error;
  fs::create_directories(directory, error);
  for (const char* name :
       {"input.resolved.yaml", steps_file, groups_file, "profile.csv", "run.csv", grey_file, colour_file})
    if (fs::is_directory(directory / name, error))
      throw InputError(input.where("run.output"), "'" + (directory / name).string() + "' is a directory",
                       "remove it, or name another directory");

  if (input.run.dump_parameters.empty()) return;
  const fs::path dump = dump_file(input);
  int reason = std::ofstream(partial(dump), std::ios::app).is_open() ? 0 : errno;
  if (reason == 0) fs::remove(partial(dump), error);
  if (fs::is_directory(dump, error)) reason = EISDIR;
  if (reason != 0)
    throw InputError(input.where("run.dump_parameters"),
                     "file '" + dump.string() + "' cannot be written" + because(reason),
                     "name a file in a directory that exists and that you may write");
}

void begin_output(const config::Input& input, bool restarts) {
  const fs::path directory = input.run.output;
  for (const fs::path& name : {resolved_input(input), directory / steps_file, directory / groups_file})
    if (!restarts) keep_earlier(partial(name));
  errno = 0;
  std::ofstream file(partial(resolved_input(input)));
  file << config::resolved(input);
  file.close();
  if (!file) throw unwritable_directory(input.where("run.output"), directory.string(), because(errno));
}

void write_picture(const config::Input& input, const workload::Picture& picture) {
  if (picture.bytes.empty()) return;
  const fs::path path = fs::path(input.run.output) / (picture.channels == 1 ? grey_file : colour_file);
  errno = 0;
  std::ofstream file(partial(path), std::ios::binary);
  file << (picture.channels == 1 ? "P5 " : "P6 ") << picture.width << ' ' << picture.height << " 255\n";
  file.write(reinterpret_cast<const char*>(picture.bytes.data()), static_cast<std::streamsize>(picture.bytes.size()));
  file.close();
  if (!file) throw unwritable(path.string(), errno);
  keep_earlier(path);
  std::error_code error;
  fs::rename(partial(path), path, error);
  if (error) throw unwritable(path.string(), error.value());
}

}  // namespace onebit::train
