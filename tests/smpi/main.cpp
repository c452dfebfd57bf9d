/// \file main.cpp
/// `onebit bench collective` on a simulated network: smpirun … onebit_smpi INPUT [SECTION.KEY=VALUE…]

#include <cstdio>
#include <fstream>
#include <sstream>

#include "base/error.hpp"
#include "base/kokkos.hpp"
#include "base/mpi.hpp"
#include "bench/bench.hpp"
#include "config/checks.hpp"
#include "config/keys.hpp"

namespace onebit {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw InputError(path, "the input file cannot be read", "check the name and the permissions");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void run(const Communicator& world, const std::vector<std::string>& arguments) {
  const std::vector<std::string> overrides(arguments.begin() + 1, arguments.end());
  config::Input input;
  world.collectively([&] {
    input = config::parse(text_of(arguments.front()), arguments.front(), overrides);
    config::check_bench(input);
  });
  const KokkosSession kokkos(1, -1);
  const FiguresOfMerit figures = bench::collective(Kokkos::Serial(), input, world);
  if (world.rank() == 0) std::fputs(figures.text().c_str(), stdout);
}

}  // namespace

int status_of(const std::vector<std::string>& arguments) {
  const Communicator world;
  try {
    if (arguments.empty()) throw InputError("command line", "it names no input", "give a YAML file as the first word");
    run(world, arguments);
  } catch (const Error& error) {
    if (world.rank() == 0) std::fprintf(stderr, "error: %s\n", error.what());
    return static_cast<int>(error.status());
  }
  return 0;
}

}  // namespace onebit

int main(int argc, char** argv) {
  // SMPI offers MPI_THREAD_SINGLE, which MpiSession refuses. It is enough here: a rank has one thread.
  MPI_Init(&argc, &argv);
  const int status = onebit::status_of({argv + 1, argv + argc});
  MPI_Finalize();
  return status;
}
