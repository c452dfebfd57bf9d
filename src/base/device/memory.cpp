#include "base/device/memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <mutex>

namespace onebit {
namespace {

constexpr double no_limit = std::numeric_limits<double>::infinity();

/// MemAvailable of /proc/meminfo (Linux 3.14): free memory and what the page cache can give back.
double unused_memory() {
  std::ifstream file("/proc/meminfo");
  std::string name, line;
  double kibibytes = 0;
  while (file >> name >> kibibytes && std::getline(file, line))
    if (name == "MemAvailable:") return 1024 * kibibytes;
  return static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

/// The files of a control group's memory: its limit, what it uses, and which of that is page cache that can be freed.
struct GroupFiles {
  const char *limit, *usage, *cache;
};
constexpr GroupFiles files_v2{"memory.max", "memory.current", "inactive_file"};
constexpr GroupFiles files_v1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};

/// Bytes of a group that processes cannot give back.
double used_by_group(const std::filesystem::path& group, const GroupFiles& files) {
  double used = 0, cache = 0, bytes = 0;
  std::ifstream(group / files.usage) >> used;
  std::ifstream statistics(group / "memory.stat");
  for (std::string name; statistics >> name >> bytes;)
    if (name == files.cache) cache = bytes;
  return std::max(0.0, used - cache);
}

/// Least rest of a control group's limit and of its ancestors'. \param root mount point of the controller
double rest_of_groups(const std::filesystem::path& root, std::filesystem::path group, const GroupFiles& files) {
  double least = no_limit;
  while (true) {
    const std::filesystem::path directory = root / group.relative_path();
    std::ifstream file(directory / files.limit);
    double limit = 0;
    if (file >> limit) least = std::min(least, std::max(0.0, limit - used_by_group(directory, files)));
    if (!group.has_relative_path()) return least;  // a limit "max" is not a number
    group = group.parent_path();
  }
}

/// That of this process's control groups, version 1 or 2. A line of the file is "number:controllers:/path".
double rest_of_groups() {
  std::ifstream file("/proc/self/cgroup");
  double least = no_limit;
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::filesystem::path group = line.substr(second + 1);
    if (controllers == ",,") least = std::min(least, rest_of_groups("/sys/fs/cgroup", group, files_v2));
    if (controllers.find(",memory,") != std::string::npos)
      least = std::min(least, rest_of_groups("/sys/fs/cgroup/memory", group, files_v1));
  }
  return least;
}

/// Counters of ViewMemory; global, because the callbacks of Kokkos are plain functions.
struct ViewBytes {
  std::mutex mutex;
  std::map<std::string, double> of_folder;
  double total = 0, peak = 0;
  Kokkos::Tools::Experimental::EventSet before{};  ///< callbacks of a tool
};
ViewBytes& view_bytes() {
  static ViewBytes bytes;
  return bytes;
}

void count(const char* label, double change) {
  const std::string name = label, prefix = "OneBit::";
  if (name.compare(0, prefix.size(), prefix) != 0) return;
  const std::string folder = name.substr(prefix.size(), name.find(':', prefix.size()) - prefix.size());
  ViewBytes& bytes = view_bytes();
  const std::lock_guard<std::mutex> lock(bytes.mutex);
  bytes.of_folder[folder] += change;
  bytes.total += change;
  bytes.peak = std::max(bytes.peak, bytes.total);
}

void allocated(const Kokkos::Tools::SpaceHandle space, const char* label, const void* data, const std::uint64_t size) {
  count(label, static_cast<double>(size));
  if (view_bytes().before.allocate_data) view_bytes().before.allocate_data(space, label, data, size);
}
void freed(const Kokkos::Tools::SpaceHandle space, const char* label, const void* data, const std::uint64_t size) {
  count(label, -static_cast<double>(size));
  if (view_bytes().before.deallocate_data) view_bytes().before.deallocate_data(space, label, data, size);
}

}  // namespace

void check_length(std::size_t length, std::size_t longest) {
  if (length > longest)
    throw InputError("vector",
                     std::to_string(length) + " elements are more than the " + std::to_string(longest) +
                         " that a kernel of Kokkos " + kokkos_version() + " can take on a GPU",
                     "build with Kokkos 4.6 or newer, or use a host backend");
}

double peak_host_memory() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.compare(0, 6, "VmHWM:") == 0) return 1024 * std::stod(line.substr(6));
  return 0;
}

ViewMemory::ViewMemory() {
  using namespace Kokkos::Tools::Experimental;
  ViewBytes& bytes = view_bytes();
  bytes.before = get_callbacks();
  bytes.of_folder.clear();
  bytes.total = bytes.peak = 0;
  set_allocate_data_callback(allocated);
  set_deallocate_data_callback(freed);
}

ViewMemory::~ViewMemory() {
  Kokkos::Tools::Experimental::set_allocate_data_callback(view_bytes().before.allocate_data);
  Kokkos::Tools::Experimental::set_deallocate_data_callback(view_bytes().before.deallocate_data);
}

double ViewMemory::of(const std::string& folder) const {
  const std::lock_guard<std::mutex> lock(view_bytes().mutex);
  const auto found = view_bytes().of_folder.find(folder);
  return found == view_bytes().of_folder.end() ? 0 : found->second;
}

double ViewMemory::peak() const {
  const std::lock_guard<std::mutex> lock(view_bytes().mutex);
  return view_bytes().peak;
}

double available_host_memory() { return std::min(unused_memory(), rest_of_groups()); }

std::string gibibytes(double bytes) {
  char text[64];
  std::snprintf(text, sizeof text, "%.3g GiB", bytes / 0x1p30);
  return text;
}

}  // namespace onebit
