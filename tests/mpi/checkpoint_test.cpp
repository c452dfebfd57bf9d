/// \file checkpoint_test.cpp
/// Restarts: bit-identical at the same number of ranks in every phase of every algorithm, and with the means over ranks
/// kept at another number. Damaged, hostile and foreign checkpoints are refused. Whole runs through the trainer.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <sstream>
#include <tuple>

#include "../skips.hpp"
#include "../support.hpp"
#include "base/error.hpp"
#include "comm/transport/combined/hierarchical.hpp"
#include "csv_line.hpp"
#include "io/hdf5.hpp"
#include "io/sealed/seal.hpp"
#include "io/sealed/write_sealed.hpp"
#include "scratch.hpp"
#include "train/checkpoint/checkpoint.hpp"
#include "train/checkpoint/initial_parameters.hpp"
#include "train/checkpoint/variance_change.hpp"
#include "train/trainer.hpp"

namespace onebit {
namespace {

namespace fs = std::filesystem;
using test::Scratch;
using Columns = std::map<std::string, std::string>;

/// One backend is enough, as all are read from and written to host memory by the same code: the build's last one, which
/// has a memory of its own where any has.
template <class Types>
struct LastOf;
template <class... Exec>
struct LastOf<::testing::Types<Exec...>> {
  using type = std::tuple_element_t<sizeof...(Exec) - 1, std::tuple<Exec...>>;
};
using Exec = LastOf<test::Backends>::type;

constexpr long parameters = 203;
constexpr int all_steps = 24;

/// An input in which all phases come within `all_steps`: T_w and F at 8, averages every 3 steps. η is large for
/// adam_nbit_variance, which rounds small elements of the variance to 0.
config::Input make_input(const std::string& output, const std::vector<std::string>& keys) {
  const std::string text =
      "workload: {kind: quadratic}\n"
      "quadratic: {dimension: 203, noise: 0.5}\n"
      "train: {steps: 24, batch: 12, validate_every: 4}\n"
      "optimizer: {lr: 0.01, beta2: 0.8, epsilon: 0.1, weight_decay: 0.01, local_steps: 3}\n"
      "schedule: {warmup_steps: 4, decay: cosine}\n"
      "freeze: {step: 8}\n"
      "zero_one: {variance_freeze_step: 8, variance_update_scaler: 2, local_step_scaler: 4, local_step_clipper: 4}\n"
      "compression: {group: 64}\n"
      "run: {progress_interval_s: 0, check_replicas_every: 1}\n";
  std::vector<std::string> overrides = {"run.output=" + output};
  overrides.insert(overrides.end(), keys.begin(), keys.end());
  return config::parse(text, "checkpoint_test", overrides);
}

/// Rows of a CSV file without the columns of times, dates and memory, and those that count restarts and checkpoints.
std::vector<Columns> rows(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  const std::vector<std::string> names = test::cells_of(line);
  std::vector<Columns> all;
  while (std::getline(file, line)) {
    const std::vector<std::string> values = test::cells_of(line);
    all.emplace_back();
    for (std::size_t i = 0; i < names.size(); ++i) {
      const std::string& name = names[i];
      const bool is_time = name.size() > 2 && name.compare(name.size() - 2, 2, "_s") == 0;
      const bool is_memory = name.compare(0, 5, "peak_") == 0 || name.compare(0, 10, "predicted_") == 0 ||
                             name == "optimizer_bytes_per_parameter";
      if (!is_time && !is_memory && name != "date" && name != "tokens_per_s" && name != "restarts" &&
          name != "checkpoints")
        all.back()[name] = values.at(i);
    }
  }
  return all;
}

std::string checkpoint_of(int step) {
  char name[64];
  std::snprintf(name, sizeof name, "/checkpoints/step_%08d.h5", step);
  return name;
}

/// The message with which a run is refused with status 2; empty when it is not.
std::string refusal(const config::Input& input, const Communicator& world) {
  try {
    train::train(Exec(), input, world);
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), ExitStatus::bad_input) << error.what();
    return error.what();
  }
  return "";
}

std::string read_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}
void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

/// The first n ranks of the world; null on the others.
std::unique_ptr<Communicator> first_ranks(const Communicator& world, int n) {
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(world.get(), world.rank() < n ? 0 : MPI_UNDEFINED, 0, &part);
  if (part == MPI_COMM_NULL) return nullptr;
  auto communicator = std::make_unique<Communicator>(part);
  MPI_Comm_free(&part);
  return communicator;
}

std::vector<float> row(const ArrayReader& file, const std::string& dataset, std::size_t index) {
  std::vector<float> values(file.shape(dataset).back());
  if (file.shape(dataset).size() == 1)
    file.read(dataset, {0}, {values.size()}, values.data());
  else
    file.read(dataset, {index, 0}, {1, values.size()}, values.data());
  return values;
}

TEST(Checkpoint, restart_is_bit_identical_in_every_phase_of_every_algorithm) {
  const Communicator world;
  const Scratch scratch;
  for (const std::string& algorithm : config::algorithm_names()) {
    const std::string straight = scratch / (algorithm + "_straight");
    train::train(Exec(),
                 make_input(straight, {"optimizer.algorithm=" + algorithm, "checkpoint.every=5", "checkpoint.keep=9"}),
                 world);
    const std::vector<Columns> run = rows(straight + "/run.csv"), steps = rows(straight + "/steps.csv");
    ASSERT_EQ(steps.size(), static_cast<std::size_t>(all_steps));
    for (int step = 5; step < all_steps; step += 5) {
      SCOPED_TRACE(algorithm + " from step " + std::to_string(step));
      const std::string again = scratch / (algorithm + "_" + std::to_string(step));
      train::train(Exec(),
                   make_input(again, {"optimizer.algorithm=" + algorithm,
                                      "checkpoint.restart=" + straight + checkpoint_of(step)}),
                   world);
      EXPECT_EQ(rows(again + "/run.csv"), run);
      EXPECT_EQ(rows(again + "/steps.csv"), steps);
      EXPECT_EQ(rows(again + "/profile.csv").size(), rows(straight + "/profile.csv").size());
    }
  }
}

