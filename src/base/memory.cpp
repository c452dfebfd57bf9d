/// \file memory.cpp
/// See memory.hpp.

#include "base/memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>

namespace onebit {
namespace {

constexpr double no_limit = std::numeric_limits<double>::infinity();

/// MemAvailable of /proc/meminfo (Linux 3.14): free memory and what the page cache would give back.
double unused_memory() {
  std::ifstream file("/proc/meminfo");
  std::string name, line;
  double kibibytes = 0;
  while (file >> name >> kibibytes && std::getline(file, line))
    if (name == "MemAvailable:") return 1024 * kibibytes;
  return static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

/// Least limit of a control group and those above it. \param root where its controller is mounted
double group_limit(const std::filesystem::path& root, std::filesystem::path group, const char* file_name) {
  double least = no_limit;
  while (true) {
    std::ifstream file(root / group.relative_path() / file_name);
    double limit = 0;
    if (file >> limit) least = std::min(least, limit);  // not a number: "max"
    if (!group.has_relative_path()) return least;
    group = group.parent_path();
  }
}

/// Limit of this process's control groups, of version 1 or 2. Its lines are "number:controllers:/path".
double group_limit() {
  std::ifstream file("/proc/self/cgroup");
  double least = no_limit;
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::filesystem::path group = line.substr(second + 1);
    if (controllers == ",,") least = std::min(least, group_limit("/sys/fs/cgroup", group, "memory.max"));
    if (controllers.find(",memory,") != std::string::npos)
      least = std::min(least, group_limit("/sys/fs/cgroup/memory", group, "memory.limit_in_bytes"));
  }
  return least;
}

}  // namespace

double available_host_memory() { return std::min(unused_memory(), group_limit()); }

std::string gibibytes(double bytes) {
  char text[64];
  std::snprintf(text, sizeof text, "%.3g GiB", bytes / 0x1p30);
  return text;
}

}  // namespace onebit
