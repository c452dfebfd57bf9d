#include "app/commands.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <tuple>

#include "app/identity.hpp"
#include "app/input_file.hpp"
#include "app/measure.hpp"
#include "app/run_files.hpp"
#include "app/threads.hpp"
#include "app/watchdog.hpp"
#include "base/device/gpus.hpp"
#include "base/device/memory.hpp"
#include "base/device/self_check.hpp"
#include "base/kokkos.hpp"
#include "base/names.hpp"
#include "base/system/activity.hpp"
#include "base/system/build_info.hpp"
#include "base/system/huge_pages.hpp"
#include "base/system/launcher.hpp"
#include "base/system/subnormals.hpp"
#include "bench/bench.hpp"
#include "config/checks.hpp"
#include "config/keys.hpp"
#include "data/tokenizer.hpp"
#include "io/hdf5.hpp"
#include "train/checkpoint/checkpoint.hpp"
#include "train/checkpoint/variance_change.hpp"
#include "train/start.hpp"
#include "train/trainer.hpp"
#include "workload/precision.hpp"
#include "workload/transformer.hpp"

namespace onebit::app {
namespace {

std::vector<std::string> backends() {
  std::vector<std::string> names;
#define ONEBIT_NAME(Exec) names.push_back(BackendName<Exec>::value);
  ONEBIT_FOR_EACH_BACKEND(ONEBIT_NAME)
  return names;
}

/// Refuses a backend that this build or this machine lacks.
void check_backend(const config::Input& input) {
  const std::string wanted = to_string(input.run.backend);
  const std::vector<std::string> built = backends();
  if (std::find(built.begin(), built.end(), wanted) == built.end())
    throw InputError(input.where("run.backend"), "backend " + wanted + " was not compiled in",
                     "use one of those that `onebit list` shows, or build with a Kokkos that has it "
                     "(docs/guide/build.md)");
  // A Kokkos with CUDA or HIP does not start without a GPU, even for its host backends.
  if (gpu_count() == 0)
    throw InputError(input.where("run.backend"), "this build needs a GPU and the machine has none",
                     "run where a GPU is visible (nvidia-smi, rocm-smi), or use a build without CUDA and HIP");
}

/// Refuses keys whose run needs a library that this build lacks.
void check_libraries(const config::Input& input) {
  const auto refuse = [&](const std::string& key, const std::string& library, const std::string& otherwise) {
    throw InputError(input.where(key), key + " needs " + library + ", and this build has none",
                     "build OneBit with " + library + " (docs/guide/build.md), or " + otherwise);
  };
  const WorkloadKind kind = input.workload.kind;
  const bool has_text = kind == WorkloadKind::transformer || kind == WorkloadKind::classification;
  if (!data::has_sentencepiece() && has_text && input.data.tokenizer == TokenizerKind::sentencepiece)
    refuse("data.tokenizer", "SentencePiece", "set it to bytes or characters");
  if (has_hdf5()) return;
  const std::string& restart = input.checkpoint.restart;
  const std::tuple<bool, const char*, const char*> keys[] = {
      {kind == WorkloadKind::replay, "replay.file", "choose another workload.kind"},
      {input.checkpoint.every > 0, "checkpoint.every", "set it to 0"},
      {restart != "none" && restart != "auto", "checkpoint.restart", "set it to none"},
      {!input.checkpoint.initialize_from.empty(), "checkpoint.initialize_from", "leave it out"},
      {!input.freeze.from.empty(), "freeze.from", "leave it out"},
      {!input.run.dump_parameters.empty(), "run.dump_parameters", "leave it out"}};
  for (const auto& [needs, key, otherwise] : keys)
    if (needs) refuse(key, "parallel HDF5", otherwise);
}

/// Refuses what a run on so many ranks would refuse when it starts. Collective.
/// \param here whether the run takes place on this machine, whose memory then has to hold it
void check_start(const Communicator& world, const config::Input& input, int ranks, bool here) {
  double memory = std::numeric_limits<double>::infinity();
  if (here && !is_gpu(input.run.backend)) memory = available_host_memory() / ranks;
  world.collectively([&] {
    if (here) check_backend(input);
    check_libraries(input);
    if (world.rank() == 0) train::check_start(input, ranks, memory);
  });
}

/// \param threads gets the number of host threads of this rank
std::unique_ptr<KokkosSession> start_kokkos(const Communicator& world, const config::Input& input, int& threads) {
  const Activity activity("OneBit::app::start_kokkos");
  world.collectively([&] {
    check_backend(input);
    threads = host_threads(input);
  });
  const int gpu = gpu_of_rank(world.local_rank(), gpu_count());
  const std::string shared = sharing_warning(world.local_size(), gpu_count());
  if (world.rank() == 0 && !shared.empty()) std::printf("warning: %s\n", shared.c_str());
  std::unique_ptr<KokkosSession> session;
  world.collectively([&] {
    try {
      session = std::make_unique<KokkosSession>(threads, gpu);
    } catch (const std::exception& error) {
      const std::string text = error.what();
      throw InputError("Kokkos", text.substr(0, text.find('\n')),
                       "correct or unset the variable of the environment (KOKKOS_…) that this names");
    }
  });
  return session;
}

/// Calls `work` with an instance of the backend that the input names.
template <class Work>
std::optional<FiguresOfMerit> dispatch(const Communicator& world, const config::Input& input, const Work& work) {
  std::optional<FiguresOfMerit> figures;
  int threads = 1;
  const std::unique_ptr<KokkosSession> kokkos = start_kokkos(world, input, threads);
  flush_subnormals_of_backends();
  use_huge_pages();
  if (is_gpu(input.run.backend)) threads = 1;
  report_threads(world, threads);
#define ONEBIT_DISPATCH(Exec)                                     \
  if (to_string(input.run.backend) == BackendName<Exec>::value) { \
    world.collectively([] { check_kernels(Exec()); });            \
    figures = work(Exec());                                       \
  }
  ONEBIT_FOR_EACH_BACKEND(ONEBIT_DISPATCH)
  if (figures) {
    figures->note("backend", to_string(input.run.backend));
    figures->note("threads_per_rank", threads);
  }
  return figures;
}

/// Makes and locks the directories that rank 0 writes into. Collective.
std::unique_ptr<RunLocks> lock_output(const Communicator& world, const config::Input& input, bool trains) {
  std::unique_ptr<RunLocks> locks;
  world.collectively([&] {
    if (world.rank() == 0) locks = std::make_unique<RunLocks>(input, trains);
  });
  return locks;
}

/// Locks the output, starts the watchdog and Kokkos, and calls `work` with an instance of the backend that the input
/// names. Collective. \returns what `work` does
template <class Work>
std::optional<FiguresOfMerit> on_backend(const Communicator& world, const config::Input& input, bool trains,
                                         const Work& work) {
  const std::unique_ptr<RunLocks> locks = lock_output(world, input, trains);
  const Watchdog watchdog(world, input);
  std::optional<FiguresOfMerit> figures;
  try {
    figures = dispatch(world, input, work);
  } catch (const AgreedError& error) {
    // The file is a record of why a run failed, and this one has not begun.
    if (error.status() != ExitStatus::failed_run) watchdog.remove_file();
    throw;
  }
  watchdog.remove_file();
  return figures;
}

/// Times the kernels in the precision that `model.precision: auto` takes here, and with the tokeniser's vocabulary.
/// Collective.
template <class Exec>
FiguresOfMerit bench_kernels(const Exec& exec, config::Input input, const Communicator& world) {
  input.model.precision = workload::choose_precision(exec, input, world).precision;
  world.collectively([&] { input.model.vocabulary = workload::vocabulary(input); });
  return bench::kernels(exec, input, world);
}

/// Rank 0 prints a text. Collective.
void print_text(const Communicator& world, const std::function<std::string()>& text) {
  world.collectively([&] {
    if (world.rank() == 0) std::fputs(text().c_str(), stdout);
  });
}

/// Verifies a checkpoint. \returns the first line of its description
std::string first_line(const std::string& path) {
  const std::string description = train::describe_checkpoint(path);
  return description.substr(0, description.find('\n') + 1);
}

template <class Names>
void print(const char* title, const Names& names) {
  std::printf("%s:", title);
  for (const auto& name : names) std::printf(" %s", std::string(name).c_str());
  std::printf("\n");
}

/// `onebit list`: what this build has.
void list() {
  print("backends", backends());
  print("algorithms", config::algorithm_names());
  print("workloads", names(WorkloadKind{}));
  print("compressors", names(CompressorKind{}));
  std::printf("%s", bench::features().c_str());
  std::printf("libraries:%s%s\n", data::has_sentencepiece() ? " SentencePiece" : "", has_hdf5() ? " HDF5" : "");
}

/// " bench collective": the subcommands that were given.
std::string command_of(const CLI::App& app) {
  std::string words;
  for (const CLI::App* const command : app.get_subcommands()) words += " " + command->get_name() + command_of(*command);
  return words;
}

/// Refuses a process that MPI does not connect with the others which its launcher started, where the command writes
/// files: each process would write the same ones. Elsewhere a warning says why the output comes several times.
/// \param command the first subcommand
void check_launch_of(const Communicator& world, const std::string& command) {
  const bool writes = command == "train" || command == "bench";
  if (writes) return world.collectively(check_launch);
  if (const LaunchFault fault = launch_fault())
    std::fprintf(stderr, "warning: %s: %s\n  remedy: %s\n", fault.variable.c_str(), fault.what.c_str(),
                 fault.remedy.c_str());
}

/// The subcommands with their options. Their callbacks do the work, on all ranks together.
class CommandLine {
public:
  explicit CommandLine(const Communicator& world)
      : m_world(world),
        m_root(world.rank() == 0),
        m_app("OneBit trains a transformer data-parallel over MPI with 1-bit Adam, and measures what that buys.") {
    m_app.require_subcommand(1);
    m_app.footer(
        "Exit status: 0 success; 1 the run failed, or its results are wrong; 2 bad input, nothing was run; 75 a "
        "signal\n"
        "stopped a training, and a checkpoint from which the same command goes on is written.");
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
    command.add_option("--json", m_json, "write the figures of merit into this file, too (docs/reference/output.md)");
  }