TEST(Checkpoint, restart_of_other_averages_is_bit_identical) {
  const Communicator world;
  const Scratch scratch;
  // One host: its ranks share out the vector, and the residuals with it.
  for (const std::string name : {"hierarchical", "dense"}) {
    const std::string straight = scratch / (name + "_straight"), again = scratch / (name + "_again");
    const std::string key = name == "dense" ? "compression.compressor=none" : "comm.collective=hierarchical";
    const std::vector<std::string> keys = {key, "comm.exchange=pairwise"};
    std::vector<std::string> first = keys, second = keys;
    first.push_back("checkpoint.every=15");
    second.push_back("checkpoint.restart=" + straight + checkpoint_of(15));
    train::train(Exec(), make_input(straight, first), world);
    train::train(Exec(), make_input(again, second), world);
    EXPECT_EQ(rows(again + "/run.csv"), rows(straight + "/run.csv")) << name;
    EXPECT_EQ(rows(again + "/steps.csv"), rows(straight + "/steps.csv")) << name;

    // `auto` goes on as the checkpoint's run did. Otherwise whether vectors are compressed may not change.
    second = {"comm.collective=auto", "comm.exchange=pairwise", "checkpoint.restart=" + straight + checkpoint_of(15)};
    train::train(Exec(), make_input(again, second), world);
    EXPECT_EQ(rows(again + "/steps.csv"), rows(straight + "/steps.csv")) << name;
    second.front() = std::string("compression.compressor=") + (name == "dense" ? "sign" : "none");
    EXPECT_NE(refusal(make_input(again, second), world).find("compression.compressor"), std::string::npos);
  }
}

// Buckets are a way to average, so a run may go on with others, with the residuals that were saved.
TEST(Checkpoint, restart_of_buckets_is_bit_identical) {
  const Communicator world;
  const Scratch scratch;
  const std::string straight = scratch / "straight", plain = scratch / "plain", other = scratch / "other";
  const std::string buckets = "comm.compressed_bucket_bytes=4096", clip = "optimizer.clip_norm=last_step";
  const std::vector<std::string> keys = {"quadratic.dimension=2500", "optimizer.clip=2", clip};
  const auto input = [&](const std::string& output, std::vector<std::string> more) {
    more.insert(more.end(), keys.begin(), keys.end());
    return make_input(output, more);
  };
  train::train(Exec(), input(straight, {buckets, "checkpoint.every=1", "checkpoint.keep=24"}), world);
  for (const int step : {7, 8, 9, 15}) {  // before T_w = 8, at it, and with momenta in floats and in messages
    const std::string again = scratch / ("again" + std::to_string(step));
    train::train(Exec(), input(again, {buckets, "checkpoint.restart=" + straight + checkpoint_of(step)}), world);
    EXPECT_EQ(rows(again + "/run.csv"), rows(straight + "/run.csv")) << "from step " << step;
    EXPECT_EQ(rows(again + "/steps.csv"), rows(straight + "/steps.csv")) << "from step " << step;
  }

  train::train(Exec(), input(plain, {"checkpoint.every=15"}), world);
  const std::string from = "checkpoint.restart=" + plain + checkpoint_of(15);
  train::train(Exec(), input(other, {buckets, from, "train.steps=15", "run.dump_parameters=state.h5"}), world);
  world.barrier();
  const ArrayReader before(plain + checkpoint_of(15)), after(other + "/state.h5");
  for (const char* name : {"worker_residual", "server_residual", "momentum"})
    for (int rank = 0; rank < world.size(); ++rank)
      EXPECT_TRUE(test::same_bits(row(before, name, rank), row(after, name, rank))) << name;
}

TEST(Checkpoint, restart_of_averages_in_16_bits_is_bit_identical) {
  const Communicator world;
  const Scratch scratch;
  const std::vector<std::string> keys = {"comm.dense_type=bf16"};
  for (const std::string algorithm : {"adam", "onebit_adam_32bit", "local_momentum_sgd"}) {
    SCOPED_TRACE(algorithm);
    const std::string straight = scratch / (algorithm + "_straight"), again = scratch / (algorithm + "_again");
    std::vector<std::string> first = keys, second = keys;
    for (std::vector<std::string>* const run : {&first, &second}) run->push_back("optimizer.algorithm=" + algorithm);
    first.push_back("checkpoint.every=10");
    second.push_back("checkpoint.restart=" + straight + checkpoint_of(10));
    train::train(Exec(), make_input(straight, first), world);
    train::train(Exec(), make_input(again, second), world);
    EXPECT_EQ(rows(again + "/run.csv"), rows(straight + "/run.csv"));
    EXPECT_EQ(rows(again + "/steps.csv"), rows(straight + "/steps.csv"));
    second.front() = "comm.dense_type=fp16";
    EXPECT_NE(refusal(make_input(again, second), world).find("comm.dense_type (bf16, fp16)"), std::string::npos);
  }
}

