#include "app/start/identity.hpp"

#include <cstdint>
#include <fstream>
#include <vector>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "base/system/build_info.hpp"
#include "config/keys.hpp"

namespace onebit::app {
namespace {

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

void check_same_input(const Communicator& world, const config::Input& input) {
  config::Input first, mine = input;
  const std::string text = world.broadcast(config::resolved(input), 0);
  world.collectively([&] {
    first = config::parse(text, "rank 0's input", {});
    const std::vector<config::Section> here = config::keys(mine), there = config::keys(first);
    for (std::size_t section = 0; section < here.size(); ++section)
      for (std::size_t key = 0; key < here[section].keys.size(); ++key) {
        const config::Key& one = here[section].keys[key];
        const std::string value = one.print(), other = there[section].keys[key].print();
        if (value != other)
          throw InputError(input.where(one.path()), one.path() + " is " + value + ", and " + other + " on rank 0",
                           "start all ranks with the same input and the same --set");
      }
  });
}

}  // namespace onebit::app
