#include "data/file_bytes.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "base/error.hpp"
#include "base/system/activity.hpp"
#include "base/system/stop_signal.hpp"
#include "io/file.hpp"

namespace onebit::data {

std::string joined_names(const std::vector<std::string>& files, const char* what) {
  if (files.empty()) throw InputError(what, "it names no files", "name at least one");
  const std::size_t more = files.size() - 1;
  if (more == 0) return files.front();
  return files.front() + " and " + std::to_string(more) + (more == 1 ? " more file" : " more files");
}

std::uintmax_t machine_memory() {
  return static_cast<std::uintmax_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::uintmax_t>(::sysconf(_SC_PAGESIZE));
}

std::uintmax_t checked_size(const std::string& file, const char* content) {
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (error) throw InputError(file, "cannot be read: " + error.message(), "check the path and its permissions");
  if (!std::filesystem::is_regular_file(status))
    throw InputError(file, std::filesystem::is_directory(status) ? "is a directory" : "is not a regular file",
                     "name the files themselves");
  const std::uintmax_t size = std::filesystem::file_size(file, error);
  if (error) throw InputError(file, "cannot be read: " + error.message(), "check the path and its permissions");
  if (size == 0)
    throw InputError(file, "is empty", std::string("name a file with ") + content + " in it, or leave this one out");
  return size;
}

void read_bytes(const std::string& name, std::size_t offset, char* bytes, std::size_t count) {
  const Descriptor file(name, O_RDONLY);
  if (file < 0)
    throw InputError(name, "cannot be opened: " + std::generic_category().message(errno),
                     "check the permissions of the file and the limit of open files (ulimit -n), and try again");
  constexpr std::size_t longest = std::size_t{1} << 20;
  for (std::size_t begin = 0; begin < count; begin += longest) {
    Activity::goes_on();
    StopSignal::check();
    const std::size_t block = std::min(longest, count - begin);
    const std::size_t got = read_at(file, offset + begin, bytes + begin, block);
    if (got < block && errno != 0) throw unreadable(name, errno);
    if (got < block)
      throw InputError(name,
                       "could be read only up to byte " + std::to_string(offset + begin + got) + " of " +
                           std::to_string(offset + count),
                       "check that nothing writes to the file and that its file system works");
  }
}

}  // namespace onebit::data
