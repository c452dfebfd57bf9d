#pragma once
/// \file on_backend.hpp
/// From an input to an instance of the backend that it names.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/start/run_files.hpp"
#include "app/start/threads.hpp"
#include "app/watchdog.hpp"
#include "base/device/self_check.hpp"
#include "base/kokkos.hpp"
#include "base/mpi.hpp"
#include "base/system/huge_pages.hpp"
#include "base/system/subnormals.hpp"
#include "config/input.hpp"
#include "io/figures.hpp"

namespace onebit::app {

/// The backends of this build.
std::vector<std::string> backends();

/// Refuses what a run on so many ranks would refuse when it starts, before it waits for its turn in a queue.
/// Collective. \param here whether the run takes place on this machine, whose memory then has to hold it
void check_start(const Communicator& world, const config::Input& input, int ranks, bool here);

/// Starts Kokkos on this rank's GPU, if there is one. Collective. \param threads gets the host threads of this rank
/// \throws InputError for a backend that this build or this machine lacks
std::unique_ptr<KokkosSession> start_kokkos(const Communicator& world, const config::Input& input, int& threads);

/// Makes and locks the directories that rank 0 writes into. Collective.
std::unique_ptr<RunLocks> lock_output(const Communicator& world, const config::Input& input, bool trains);

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

}  // namespace onebit::app