  void add_train() {
    add_measuring_command(m_app, "train", "train; CSV files into run.output", [this](const config::Input& input) {
      check(m_world, input, m_world.size());
      m_world.collectively([&] { check_libraries(input); });
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

  void add_bench() {
    CLI::App& bench_command = *m_app.add_subcommand("bench", "measure, without training")->require_subcommand(1);
    // Without `check`: it takes neither samples nor a model.
    add_measuring_command(
        bench_command, "collective", "averages over ranks, dense and compressed, checked and timed; collective.csv",
        [this](const config::Input& input) {
          m_world.collectively([&] { config::check_bench(input); });
          return on_backend(m_world, input, false,
                            [&](const auto& exec) { return bench::collective(exec, input, m_world); });
        });
    add_measuring_command(bench_command, "kernels",
                          "each kernel against what this machine can do, checked and timed; kernels.csv",
                          [this](const config::Input& input) {
                            m_world.collectively([&] { config::check(input, m_world.size()); });
                            return on_backend(m_world, input, false,
                                              [&](const auto& exec) { return bench_kernels(exec, input, m_world); });
                          });
    add_measuring_command(bench_command, "layers", "1-bit layers, checked and timed; layers.csv",
                          [this](const config::Input& input) {
                            m_world.collectively([&] { config::check_output(input); });
                            return on_backend(m_world, input, false,
                                              [&](const auto& exec) { return bench::layers(exec, input, m_world); });
                          });
  }

  void add_checkpoint() {
    CLI::App& parent = *m_app.add_subcommand("checkpoint", "look at a checkpoint")->require_subcommand(1);
    const auto add = [&](const char* name, const char* meaning, const auto& text) {
      CLI::App* const command = parent.add_subcommand(name, meaning);
      command->add_option("FILE", m_path, "checkpoint (docs/guide/checkpoint.md)")->required();
      command->callback([this, text] { print_text(m_world, text); });
      return command;
    };
    add("info", "verify it and print what it holds", [this] { return train::describe_checkpoint(m_path); });
    add("verify", "check that no byte of it has changed", [this] { return first_line(m_path); });
    add("variance", "how far the variance settled between two checkpoints, tensor by tensor",
        [this] { return train::describe_variance_change(m_path, m_later); })
        ->add_option("LATER", m_later, "a later checkpoint of the same run")
        ->required();
  }

  void add_list() {
    CLI::App* const command = m_app.add_subcommand("list", "what this build has");
    command->add_flag("--input-keys", m_input_keys, "print docs/reference/input.md");
    command->callback([this] {
      if (m_root && m_input_keys) std::fputs(config::documentation().c_str(), stdout);
      if (m_root && !m_input_keys) list();
    });
  }

  const Communicator& m_world;
  const bool m_root;
  ExitStatus m_status = ExitStatus::success;
  // Values of arguments.
  std::string m_path, m_later, m_json;
  std::vector<std::string> m_overrides;
  bool m_input_keys = false, m_elsewhere = false;
  int m_ranks = 0;  ///< of `validate`; 0 where it is not given
  CLI::App m_app;
};

}  // namespace

ExitStatus run_command(const Communicator& world, int argc, char** argv) { return CommandLine(world)(argc, argv); }

}  // namespace onebit::app
