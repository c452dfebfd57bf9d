#include "app/start/launch.hpp"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "base/system/launcher.hpp"

namespace onebit::app {
namespace {

/// Whether a command measures, and writes files.
bool measures(const std::string& command) { return command == "train" || command == "bench"; }

}  // namespace

bool needs_mpi(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const auto holds = [&](const char* word) { return std::find(words.begin(), words.end(), word) != words.end(); };
  return has_launcher() || (!words.empty() && measures(words.front()) && !holds("--help") && !holds("-h"));
}

void check_launch_of(const Communicator& world, const std::string& command) {
  if (!has_launcher()) return;
  if (measures(command)) return world.collectively(check_launch);
  if (const LaunchFault fault = launch_fault())
    std::fprintf(stderr, "warning: %s: %s\n  remedy: %s\n", fault.variable.c_str(), fault.what.c_str(),
                 fault.remedy.c_str());
}

}  // namespace onebit::app
