#pragma once
/// \file command_line.hpp
/// Commands with an input file and overrides, and what a wrong command line ends with. commands.cpp has the commands.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "app/measure.hpp"
#include "app/start/identity.hpp"
#include "app/start/input_file.hpp"
#include "app/start/launch.hpp"
#include "app/start/run_files.hpp"
#include "base/names.hpp"
#include "base/system/build_info.hpp"
#include "config/checks.hpp"
#include "config/keys.hpp"

namespace onebit::app {

/// " bench collective": the subcommands that were given.
inline std::string command_of(const CLI::App& app) {
  std::string words;
  for (const CLI::App* const command : app.get_subcommands()) words += " " + command->get_name() + command_of(*command);
  return words;
}

/// The part of a command line that all commands share. Their callbacks do the work, on all ranks together.
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

protected:
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
      m_status = measure(m_world, words, m_json, [&] { return work(input); });
    });
    command.add_option("--json", m_json,
                       "write the figures of merit into this file, too (docs/reference/output/figures_of_merit.md)");
  }

  const Communicator& world() const { return m_world; }
  bool is_root() const { return m_root; }
  CLI::App& app() { return m_app; }
  std::string& path() { return m_path; }  ///< INPUT or FILE

private:
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
  std::string m_path, m_json;
  std::vector<std::string> m_overrides;
  CLI::App m_app;
};

}  // namespace onebit::app