// A rank's residuals are several ranges of one dataset. Of the steps from which the run goes on, 11 ends a round
// of fragment 1 and 14 ends none.
TEST(Checkpoint, restart_of_fragments_is_bit_identical) {
  const Communicator world;
  const Scratch scratch;
  for (const std::string collective : {"flat", "hierarchical"}) {
    SCOPED_TRACE(collective);
    const std::string straight = scratch / (collective + "_straight");
    const std::vector<std::string> keys = {"optimizer.algorithm=diloco", "diloco.fragments=3",
                                           "optimizer.local_steps=5", "comm.collective=" + collective};
    std::vector<std::string> first = keys;
    first.insert(first.end(), {"checkpoint.every=1", "checkpoint.keep=30"});
    train::train(Exec(), make_input(straight, first), world);
    for (const int step : {11, 14}) {
      const std::string again = scratch / (collective + std::to_string(step));
      std::vector<std::string> second = keys;
      second.push_back("checkpoint.restart=" + straight + checkpoint_of(step));
      train::train(Exec(), make_input(again, second), world);
      EXPECT_EQ(rows(again + "/run.csv"), rows(straight + "/run.csv")) << "from step " << step;
      EXPECT_EQ(rows(again + "/steps.csv"), rows(straight + "/steps.csv")) << "from step " << step;
    }
  }
}

// After two steps of local_sgd the ranks never had the same parameters, so there is no mean yet.
TEST(Checkpoint, restart_of_the_mean_of_parameters_is_bit_identical) {
  const Communicator world;
  const Scratch scratch;
  for (const std::string algorithm : {"adam", "onebit_muon", "sharded_adam", "local_sgd"}) {
    const std::string straight = scratch / (algorithm + "_straight");
    const std::vector<std::string> keys = {"optimizer.algorithm=" + algorithm, "schedule.decay=averaging"};
    std::vector<std::string> first = keys;
    first.insert(first.end(), {"checkpoint.every=1", "checkpoint.keep=24"});
    train::train(Exec(), make_input(straight, first), world);
    for (const int step : {2, 11, 24}) {
      SCOPED_TRACE(algorithm + " from step " + std::to_string(step));
      const std::string again = scratch / (algorithm + "_" + std::to_string(step));
      std::vector<std::string> second = keys;
      second.push_back("checkpoint.restart=" + straight + checkpoint_of(step));
      train::train(Exec(), make_input(again, second), world);
      EXPECT_EQ(rows(again + "/run.csv"), rows(straight + "/run.csv"));
      EXPECT_EQ(rows(again + "/steps.csv"), rows(straight + "/steps.csv"));
    }
    const std::string constant = scratch / (algorithm + "_constant");
    train::train(Exec(), make_input(constant, {keys.front(), "schedule.decay=constant"}), world);
    const Columns mean = rows(straight + "/steps.csv").back(), last = rows(constant + "/steps.csv").back();
    EXPECT_EQ(mean.at("loss"), last.at("loss")) << "the steps are the same";
    EXPECT_NE(mean.at("validation_loss"), last.at("validation_loss")) << "what is validated is not";
    EXPECT_EQ(ArrayReader(straight + checkpoint_of(2)).has("parameter_mean"), algorithm != "local_sgd");
  }
}

// The next step's factor is a quotient of the last compression's learning rate, which is not that of a step left out.
TEST(Checkpoint, restart_keeps_the_learning_rate_of_the_residuals) {
  const Communicator world;
  const Scratch scratch;
  for (const std::string algorithm : {"onebit_adam", "ef_momentum_sgd", "double_squeeze", "onebit_sgd",
                                      "sharded_onebit_adam", "server_onebit_adam"}) {
    const std::string straight = scratch / (algorithm + "_straight"), again = scratch / (algorithm + "_again");
    const std::vector<std::string> keys = {"optimizer.algorithm=" + algorithm,
                                           "compression.scale_residual_by_lr=true",
                                           "optimizer.on_nonfinite=skip",
                                           "faults.kind=nan",
                                           "faults.rank=0",
                                           "faults.step=15"};
    std::vector<std::string> first = keys, second = keys, unscaled = keys;
    first.insert(first.end(), {"checkpoint.every=5", "checkpoint.keep=9"});
    train::train(Exec(), make_input(straight, first), world);
    for (const int step : {10, 15}) {
      second.resize(keys.size());
      second.push_back("checkpoint.restart=" + straight + checkpoint_of(step));
      train::train(Exec(), make_input(again, second), world);
      EXPECT_EQ(rows(again + "/run.csv"), rows(straight + "/run.csv")) << algorithm << " from step " << step;
      EXPECT_EQ(rows(again + "/steps.csv"), rows(straight + "/steps.csv")) << algorithm << " from step " << step;
    }
    unscaled[1] = "compression.scale_residual_by_lr=false";
    train::train(Exec(), make_input(again, unscaled), world);
    EXPECT_NE(rows(again + "/steps.csv"), rows(straight + "/steps.csv")) << algorithm << ": the key has no effect";
  }
}

