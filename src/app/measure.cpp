#include "app/measure.hpp"

#include <cstdio>

#include "base/system/host.hpp"
#include "base/timer.hpp"
#include "io/text_file.hpp"

namespace onebit::app {
namespace {

constexpr const char* before_remedy = "\n  remedy: ";

/// The verdict on results that `work` found to be wrong.
FiguresOfMerit rejected(const WrongResult& error) {
  const std::string message = error.what();
  const std::size_t end = message.find(before_remedy);
  FiguresOfMerit figures;
  figures.reject(message.substr(0, end), "");
  return figures;
}

}  // namespace

ExitStatus measure(const Communicator& world, const std::string& command, const std::string& json,
                   const std::function<std::optional<FiguresOfMerit>()>& work) {
  const bool root = world.rank() == 0;
  const std::string date = utc_now();
  const Stopwatch watch;
  const Hosts hosts = hosts_of(world);
  std::optional<TextFile> file;
  world.collectively([&] {
    if (root && !json.empty()) file.emplace(json, "--json");
  });
  // The text comes last: a framework that reads PASSED there finds a complete JSON file.
  const auto report = [&](FiguresOfMerit figures) {
    figures.note("date", date);
    figures.note("hosts", hosts.count);
    figures.note("host_names", hosts.names);
    figures.note("wall_s", watch.seconds());
    world.collectively([&] {
      if (file) file->finish(figures.json(command, world.size()));
      if (root) std::fputs(figures.text().c_str(), stdout);
    });
  };
  std::optional<FiguresOfMerit> figures;
  try {
    figures = work();
  } catch (const WrongResult& error) {
    report(rejected(error));
    throw;
  }
  if (!figures) return ExitStatus::stopped;
  report(*figures);
  const std::string failure = figures->passed() ? "" : figures->verdict() + before_remedy + figures->remedy();
  const std::string rank_0s = world.broadcast(failure, 0);
  if (!rank_0s.empty()) throw AgreedError(ExitStatus::failed_run, "validation: " + rank_0s);
  return ExitStatus::success;
}

}  // namespace onebit::app
