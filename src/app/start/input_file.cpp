#include "app/start/input_file.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/error.hpp"
#include "config/checks.hpp"
#include "config/keys.hpp"
#include "io/file.hpp"

namespace onebit::app {
namespace {

/// Reads the input file, or what a pipe gives. Waits no longer than half a minute for a pipe.
std::string read_file(const std::string& path) {
  constexpr std::size_t longest = 1 << 20;
  constexpr int patience_ms = 30000;
  const char* const examples = "check the name and the permissions; examples are in inputs/";
  const Descriptor file(path, O_RDONLY | O_NONBLOCK);
  if (file < 0 && errno == ENOENT)
    throw InputError(path, std::string("the input file does not exist (") + std::strerror(errno) + ")", examples);
  const auto unread = [&] {
    return InputError(path, std::string("the input file cannot be read: ") + std::strerror(errno), examples);
  };
  if (file < 0) throw unread();
  // One byte more than allowed shows that a file is too long, even an endless one.
  std::string text(longest + 1, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    pollfd ready{file, POLLIN, 0};
    if (::poll(&ready, 1, patience_ms) == 0)
      throw InputError(path, "nothing was written into this pipe", "name a YAML file; examples are in inputs/");
    const ssize_t got = ::read(file, &text[size], text.size() - size);
    if (got == 0) break;
    if (got < 0 && errno == EISDIR)
      throw InputError(path, "the input file is a directory", "name a YAML file; examples are in inputs/");
    if (got < 0 && errno != EINTR && errno != EAGAIN) throw unread();
    if (got > 0) size += static_cast<std::size_t>(got);
  }
  text.resize(size);
  if (text.size() > longest)
    throw InputError(path, "the input file is longer than 1 MiB", "name a YAML file; examples are in inputs/");
  return text;
}

/// Refuses ranks whose resolved input differs from rank 0's: --set may differ from rank to rank. Collective.
/// \throws AgreedError that names a rank and the first key that differs
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

}  // namespace

config::Input read_input(const Communicator& world, const std::string& path,
                         const std::vector<std::string>& overrides) {
  const std::string text = world.text_of_root([&] { return read_file(path); });
  config::Input input;
  world.collectively([&] { input = config::parse(text, path, overrides); });
  check_same_input(world, input);
  return input;
}

void check(const Communicator& world, const config::Input& input, int ranks) {
  world.collectively([&] { config::check(input, ranks); });
  if (world.rank() > 0) return;
  for (const std::string& message : config::without_effect(input))
    std::fprintf(stderr, "warning: %s\n", message.c_str());
}

}  // namespace onebit::app
