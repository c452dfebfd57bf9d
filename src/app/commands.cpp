#include "app/commands.hpp"

#include <cstdio>
#include <limits>
#include <string>

#include "app/answers.hpp"
#include "app/command_line.hpp"
#include "app/start/on_backend.hpp"
#include "bench/bench.hpp"
#include "train/checkpoint/checkpoint.hpp"
#include "train/checkpoint/variance_change.hpp"
#include "train/trainer.hpp"
#include "workload/precision.hpp"
#include "workload/transformer.hpp"

namespace onebit::app {

void CommandLine::add_train() {
  add_measuring_command(m_app, "train", "train; CSV files into run.output", [this](const config::Input& input) {
    check(m_world, input, m_world.size());
    return on_backend(m_world, input, true, [&](const auto& exec) { return train::train(exec, input, m_world); });
  });
  CLI::App& validate = add_input_command(m_app, "validate", "check an input, print it resolved, run nothing",
                                         [this](const config::Input& input) {
                                           check(m_world, input, m_ranks > 0 ? m_ranks : m_world.size());
                                           if (m_ranks > 0) check_start(m_world, input, m_ranks, !m_elsewhere);
                                           if (m_root) std::fputs(config::resolved(input).c_str(), stdout);
                                         });
  CLI::Option* const ranks =
      validate
          .add_option("--ranks", m_ranks,
                      "check also that a run on N ranks could start: its batch, files, memory and output directory")
          ->type_name("N")
          ->check(CLI::Range(1, std::numeric_limits<int>::max()));
  validate.add_flag("--elsewhere", m_elsewhere, "the run takes place on other machines: leave out the memory")
      ->needs(ranks);
}

void CommandLine::add_bench() {
  CLI::App& bench_command = *m_app.add_subcommand("bench", "measure, without training")->require_subcommand(1);
  const auto add = [&](const char* name, const char* meaning, const auto& check, const auto& bench) {
    add_measuring_command(bench_command, name, meaning, [this, check, bench](const config::Input& input) {
      m_world.collectively([&] { check(input); });
      return on_backend(m_world, input, false, [&](const auto& exec) { return bench(exec, input); });
    });
  };
  // Without `config::check`: it takes neither samples nor a model.
  add("collective", "averages over ranks, dense and compressed, checked and timed; collective.csv", config::check_bench,
      [this](const auto& exec, const config::Input& input) { return bench::collective(exec, input, m_world); });
  add(
      "kernels", "each kernel against what this machine can do, checked and timed; kernels.csv",
      [this](const config::Input& input) { config::check(input, m_world.size()); },
      [this](const auto& exec, const config::Input& input) { return bench_kernels(exec, input, m_world); });
  add("layers", "1-bit layers, checked and timed; layers.csv", config::check_output,
      [this](const auto& exec, const config::Input& input) { return bench::layers(exec, input, m_world); });
}

void CommandLine::add_checkpoint() {
  CLI::App& parent = *m_app.add_subcommand("checkpoint", "look at a checkpoint")->require_subcommand(1);
  const auto add = [&](const char* name, const char* meaning, const auto& text) {
    CLI::App* const command = parent.add_subcommand(name, meaning);
    command->add_option("FILE", m_path, "checkpoint (docs/guide/checkpoint.md)")->required();
    command->callback([this, text] { m_world.on_root([&] { std::fputs(text().c_str(), stdout); }); });
    return command;
  };
  add("info", "verify it and print what it holds", [this] { return train::describe_checkpoint(m_path); });
  add("verify", "check that no byte of it has changed", [this] { return first_line(m_path); });
  add("variance", "how far the variance settled between two checkpoints, tensor by tensor",
      [this] { return train::describe_variance_change(m_path, m_later); })
      ->add_option("LATER", m_later, "a later checkpoint of the same run")
      ->required();
}

void CommandLine::add_list() {
  CLI::App* const command = m_app.add_subcommand("list", "what this build has");
  command->add_flag("--input-keys", m_input_keys, "print docs/reference/input.md");
  command->add_option("--output-columns", m_csv_file, "print the page of a CSV file of docs/reference/output");
  command->callback([this] {
    m_world.on_root(
        [this] { std::fputs((m_input_keys ? config::documentation() : list(m_csv_file)).c_str(), stdout); });
  });
}

ExitStatus run_command(const Communicator& world, int argc, char** argv) { return CommandLine(world)(argc, argv); }

}  // namespace onebit::app