// Ranks that stand for several hosts: worker residuals have a row for each host.
TEST(Checkpoint, residuals_of_hosts_come_back_to_their_places) {
  const Communicator world;
  const Scratch scratch;
  const int ranks = world.size();
  if (ranks % 2 != 0) GTEST_SKIP() << test::other_ranks << "hosts of two ranks each";
  TensorTable tensors;
  tensors.add("x", {parameters}, true);
  config::Input input = make_input(scratch / "out", {"optimizer.algorithm=ef_momentum_sgd",
                                                     "comm.collective=hierarchical", "compression.group=vector"});
  if (world.rank() == 0) fs::create_directories(input.run.output);
  world.barrier();
  struct Side {
    std::unique_ptr<comm::Transport<Exec>> transport;
    std::unique_ptr<comm::DenseAverage<Exec>> average;
    Vector<Exec, float> x;
    std::unique_ptr<optim::Algorithm<Exec>> algorithm;
    std::unique_ptr<train::Results> results;
  };
  std::vector<int> hosts_of_ranks;
  for (int rank = 0; rank < ranks; ++rank) hosts_of_ranks.push_back(rank / 2);
  const auto make_side = [&] {
    Side side;
    side.transport = comm::make_hierarchical_transport<Exec>(TransportKind::automatic, world, hosts_of_ranks, {});
    side.x = Vector<Exec, float>("x", parameters);
    side.average = std::make_unique<comm::DenseAverage<Exec>>(*side.transport);
    side.algorithm = optim::make_algorithm<Exec>({input, tensors, *side.transport, *side.average});
    side.results = std::make_unique<train::Results>(world, input.run.output);
    return side;
  };
  const auto step = [&](Side& side, long t) {
    PhaseTimes times;
    const auto g = test::to_device<Exec>(test::random_values(parameters, 100 * t + world.rank()));
    side.algorithm->step(Exec(), side.x, g, {t, 0.01, 1}, times);
  };
  Side one = make_side();
  for (long t = 1; t <= 5; ++t) step(one, t);
  train::Run<Exec> run{input, tensors, one.x, *one.algorithm, *one.results, 5};
  const std::string path = scratch / "state.h5";
  train::write_checkpoint(Exec(), world, path, run);

  const ArrayReader file(path);
  const std::size_t hosts = static_cast<std::size_t>(ranks / 2), d = parameters;
  EXPECT_EQ(file.shape("worker_residual"),
            hosts > 1 ? (std::vector<std::size_t>{hosts, d}) : (std::vector<std::size_t>{d}));
  EXPECT_EQ(file.shape("server_residual"), (std::vector<std::size_t>{d}));
  for (const char* name : {"worker_residual", "server_residual"}) {
    if (hosts == 1 && name[0] == 's') continue;  // one host's signs are recompressed without loss
    const std::vector<double> values = file.reals(name);
    EXPECT_LT(std::count(values.begin(), values.end(), 0.0), static_cast<long>(d / 10)) << name << " has holes";
  }

  Side two = make_side();
  config::Input restart = input;
  restart.checkpoint.restart = path;
  train::Run<Exec> again{restart, tensors, two.x, *two.algorithm, *two.results};
  train::Checkpoints(restart, world).restore(Exec(), again);
  EXPECT_EQ(again.step, 5);
  for (long t = 6; t <= 8; ++t) {
    step(one, t);
    step(two, t);
    EXPECT_TRUE(test::same_bits(test::to_host(two.x), test::to_host(one.x))) << "step " << t;
  }
}

TEST(Checkpoint, restart_after_a_skipped_step_and_at_the_last_one) {
  const Communicator world;
  const Scratch scratch;
  // An update that overflows: every gradient from then on is left out.
  const std::vector<std::string> overflow = {"optimizer.algorithm=onebit_adam", "optimizer.lr=1e38",
                                             "optimizer.on_nonfinite=skip", "checkpoint.every=12"};
  for (const auto& keys : {overflow, std::vector<std::string>{"checkpoint.every=12"}}) {
    const std::string straight = scratch / ("straight" + std::to_string(keys.size()));
    train::train(Exec(), make_input(straight, keys), world);
    for (const int step : {12, 24}) {
      std::vector<std::string> more = keys;
      more.push_back("checkpoint.restart=" + straight + checkpoint_of(step));
      const std::string again = scratch / ("again" + std::to_string(keys.size()) + "_" + std::to_string(step));
      train::train(Exec(), make_input(again, more), world);
      EXPECT_EQ(rows(again + "/run.csv"), rows(straight + "/run.csv"));
      EXPECT_EQ(rows(again + "/steps.csv"), rows(straight + "/steps.csv"));
    }
  }
}

// Replicas are apart when the step that would average them is left out.
TEST(Checkpoint, replicas_are_averaged_where_the_last_step_is_skipped) {
  const Communicator world;
  const Scratch scratch;
  const std::size_t n = world.size();
  for (const std::string algorithm : {"local_sgd", "local_momentum_sgd", "adam_lazy_variance", "zero_one_adam"}) {
    const std::string output = scratch / algorithm;
    train::train(Exec(),
                 make_input(output, {"optimizer.algorithm=" + algorithm, "checkpoint.every=23", "faults.kind=nan",
                                     "faults.rank=0", "faults.step=24", "optimizer.on_nonfinite=skip",
                                     "run.dump_parameters=end.h5"}),
                 world);
    const ArrayReader before(output + checkpoint_of(23)), end(output + "/end.h5");
    ASSERT_EQ(before.shape("parameters").size(), n > 1 ? 2u : 1u) << algorithm << " is not apart at step 23";
    ASSERT_EQ(end.shape("parameters"), std::vector<std::size_t>{parameters}) << algorithm;
    std::vector<double> mean(parameters);
    for (std::size_t rank = 0; rank < n; ++rank) {
      const std::vector<float> one = row(before, "parameters", rank);
      for (long i = 0; i < parameters; ++i) mean[i] += one[i] / static_cast<double>(n);
    }
    const std::vector<float> averaged = row(end, "parameters", 0);
    for (long i = 0; i < parameters; ++i) EXPECT_NEAR(averaged[i], mean[i], 1e-6) << algorithm << ", element " << i;
  }
}

