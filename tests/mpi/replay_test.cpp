/// \file replay_test.cpp
/// Whole runs of the workload `replay` with every algorithm: input, trainer, and the final state that
/// `run.dump_parameters` leaves, against the algorithms' plain references.

#include <gtest/gtest.h>
#include <hdf5.h>
#include <unistd.h>

#include <filesystem>

#include "../optim_reference.hpp"
#include "../support.hpp"
#include "base/mpi.hpp"
#include "io/hdf5.hpp"
#include "optim/algorithm.hpp"
#include "train/trainer.hpp"

namespace onebit {
namespace {

using test::Values;

constexpr hsize_t steps = 50, parameters = 203;

/// Writes a dataset of floats, of any rank.
void write(hid_t file, const char* name, const std::vector<hsize_t>& extents, const std::vector<float>& data) {
  const hid_t space = H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr);
  const hid_t set = H5Dcreate2(file, name, H5T_IEEE_F32LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  EXPECT_GE(H5Dwrite(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, data.data()), 0);
  H5Dclose(set);
  H5Sclose(space);
}

void write_replay(const std::string& path, int ranks, std::int64_t seed) {
  std::vector<float> gradients;
  for (int step = 1; step <= static_cast<int>(steps); ++step)
    for (const Values& g : test::random_gradients(parameters, ranks, step, seed))
      gradients.insert(gradients.end(), g.begin(), g.end());
  const Values initial = test::initial_parameters(parameters);
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  write(file, "gradients", {steps, static_cast<hsize_t>(ranks), parameters}, gradients);
  write(file, "initial", {parameters}, {initial.begin(), initial.end()});
  H5Fclose(file);
}

template <class Exec>
class Replay : public ::testing::Test {};
TYPED_TEST_SUITE(Replay, test::Backends, test::BackendNames);

TYPED_TEST(Replay, every_algorithm_ends_where_its_reference_does) {
  const Communicator world;
  const std::filesystem::path directory = world.broadcast(
      (std::filesystem::temp_directory_path() / ("onebit_replay_test_" + std::to_string(::getpid()))).string(), 0);
  if (world.rank() == 0) std::filesystem::create_directories(directory);
  const std::string text = "run: {output: " + directory.string() + ", dump_parameters: state.h5}\n" +
                           "workload: {kind: replay}\n"
                           "train: {steps: 50, batch: 12}\n"
                           "optimizer: {lr: 0.01, beta2: 0.99, weight_decay: 0.05, clip: 1.0, variance_bits: 3}\n"
                           "schedule: {warmup_steps: 5, decay: linear}\n"
                           "freeze: {step: 20}\n"
                           "compression: {group: chunk}\n";
  for (const auto& [name, reference_step] : test::references()) {
    SCOPED_TRACE(name);
    TensorTable tensors;
    tensors.add("parameters", {parameters}, true);
    // A file of its own, as another rank may still read the last one.
    const std::string file = (directory / (name + ".h5")).string();
    const std::vector<std::string> keys = {"optimizer.algorithm=" + name, "replay.file=" + file};
    const config::Input input = test::with_clear_decisions(config::parse(text, "replay_test", keys), tensors,
                                                           world.size(), {}, optim::learning_rate);
    if (world.rank() == 0) write_replay(file, world.size(), input.run.seed);
    world.barrier();
    train::train(TypeParam(), input, world);

    test::SimulatedRanks reference(input, tensors, world.size(), test::initial_parameters(parameters));
    for (int t = 1; t <= static_cast<int>(steps); ++t)
      reference_step(reference, test::random_gradients(parameters, world.size(), t, input.run.seed), t,
                     optim::learning_rate(input, t));
    if (world.rank() > 0) continue;
    const ArrayReader state((directory / "state.h5").string());
    const auto expect = [&](const char* dataset, const Values& expected) {
      std::vector<float> values(parameters);
      if (state.shape(dataset).size() == 1)
        state.read(dataset, {0}, {parameters}, values.data());
      else  // rank 0's, where the ranks' differ
        state.read(dataset, {0, 0}, {1, parameters}, values.data());
      EXPECT_LE(test::relative_difference(values, expected), 1e-6) << dataset;
    };
    expect("parameters", reference.x[0]);
    const bool has_momentum = name != "sgd" && name != "double_squeeze" && name != "local_sgd";
    const bool has_variance = name.find("adam") != std::string::npos || name == "diloco";
    // Also after the last step.
    const bool differ = name == "signum" || name == "distributed_lion" || name == "diloco" ||
                        name == "efficient_adam" || name == "onebit_muon";
    EXPECT_EQ(state.has("momentum"), has_momentum);
    EXPECT_EQ(state.has("variance"), has_variance);
    if (has_momentum) expect("momentum", differ ? reference.own_m[0] : reference.m);
    if (name.find("muon") != std::string::npos) expect("table_variance", reference.v);
    if (has_variance) expect("variance", differ ? reference.own_v[0] : reference.v);
  }
  world.barrier();
  if (world.rank() == 0) std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace onebit
