/// \file train.cpp
/// `onebit train` on the simulated device or on Serial, without what else the program has, which takes long to compile.
/// Called as `simt_train BACKEND INPUT section.key=value …`.

#include <cstdio>
#include <fstream>
#include <sstream>

#include "base/device/self_check.hpp"
#include "base/error.hpp"
#include "base/mpi.hpp"
#include "base/system/subnormals.hpp"
#include "config/input.hpp"
#include "train/trainer.hpp"

namespace {

using namespace onebit;

template <class Exec>
void train_on(const Communicator& world, const config::Input& input) {
  world.collectively([] { check_kernels(Exec()); });
  train::train(Exec(), input, world);
}

void run(const Communicator& world, const std::string& backend, const std::string& path,
         const std::vector<std::string>& overrides) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  config::Input input;
  world.collectively([&] {
    input = config::parse(text.str(), path, overrides);
    config::check(input, world.size());
  });
  if (backend == BackendName<GpuExec>::value) return train_on<GpuExec>(world, input);
  if (backend == BackendName<Kokkos::Serial>::value) return train_on<Kokkos::Serial>(world, input);
  throw InputError("command line", "there is no backend " + backend, "name simt or serial");
}

}  // namespace

int main(int argc, char** argv) {
  flush_subnormals();
  const MpiSession mpi(argc, argv);
  const Communicator world;
  const KokkosSession kokkos(1, 0);
  flush_subnormals_of_backends();
  try {
    if (argc < 3) throw InputError("command line", "too few arguments", "see the beginning of train.cpp");
    run(world, argv[1], argv[2], {argv + 3, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: rank %d: %s\n", world.rank(), error.what());
    std::fflush(nullptr);
    if (dynamic_cast<const AgreedError*>(&error) == nullptr && world.size() > 1) MPI_Abort(world.get(), 1);
    return static_cast<int>(describe(error).status());
  }
  return 0;
}