// From n ranks to n': what differs from rank to rank becomes its mean over the n, on each of the n', so (1/n) Σ δ_i
// stays; what is one vector for all, the server residual among them, keeps its bits.
TEST(Checkpoint, another_number_of_ranks_keeps_means_and_shared_vectors) {
  const Communicator world;
  const Scratch scratch;
  const int n = world.size();
  std::set<std::pair<int, int>> changes;
  if (n > 1) changes = {{n, 1}, {n, n - 1}, {n - 1, n}};
  for (const std::string& algorithm : config::algorithm_names())
    for (const auto& [before, after] : changes) {
      SCOPED_TRACE(algorithm + " from " + std::to_string(before) + " to " + std::to_string(after) + " ranks");
      const std::string name = algorithm + std::to_string(before) + std::to_string(after);
      const std::string first = scratch / (name + "a"), second = scratch / (name + "b"), third = scratch / (name + "c");
      // Step 14: behind T_w and F, and between two averages. Only a checkpoint is taken there, not the end of a run.
      const std::vector<std::string> keys = {"optimizer.algorithm=" + algorithm};
      if (const auto ranks = first_ranks(world, before)) {
        std::vector<std::string> more = keys;
        more.push_back("checkpoint.every=14");
        train::train(Exec(), make_input(first, more), *ranks);
      }
      world.barrier();
      if (const auto ranks = first_ranks(world, after)) {
        // No step further: what was restored is saved again.
        std::vector<std::string> more = keys;
        more.insert(more.end(), {"train.steps=14", "checkpoint.restart=" + first + checkpoint_of(14),
                                 "run.dump_parameters=state.h5"});
        train::train(Exec(), make_input(second, more), *ranks);
        // And it goes on: the check of replicas is in every step, and the loss must not be worse than where it was.
        more = keys;
        more.push_back("checkpoint.restart=" + first + checkpoint_of(14));
        train::train(Exec(), make_input(third, more), *ranks);
      }
      world.barrier();
      if (world.rank() > 0) continue;
      const std::vector<Columns> steps = rows(third + "/steps.csv");
      ASSERT_EQ(steps.size(), static_cast<std::size_t>(all_steps));
      EXPECT_LT(std::stod(steps.back().at("loss")), std::stod(steps.front().at("loss")));

      const ArrayReader old(first + checkpoint_of(14)), saved(second + "/state.h5");
      int vectors = 0;
      for (const std::string& dataset : old.datasets()) {
        const std::vector<std::size_t> shape = old.shape(dataset);
        if (shape.empty() || shape.back() != parameters) continue;
        ++vectors;
        std::vector<float> expected = row(old, dataset, 0);
        if (shape.size() == 2) {
          ASSERT_EQ(shape[0], static_cast<std::size_t>(before));
          std::vector<double> mean(parameters);
          for (int rank = 0; rank < before; ++rank) {
            const std::vector<float> one = row(old, dataset, rank);
            for (long i = 0; i < parameters; ++i) mean[i] += one[i];
          }
          for (long i = 0; i < parameters; ++i) expected[i] = static_cast<float>(mean[i] / before);
        }
        for (int rank = 0; rank < after; ++rank)
          EXPECT_TRUE(test::same_bits(row(saved, dataset, rank), expected)) << dataset << " of rank " << rank;
      }
      EXPECT_GE(vectors, 1);
      const bool compresses = old.has("worker_residual");
      const config::AlgorithmTraits& traits = config::traits(algorithm);
      EXPECT_EQ(compresses, traits.compresses);
      EXPECT_EQ(old.has("server_residual"), traits.compresses && algorithm != "server_onebit_adam");
      EXPECT_EQ(old.has("update_residual"), traits.compresses && traits.has(config::shards_state));
    }
}

TEST(Checkpoint, the_last_ones_are_kept_and_auto_takes_the_newest_whole_one) {
  const Communicator world;
  const Scratch scratch;
  const std::string output = scratch / "out";
  const std::vector<std::string> keys = {"checkpoint.every=5", "checkpoint.keep=3"};
  const auto with = [&](const std::string& key) {
    std::vector<std::string> more = keys;
    more.push_back(key);
    return make_input(output, more);
  };
  const auto names = [&] {
    world.barrier();
    std::set<std::string> found;
    for (const auto& entry : fs::directory_iterator(output + "/checkpoints"))
      found.insert(entry.path().filename().string());
    world.barrier();
    return found;
  };
  train::train(Exec(), with("checkpoint.restart=auto"), world);  // there is none yet
  EXPECT_EQ(names(), (std::set<std::string>{"step_00000010.h5", "step_00000015.h5", "step_00000020.h5"}));
  const std::vector<Columns> run = rows(output + "/run.csv"), steps = rows(output + "/steps.csv");

  for (int damaged = 0; damaged < 3; ++damaged) {
    // The newest ones lose a byte, its end, its begin.
    const std::string path = output + checkpoint_of(20 - 5 * damaged);
    std::string bytes = read_file(path);
    world.barrier();
    if (world.rank() == 0) {
      if (damaged == 0) bytes[bytes.size() / 2] ^= 1;
      if (damaged == 1) bytes.resize(bytes.size() - 8);
      if (damaged == 2) bytes[0] ^= 4;
      write_file(path, bytes);
    }
    world.barrier();
    if (damaged < 2) {
      train::train(Exec(), make_input(output, {"checkpoint.restart=auto"}), world);
      EXPECT_EQ(rows(output + "/run.csv"), run);
      EXPECT_EQ(rows(output + "/steps.csv"), steps);
    } else {
      const std::string message = refusal(make_input(output, {"checkpoint.restart=auto"}), world);
      EXPECT_NE(message.find("every checkpoint in"), std::string::npos) << message;
    }
  }

  // A run from the begin has a directory of its own, where `auto` goes on.
  train::train(Exec(), with("train.steps=12"), world);
  train::train(Exec(), with("checkpoint.restart=auto"), world);
  EXPECT_EQ(rows(output + "/steps.csv").size(), steps.size());
  EXPECT_EQ(names(), (std::set<std::string>{"step_00000010.h5", "step_00000015.h5", "step_00000020.h5", "line_2"}));
  EXPECT_TRUE(fs::exists(output + "/checkpoints/line_2/step_00000020.h5"));
}

