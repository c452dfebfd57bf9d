/// \file main.cpp
/// `onebit train` and `onebit bench collective` on a simulated network:
/// smpirun … onebit_smpi (train | collective) INPUT [SECTION.KEY=VALUE…]

#include <cstdio>
#include <fstream>
#include <optional>
#include <sstream>

#include "base/error.hpp"
#include "base/kokkos.hpp"
#include "base/mpi.hpp"
#include "bench/bench.hpp"
#include "config/checks.hpp"
#include "config/keys.hpp"
#include "train/trainer.hpp"

namespace onebit {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw InputError(path, "the input file cannot be read", "check the name and the permissions");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void run(const Communicator& world, const std::string& command, const std::string& path,
         const std::vector<std::string>& overrides) {
  const bool trains = command == "train";
  config::Input input;
  world.collectively([&] {
    if (!trains && command != "collective")
      throw InputError("command line", "there is no command '" + command + "'", "give train or collective");
    input = config::parse(text_of(path), path, overrides);
    trains ? config::check(input, world.size()) : config::check_bench(input);
  });
  const KokkosSession kokkos(1, -1);
  const std::optional<FiguresOfMerit> figures =
      trains ? train::train(Kokkos::Serial(), input, world) : bench::collective(Kokkos::Serial(), input, world);
  if (world.rank() == 0 && figures) std::fputs(figures->text().c_str(), stdout);
}

int status_of(const std::vector<std::string>& arguments) {
  const Communicator world;
  try {
    world.collectively([&] {
      if (arguments.size() < 2)
        throw InputError("command line", "it names no command and no input",
                         "give train or collective, and a YAML file");
    });
    run(world, arguments[0], arguments[1], {arguments.begin() + 2, arguments.end()});
  } catch (const AgreedError& error) {
    if (world.rank() == 0) std::fprintf(stderr, "error: %s\n", error.what());
    return static_cast<int>(error.status());
  } catch (const std::exception& error) {
    // The other ranks do not know of the error and may wait for this one.
    const Error described = describe(error);
    std::fprintf(stderr, "error: rank %d: %s\n", world.rank(), described.what());
    std::fflush(nullptr);
    MPI_Abort(world.get(), static_cast<int>(described.status()));
  }
  return 0;
}

}  // namespace
}  // namespace onebit

int main(int argc, char** argv) {
  // SMPI offers MPI_THREAD_SINGLE, which MpiSession refuses. It is enough here: a rank has one thread.
  MPI_Init(&argc, &argv);
  const int status = onebit::status_of({argv + 1, argv + argc});
  MPI_Finalize();
  return status;
}
