/// \file main.cpp
/// The program: starts MPI, runs a command, prints its error, and ends all ranks with one exit status.

#include <csignal>
#include <cstdio>
#include <optional>

#include "app/commands.hpp"
#include "app/start/launch.hpp"
#include "app/start/threads.hpp"
#include "base/error.hpp"
#include "base/mpi.hpp"
#include "base/system/subnormals.hpp"

int main(int argc, char** argv) {
  using namespace onebit;
  // Before any thread starts: it inherits the mode.
  flush_subnormals();
  app::take_kokkos_variables();
  // A write beyond the limit on file sizes fails then, as on a full disk, and is reported.
  std::signal(SIGXFSZ, SIG_IGN);
  // Before the command line is read, so that every rank calls MPI_Finalize whatever it holds.
  std::optional<MpiSession> mpi;
  if (app::needs_mpi(argc, argv)) mpi.emplace(argc, argv);
  const Communicator world(mpi ? MPI_COMM_WORLD : MPI_COMM_NULL);
  const bool root = world.rank() == 0;
  ExitStatus status = ExitStatus::success;
  try {
    status = app::run_command(world, argc, argv);
  } catch (const AgreedError& error) {
    if (root) std::fprintf(stderr, "error: %s\n", error.what());
    status = error.status();
  } catch (const std::exception& error) {
    // The other ranks do not know of the error and may wait for this one.
    const Error described = describe(error);
    status = described.status();
    std::fprintf(stderr, "error: rank %d: %s\n", world.rank(), described.what());
    std::fflush(nullptr);
    if (world.size() > 1) MPI_Abort(world.get(), static_cast<int>(status));
  }
  // Earlier writes may have failed as well: a buffer that overflowed is gone when the last one is flushed.
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (root && !written && status == ExitStatus::success) {
    std::fprintf(stderr, "error: standard output: writing failed\n  remedy: check where it goes and its free space\n");
    status = ExitStatus::failed_run;
  }
  return static_cast<int>(status);
}