TEST(Checkpoint, another_input_is_refused_by_the_names_of_its_keys) {
  const Communicator world;
  const Scratch scratch;
  const std::string output = scratch / "out";
  train::train(Exec(), make_input(output, {"checkpoint.every=10"}), world);
  const std::string restart = "checkpoint.restart=" + output + checkpoint_of(20);
  const auto message_of = [&](const std::vector<std::string>& keys) {
    std::vector<std::string> more = keys;
    more.push_back(restart);
    return refusal(make_input(scratch / "other", more), world);
  };
  const std::string message = message_of({"optimizer.lr=0.5", "run.seed=3", "quadratic.noise=0.25"});
  for (const char* part : {"optimizer.lr (0.01, 0.5)", "run.seed (1, 3)", "quadratic.noise (0.5, 0.25)", "remedy:"})
    EXPECT_NE(message.find(part), std::string::npos) << part << " in " << message;
  for (const char* key : {"optimizer.algorithm=adam", "compression.group=128", "freeze.step=9", "train.batch=24"})
    EXPECT_NE(message_of({key}).find(std::string(key).substr(0, std::string(key).find('='))), std::string::npos) << key;
  EXPECT_NE(message_of({"train.steps=19"}).find("train.steps"), std::string::npos);
  EXPECT_EQ(message_of({"train.steps=30", "comm.exchange=pairwise", "train.validate_every=3", "run.backend=serial"}),
            "");
  EXPECT_EQ(rows(scratch / "other/steps.csv").size(), 30u);
  EXPECT_NE(refusal(make_input(scratch / "other", {"checkpoint.restart=" + (scratch / "none.h5")}), world)
                .find("does not exist"),
            std::string::npos);
}

TEST(Checkpoint, a_next_phase_starts_from_parameters_and_variance) {
  const Communicator world;
  const Scratch scratch;
  const std::string output = scratch / "first", checkpoint = output + checkpoint_of(24);
  train::train(Exec(), make_input(output, {"optimizer.algorithm=adam", "checkpoint.every=24"}), world);
  train::train(Exec(),
               make_input(scratch / "second", {"checkpoint.initialize_from=" + checkpoint, "freeze.from=" + checkpoint,
                                               "freeze.step=2", "train.batch=24", "run.seed=9"}),
               world);
  const std::vector<Columns> first = rows(output + "/steps.csv"), second = rows(scratch / "second/steps.csv");
  EXPECT_EQ(second.front().at("loss"), first.back().at("validation_loss")) << "the parameters";
  const double before = std::stod(first.back().at("variance_l1")), after = std::stod(second.front().at("variance_l1"));
  EXPECT_NEAR(after / before, 1, 0.4) << "the variance, after one step at β2 = 0.8";
  EXPECT_EQ(second.at(1).at("phase"), "dense");
  EXPECT_EQ(second.at(2).at("phase"), "compressed");
  const std::string message = refusal(
      make_input(scratch / "third", {"checkpoint.initialize_from=" + checkpoint, "quadratic.dimension=100"}), world);
  EXPECT_NE(message.find("is (203), but this one's is (100)"), std::string::npos) << message;

  const std::string averaged = scratch / "averaged";
  train::train(Exec(), make_input(averaged, {"schedule.decay=averaging", "run.dump_parameters=state.h5"}), world);
  train::train(Exec(), make_input(scratch / "fourth", {"checkpoint.initialize_from=" + averaged + "/state.h5"}), world);
  EXPECT_EQ(rows(scratch / "fourth/steps.csv").front().at("loss"),
            rows(averaged + "/steps.csv").back().at("validation_loss"))
      << "the mean of the parameters";
}

/// A checkpoint whose parameters are 0, 1, 2, … in these tensors.
void write_tensors(const Communicator& world, const std::string& path, const std::string& output,
                   const TensorTable& tensors) {
  const config::Input input = make_input(output, {"optimizer.algorithm=adam"});
  if (world.rank() == 0) fs::create_directories(output);
  world.barrier();
  std::vector<float> values(tensors.size());
  std::iota(values.begin(), values.end(), 0.0f);
  const auto x = test::to_device<Exec>(values);
  const auto transport = comm::make_transport<Exec>(TransportKind::automatic, world, {});
  comm::DenseAverage<Exec> average(*transport);
  const auto algorithm = optim::make_algorithm<Exec>({input, tensors, *transport, average});
  train::Results results(world, output);
  train::Run<Exec> run{input, tensors, x, *algorithm, results, 3};
  run.last.synchronised = true;
  train::write_checkpoint(Exec(), world, path, run);
}

