/// \file identity.cpp
/// See identity.hpp.

#include "app/identity.hpp"

#include <link.h>

#include <cstdio>
#include <cstring>

#include "base/build_info.hpp"
#include "base/error.hpp"
#include "config/keys.hpp"

namespace onebit::app {
namespace {

/// The linker's hash of this executable (its build id) in hexadecimal; empty where the linker wrote none.
std::string build_id() {
  std::string id;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* found) {
        const auto aligned = [](std::size_t bytes) { return (bytes + 3) / 4 * 4; };
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr)& header = info->dlpi_phdr[i];
          if (header.p_type != PT_NOTE) continue;
          const char* note = reinterpret_cast<const char*>(info->dlpi_addr + header.p_vaddr);
          const char* const end = note + header.p_memsz;
          while (end - note >= static_cast<std::ptrdiff_t>(sizeof(ElfW(Nhdr)))) {
            ElfW(Nhdr) head;
            std::memcpy(&head, note, sizeof head);
            const char* const name = note + sizeof head;
            const char* const bytes = name + aligned(head.n_namesz);
            note = bytes + aligned(head.n_descsz);
            if (head.n_type != NT_GNU_BUILD_ID || head.n_namesz != 4 || std::memcmp(name, "GNU", 4) != 0) continue;
            for (std::size_t byte = 0; byte < head.n_descsz; ++byte) {
              char digits[3];
              std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(bytes[byte]));
              *static_cast<std::string*>(found) += digits;
            }
          }
        }
        return 1;  // the executable comes first, libraries behind it
      },
      &id);
  return id;
}

/// "rank 3" or "ranks 1, 2, 5"; not more than a few of them.
std::string names(const std::vector<int>& ranks) {
  constexpr std::size_t most = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size() && i < most; ++i) text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  return text + (ranks.size() > most ? ", …" : "");
}

}  // namespace

void check_same_program(const Communicator& world, const std::string& command) {
  const std::string mine = "onebit" + command + " of build " + build_id() + ", version " + build_version + " (" +
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
