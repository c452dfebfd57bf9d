#pragma once
/// \file command_line.hpp
/// The command line: what its commands have in common, and what a wrong one ends with. commands.cpp has the commands.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "app/start/input_file.hpp"
#include "app/start/launch.hpp"
#include "app/start/run_files.hpp"
#include "base/names.hpp"
#include "base/system/build_info.hpp"
#include "base/system/host.hpp"
#include "base/timer.hpp"
#include "config/checks.hpp"
#include "config/keys.hpp"
#include "io/figures.hpp"
#include "io/text_file.hpp"

namespace onebit::app {

/// " bench collective": the subcommands that were given.
inline std::string command_of(const CLI::App& app) {
  std::string words;
  for (const CLI::App* const command : app.get_subcommands()) words += " " + command->get_name() + command_of(*command);
  return words;
}

/// The commands of the program. Their callbacks do the work, on all ranks together.
class CommandLine {
public:
  explicit CommandLine(const Communicator& world)
      : m_world(world),
        m_root(world.rank() == 0),
        m_app("OneBit trains a transformer data-parallel over MPI with 1-bit Adam, and measures what that buys.") {
    m_app.require_subcommand(1);
    m_app.footer(
        "Exit status: 0 success; 1 the run failed, or its results are wrong; 2 bad input, nothing was run; 75 a "
        "signal\nstopped a training, and a checkpoint from which the same command goes on is written.");
    m_app.set_version_flag("--version", std::string("onebit ") + build_version + " (" + build_git + ")");
    // Called before the callback of the subcommand.
    m_app.parse_complete_callback([this] {
      check_same_program(m_world, command_of(m_app));
      check_launch_of(m_world, m_app.get_subcommands().front()->get_name());
    });
    add_train();
    add_bench();
    add_checkpoint();
    add_list();
  }
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  /// Runs the subcommand that the arguments name.
  ExitStatus operator()(int argc, char** argv) {
    try {
      refuse_unknown_command(argc, argv);
      m_app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      const bool is_help = error.get_exit_code() == 0;  // or --version
      check_same_program(m_world, is_help ? " --help" : " with a wrong command line");
      if (!is_help)
        throw AgreedError(ExitStatus::bad_input,
                          std::string("command line: ") + error.what() + "\n  remedy: " + remedy_for(error));
      if (m_root) m_app.exit(error);
    }
    return m_status;
  }

private:
  void add_train();
  void add_bench();
  void add_checkpoint();
  void add_list();

  using Work = std::function<void(const config::Input&)>;
  using Measurement = std::function<std::optional<FiguresOfMerit>(const config::Input&)>;

  CLI::App& add_input_command(CLI::App& parent, const char* name, const char* meaning, const Work& work) {
    CLI::App& command = *parent.add_subcommand(name, meaning);
    command.add_option("INPUT", m_path, "YAML file (docs/reference/input.md)")->required();
    command.add_option("--set", m_overrides, "override a key; give it once for each key")
        ->type_name("SECTION.KEY=VALUE")
        ->allow_extra_args(false)
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    command.callback([this, work] { work(read_input(m_world, m_path, m_overrides)); });
    return command;
  }

  /// A command that ends with figures of merit.
  void add_measuring_command(CLI::App& parent, const char* name, const char* meaning, const Measurement& work) {
    CLI::App& command = add_input_command(parent, name, meaning, [this, work](const config::Input& input) {
      const std::string words = command_of(m_app).substr(1);
      m_world.collectively([&] {
        config::path_type().read({m_json, "command line", "--json"});
        if (m_root) check_files(input, words, m_path, m_json);
      });
      measure(words, [&] { return work(input); });
    });
    command.add_option("--json", m_json,
                       "write the figures of merit into this file, too (docs/reference/output/figures_of_merit.md)");
  }

  /// Measures, prints rank 0's figures and verdict, which count, and writes them into the file of --json. Collective.
  /// \param words of the command, e.g. "bench kernels"
  /// \param work  returns nothing if a signal stopped it: it has no figures then
  /// \throws AgreedError when the results are wrong, after both, or when `work` fails or a file cannot be written
  void measure(const std::string& words, const std::function<std::optional<FiguresOfMerit>()>& work) {
    const std::string date = utc_now(), before_remedy = "\n  remedy: ";
    const Stopwatch watch;
    const Hosts hosts = hosts_of(m_world);
    std::optional<TextFile> file;
    m_world.collectively([&] {
      if (m_root && !m_json.empty()) file.emplace(m_json, "--json");
    });
    // The text comes last: a framework that reads PASSED there finds a complete JSON file.
    const auto report = [&](FiguresOfMerit figures) {
      figures.note("date", date);
      figures.note("hosts", hosts.count);
      figures.note("host_names", hosts.names);
      figures.note("wall_s", watch.seconds());
      m_world.collectively([&] {
        if (file) file->finish(figures.json(words, m_world.size()));
        if (m_root) std::fputs(figures.text().c_str(), stdout);
      });
    };
    std::optional<FiguresOfMerit> figures;
    try {
      figures = work();
    } catch (const WrongResult& error) {
      const std::string message = error.what();
      FiguresOfMerit rejected;
      rejected.reject(message.substr(0, message.find(before_remedy)), "");
      report(rejected);
      throw;
    }
    m_status = figures ? ExitStatus::success : ExitStatus::stopped;
    if (!figures) return;
    report(*figures);
    const std::string failure = figures->passed() ? "" : figures->verdict() + before_remedy + figures->remedy();
    const std::string rank_0s = m_world.broadcast(failure, 0);
    if (!rank_0s.empty()) throw AgreedError(ExitStatus::failed_run, "validation: " + rank_0s);
  }

  /// \throws AgreedError for a word that should be a command, and is none
  void refuse_unknown_command(int argc, char** argv) const {
    const CLI::App* at = &m_app;
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      std::vector<std::string> known;
      for (const CLI::App* const command : at->get_subcommands({})) known.push_back(command->get_name());
      if (known.empty() || word.empty() || word.front() == '-') return;
      if (std::find(known.begin(), known.end(), word) == known.end()) {
        check_same_program(m_world, " with a wrong command line");
        const std::string remedy = word == "predict" ? "run scripts/predict.py INPUT, which predicts now"
                                                     : config::remedy_for_unknown(meant(word, known), known);
        throw AgreedError(ExitStatus::bad_input,
                          "command line: unknown command '" + excerpt(word) + "'\n  remedy: " + remedy);
      }
      at = at->get_subcommand(word);
    }
  }

  static std::string remedy_for(const CLI::ParseError& error) {
    const std::string message = error.what();
    const bool is_second_value = message.find("not expected") != std::string::npos &&
                                 message.find('=') != std::string::npos && message.find("--") == std::string::npos;
    return is_second_value ? "write --set in front of each key: --set a.b=1 --set c.d=2"
                           : "see onebit --help, or --help behind a command";
  }

  const Communicator& m_world;
  const bool m_root;
  ExitStatus m_status = ExitStatus::success;
  // Values of arguments.
  std::string m_path, m_json, m_later, m_csv_file;  ///< m_path: INPUT or FILE
  std::vector<std::string> m_overrides;
  bool m_input_keys = false, m_elsewhere = false;
  int m_ranks = 0;  ///< of `validate`; 0 where it is not given
  CLI::App m_app;
};

}  // namespace onebit::app