TEST(Checkpoint, next_phase_takes_the_tensors_that_both_models_have) {
  const Communicator world;
  const Scratch scratch;
  const std::string path = scratch / "phase.h5";
  TensorTable earlier;
  earlier.add("embeddings.word.weight", {4, 3}, true);      // 0 …
  earlier.add("embeddings.position.weight", {3, 2}, true);  // 12 …
  earlier.add("encoder.0.weight", {2, 2}, true);            // 18 …
  earlier.add("encoder.0.bias", {2}, false);                // 22 …
  earlier.add("head.weight", {2, 2}, true);
  write_tensors(world, path, scratch / "out", earlier);

  const auto taken = [&](const TensorTable& tensors) {
    const auto x = test::to_device<Exec>(std::vector<float>(tensors.size(), -1.0f));
    const std::string said = train::read_parameters(Exec(), path, tensors, x);
    return std::make_pair(test::to_host(x), said);
  };
  std::vector<float> all(earlier.size());
  std::iota(all.begin(), all.end(), 0.0f);
  EXPECT_EQ(taken(earlier).first, all);

  // Another order, fewer or more positions, another head.
  for (const std::size_t positions : {2, 5}) {
    TensorTable next;
    next.add("classifier.weight", {3}, true);
    next.add("encoder.0.bias", {2}, false);
    next.add("encoder.0.weight", {2, 2}, true);
    next.add("embeddings.position.weight", {positions, 2}, true);
    next.add("embeddings.word.weight", {4, 3}, true);
    std::vector<float> expected = {-1, -1, -1, 22, 23, 18, 19, 20, 21, 12, 13, 14, 15};
    if (positions == 5) expected.insert(expected.end(), {16, 17, -1, -1, -1, -1});
    expected.insert(expected.end(), {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
    const auto [values, said] = taken(next);
    EXPECT_EQ(values, expected);
    EXPECT_EQ(said, "parameters: of " + path + ": embeddings, encoder; begin anew: classifier; left out: head");
  }

  const auto refused = [&](const std::string& part,
                           const std::vector<std::pair<std::string, std::vector<std::size_t>>>& list) {
    TensorTable tensors;
    for (const auto& [name, shape] : list) tensors.add(name, shape, true);
    try {
      taken(tensors);
      FAIL() << part;
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("remedy:"), std::string::npos);
    }
  };
  refused("'encoder.0.weight' is (2, 2), but this one's is (2, 3)",
          {{"encoder.0.weight", {2, 3}}, {"encoder.0.bias", {2}}});
  refused("no tensor 'encoder.1.weight'", {{"encoder.1.weight", {2, 2}}});
  refused("this model has no tensor 'encoder.0.bias'", {{"encoder.0.weight", {2, 2}}});
  refused("'embeddings.position.weight' is (3, 2), but this one's is (3, 4)",
          {{"embeddings.word.weight", {4, 3}}, {"embeddings.position.weight", {3, 4}}});
  refused("'embeddings.word.weight' is (4, 3), but this one's is (5, 3)",
          {{"embeddings.word.weight", {5, 3}}, {"embeddings.position.weight", {3, 2}}});
  refused("no tensor of this model", {{"x", {3}}});
}

// One process is enough: rank 0 alone reads.
TEST(Checkpoint, change_of_the_variance_by_tensor) {
  const Communicator world;
  if (world.size() > 1) GTEST_SKIP() << test::other_ranks << "one process reads by the same code";
  const Scratch scratch;
  const auto train = [&](const std::string& algorithm) {
    const std::string output = scratch / algorithm;
    train::train(Exec(), make_input(output, {"optimizer.algorithm=" + algorithm, "checkpoint.every=4"}), world);
    return output;
  };
  const std::string adam = train("adam"), sgd = train("sgd");
  const auto l1 = [&](int step) {
    const std::vector<float> v = row(ArrayReader(adam + checkpoint_of(step)), "variance", 0);
    return std::accumulate(v.begin(), v.end(), 0.0);
  };
  char expected[64];
  std::snprintf(expected, sizeof expected, "%12ld    100.0 %% %9.3f ", parameters, l1(24) / l1(20));
  const std::string text = train::describe_variance_change(adam + checkpoint_of(20), adam + checkpoint_of(24));
  EXPECT_EQ(text.rfind("v of step 24 beside v of step 20\n", 0), 0u) << text;
  EXPECT_NE(text.find(expected), std::string::npos) << expected << text;

  const auto refusal_of = [&](const std::string& later) -> std::string {
    try {
      train::describe_variance_change(adam + checkpoint_of(20), later);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refusal_of(sgd + checkpoint_of(24)).find("it has no variance that all ranks share"), std::string::npos);
  const std::string other = scratch / "other";
  train::train(
      Exec(), make_input(other, {"optimizer.algorithm=adam", "checkpoint.every=24", "quadratic.dimension=204"}), world);
  EXPECT_NE(refusal_of(other + checkpoint_of(24)).find("its model has other tensors"), std::string::npos);
}

TEST(VarianceChange, of_elements) {
  const train::VarianceChange change = train::variance_change("x", {1, 4, 0, 16}, {4, 4, 9, 4});
  EXPECT_EQ(change.elements, 4u);
  EXPECT_EQ(change.ratio(), 1.0);  // 21 / 21: the changes cancel out
  EXPECT_EQ(change.stability(), 1.0);
  EXPECT_EQ(change.least, 0.5);  // √(4/16); the third element had no variance
  EXPECT_EQ(change.median, 1.0);
  EXPECT_EQ(change.greatest, 2.0);
  EXPECT_EQ(train::variance_change("x", {2}, {8}).stability(), 0.25);
  EXPECT_EQ(train::variance_change("x", {8}, {2}).stability(), 0.25);
  EXPECT_EQ(train::variance_change("x", {0}, {2}).stability(), 0.0);  // new since then
}

// One process is enough: all ranks read by the same code.
TEST(Checkpoint, flipped_bits_and_cut_files_are_detected) {
  const Communicator world;
  if (world.size() > 1) GTEST_SKIP() << test::other_ranks << "one process reads by the same code";
  const Scratch scratch;
  const std::string output = scratch / "out", copy = scratch / "copy.h5";
  train::train(Exec(), make_input(output, {"checkpoint.every=20"}), world);
  const std::string whole = read_file(output + checkpoint_of(20));
  write_file(copy, whole);
  EXPECT_NE(train::describe_checkpoint(copy).find("step:       20 of 24"), std::string::npos);
  const auto is_detected = [&](const std::string& bytes) {
    write_file(copy, bytes);
    try {
      train::describe_checkpoint(copy);
    } catch (const InputError& error) {
      return std::string(error.what()).find("remedy:") != std::string::npos;
    }
    return false;
  };
  for (int i = 0; i < 1000; ++i) {
    const Philox4 random = philox(stream_key(7, Stream::noise), i, 0);
    const std::size_t at = random.word[0] % whole.size();
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << random.word[1] % 8));
    EXPECT_TRUE(is_detected(flipped)) << "bit " << random.word[1] % 8 << " of byte " << at;
    EXPECT_TRUE(is_detected(whole.substr(0, at))) << at << " bytes";
  }
  for (std::size_t at = 0; at < seal_bytes; ++at) {  // every byte of the seal
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ 2);
    EXPECT_TRUE(is_detected(flipped)) << "byte " << at;
  }
  EXPECT_TRUE(is_detected(whole + whole)) << "longer than it was";
  EXPECT_TRUE(is_detected("")) << "empty";
}

