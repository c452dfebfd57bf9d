#include "app/start/launch.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <vector>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "base/system/build_info.hpp"
#include "base/system/launcher.hpp"

namespace onebit::app {
namespace {

/// Whether a command measures, and writes files.
bool measures(const std::string& command) { return command == "train" || command == "bench"; }

/// Hash of the executable file of this process, in hexadecimal.
std::string program_hash() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  std::vector<std::uint64_t> words(std::size_t{1} << 16);
  std::uint64_t hash = 0, place = 0;
  while (file) {
    words.assign(words.size(), 0);
    file.read(reinterpret_cast<char*>(words.data()), static_cast<std::streamsize>(8 * words.size()));
    for (const std::uint64_t word : words) hash += hash_term(word, place++);
  }
  return hex(hash);
}

/// "rank 3" or "ranks 1, 2, 5"; a few of them at most.
std::string names(const std::vector<int>& ranks) {
  constexpr std::size_t most = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size() && i < most; ++i) text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  return text + (ranks.size() > most ? ", …" : "");
}

}  // namespace

bool needs_mpi(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const auto holds = [&](const char* word) { return std::find(words.begin(), words.end(), word) != words.end(); };
  return has_launcher() || (!words.empty() && measures(words.front()) && !holds("--help") && !holds("-h"));
}

void check_same_program(const Communicator& world, const std::string& command) {
  const std::string mine = "onebit" + command + " of build " + program_hash() + ", version " + build_version + " (" +
                           build_git + ", " + build_compiler + ")";
  const std::string first = world.broadcast(mine, 0);
  const double differs = mine != first;
  const std::vector<double> all = world.gather(&differs, 1);
  std::vector<int> others;
  for (int rank = 0; rank < world.size(); ++rank)
    if (all[rank] != 0) others.push_back(rank);
  if (others.empty()) return;
  const std::string theirs = world.broadcast(mine, others.front());
  throw AgreedError(ExitStatus::bad_input, "program: not the same one as rank 0's on " + names(others) + " of " +
                                               std::to_string(world.size()) + ":\n    rank 0: " + first +
                                               "\n    rank " + std::to_string(others.front()) + ": " + theirs +
                                               "\n  remedy: start all ranks with the same command, and copy the same "
                                               "executable to all hosts");
}

void check_launch_of(const Communicator& world, const std::string& command) {
  if (!has_launcher()) return;
  if (measures(command)) return world.collectively(check_launch);
  if (const LaunchFault fault = launch_fault())
    std::fprintf(stderr, "warning: %s: %s\n  remedy: %s\n", fault.variable.c_str(), fault.what.c_str(),
                 fault.remedy.c_str());
}

}  // namespace onebit::app
