/// \file trainer.cpp
/// See trainer.hpp. The steps are in step_loop.hpp.

#include "train/trainer.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "base/system/stop_signal.hpp"
#include "io/file.hpp"
#include "io/run_lock.hpp"
#include "train/results/messages.hpp"
#include "train/results/output.hpp"
#include "train/results/run_columns.hpp"
#include "train/results/run_figures.hpp"
#include "train/step_loop.hpp"

namespace onebit::train {
namespace {

/// Writes the final state and the results. \returns the figures of the run and the verdict on it
template <class Exec>
FiguresOfMerit finish(const Session<Exec>& session, Run<Exec>& run, const Checkpoints& checkpoints) {
  const config::Input& input = session.input;
  const Communicator& communicator = session.communicator;
  const bool root = communicator.rank() == 0;
  const double my_overruns = static_cast<double>(session.workload->compute_overruns());
  const std::vector<double> all_overruns = communicator.gather(&my_overruns, 1);
  const long overruns = static_cast<long>(*std::max_element(all_overruns.begin(), all_overruns.end()));
  if (root && overruns > 0)
    std::printf(
        "warning: in %ld of %d steps a gradient took longer than workload.compute_time_ms\n"
        "  remedy: raise it, or run fewer ranks on these cores\n",
        overruns, input.train.steps);
  if (!input.run.dump_parameters.empty()) {
    communicator.on_root([&] { keep_earlier(dump_file(input)); });
    write_checkpoint(session.exec, communicator, dump_file(input).string(), run, checkpoints.label());
  }
  const Columns columns = run_columns(session, overruns);
  run.results.finish(columns);
  communicator.on_root([&] { write_picture(input, session.workload->picture(session.exec, run.result())); });
  communicator.on_root([&] {
    keep_earlier(resolved_input(input));
    std::error_code error;
    std::filesystem::rename(partial(resolved_input(input)), resolved_input(input), error);
    if (error) throw unwritable(resolved_input(input).string(), error.value());
  });
  if (root) {
    warn_without_freeze(input, run.last);
    std::printf("%s%s\nresults are in %s\n", run.results.target_summary().c_str(),
                run.results.compression_summary(session.tensors().size()).c_str(), input.run.output.c_str());
  }
  FiguresOfMerit figures = run_figures(columns);
  judge(figures, columns, input, run.results.validated(), communicator.size());
  return figures;
}

template <class Exec>
std::optional<FiguresOfMerit> set_up_and_step(const Exec& exec, const config::Input& input,
                                              const Communicator& communicator, Checkpoints& checkpoints) {
  Session<Exec> session(exec, input, communicator, checkpoints);
  Run<Exec> run = session.run();
  if (checkpoints.restarts()) checkpoints.restore(exec, run);
  if (StepLoop<Exec>(session, run, checkpoints)() == ExitStatus::stopped) return std::nullopt;
  return finish(session, run, checkpoints);
}

}  // namespace

template <class Exec>
std::optional<FiguresOfMerit> train(const Exec& exec, const config::Input& input, const Communicator& communicator) {
  const StopSignal stop_signal;
  const bool root = communicator.rank() == 0;
  communicator.on_root([&] { train::check_output(input); });
  Checkpoints checkpoints(input, communicator);
  communicator.on_root([&] { begin_output(input, checkpoints.restarts()); });
  try {
    return set_up_and_step(exec, input, communicator, checkpoints);
  } catch (const AgreedError& error) {
    // A run that was refused, or stopped in its set-up, leaves nothing.
    if (!root || error.status() == ExitStatus::failed_run) throw;
    std::error_code ignored;
    if (!checkpoints.restarts()) std::filesystem::remove(partial(resolved_input(input)), ignored);
    checkpoints.leave();
    throw;
  }
}

#define ONEBIT_INSTANTIATE(Exec) \
  template std::optional<FiguresOfMerit> train(const Exec&, const config::Input&, const Communicator&);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::train