/// A file for `write_sealed`, as `text` says, of which each rank has stripes.
struct Striped {
  std::string path, text;
  std::vector<SealedRange> ranges;

  /// Stripes of odd lengths that are no whole words, of more than a block, and one of length 0.
  Striped(const Communicator& world, const std::string& file) : path(file) {
    text.resize(seal_bytes + 2 * sealed_block_bytes * world.size() + 12345);
    for (std::size_t i = seal_bytes; i < text.size(); ++i) text[i] = static_cast<char>(i * i >> 7);
    std::size_t begin = seal_bytes + 3;  // the bytes before it are there already
    for (int stripe = 0; begin < text.size(); ++stripe) {
      const std::size_t length =
          stripe % 5 == 4
              ? 0
              : std::min(text.size() - begin, sealed_block_bytes / 3 + 7 * stripe * sealed_block_bytes / 5 + 1);
      if (stripe % world.size() == world.rank())
        ranges.push_back({begin, length, [this, begin](std::size_t first, std::size_t count) {
                            EXPECT_LE(count, sealed_block_bytes);
                            return text.data() + begin + first;
                          }});
      begin += length;
    }
    if (world.rank() == 0) {
      write_file(path + ".partial", text.substr(0, seal_bytes + 3));
      fs::resize_file(path + ".partial", text.size());
    }
    world.barrier();
  }
};

TEST(WriteSealed, completes_a_file) {
  const Communicator world;
  const Scratch scratch;
  const Striped file(world, scratch / "file");
  write_sealed(world, file.path, file.ranges, "a label");
  EXPECT_FALSE(fs::exists(file.path + ".partial"));
  EXPECT_NO_THROW(verify_seal(world, file.path));
  EXPECT_EQ(read_label(file.path), "a label");
  EXPECT_TRUE(read_file(file.path).substr(seal_bytes) == file.text.substr(seal_bytes));
}

TEST(WriteSealed, a_full_disk_is_said_by_all_ranks) {
  const Communicator world;
  const Scratch scratch;
  const Striped file(world, scratch / "file");
  if (world.rank() == 0) {
    fs::remove(file.path + ".partial");
    fs::create_symlink("/dev/full", file.path + ".partial");
  }
  world.barrier();
  try {
    write_sealed(world, file.path, file.ranges, "");
    FAIL();
  } catch (const AgreedError& error) {
    EXPECT_EQ(error.status(), ExitStatus::failed_run);
    EXPECT_EQ(std::string(error.what()), world.broadcast(error.what(), 0));
    for (const char* part : {"file.partial: the file could not be written", "free space"})
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
  EXPECT_FALSE(fs::exists(file.path));
}

// Whole by their checksum, but not what a run needs: sealed by hand, with one dataset changed.
TEST(Checkpoint, whole_files_with_other_contents_are_refused) {
  const Communicator world;
  const Scratch scratch;
  const std::string output = scratch / "out", path = scratch / "made.h5";
  train::train(Exec(), make_input(output, {"checkpoint.every=20"}), world);
  const ArrayReader original(output + checkpoint_of(20));
  const auto refusal_with = [&](const std::string& changed, const std::vector<double>& values) {
    ArrayWriter file(world, path, seal_bytes);
    for (const std::string& name : original.datasets()) {
      const std::vector<std::size_t> shape = original.shape(name);
      if (shape.empty()) {
        file.text(name, name == changed ? "no such thing" : original.text(name));
        continue;
      }
      if (name == changed && values.empty()) continue;
      const std::vector<double> numbers = name == changed ? values : original.reals(name);
      file.dataset(name, ArrayWriter::Type::real64, name == changed ? std::vector<std::size_t>{values.size()} : shape);
      const std::vector<std::size_t> offset(name == changed ? 1 : shape.size());
      if (world.rank() == 0)
        file.write(offset, name == changed ? std::vector<std::size_t>{values.size()} : shape, numbers.data());
    }
    file.close();
    if (world.rank() == 0) write_seal(path, checksum_rest(path, {}));
    world.barrier();
    return refusal(make_input(scratch / "again", {"checkpoint.restart=" + path}), world);
  };
  EXPECT_EQ(refusal_with("nothing", {}), "") << "as it was";
  const double nan = std::nan("");
  const std::vector<std::pair<std::string, std::vector<double>>> cases = {
      {"parameters", {}},
      {"parameters", std::vector<double>(parameters + 1)},
      {"momentum", {1, 2}},
      {"worker_residual", {}},
      {"server_residual", {0}},
      {"step", {-1}},
      {"step", {nan}},
      {"step", {1e300}},
      {"step", {1, 2}},
      {"state/frozen", {2}},
      {"state/frozen_at", {0.5}},
      {"state/variance_norms", std::vector<double>(1000, 1.0)},
      {"results/sums", {1, 2, 3}},
      {"input", {}},
      {"steps.csv", {}},
  };
  for (const auto& [name, values] : cases) {
    const std::string message = refusal_with(name, values);
    EXPECT_NE(message.find("made.h5"), std::string::npos) << name << ": " << message;
    EXPECT_NE(message.find("remedy:"), std::string::npos) << name << ": " << message;
  }
}

}  // namespace
}  // namespace onebit
