/// \file overlap_test.cpp
/// Whole runs whose gradients are averaged in buckets beside the backward pass end in the same bits as those without,
/// and say the same of gradients that are not finite.

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "../support.hpp"
#include "base/error.hpp"
#include "base/mpi.hpp"
#include "csv_line.hpp"
#include "train/trainer.hpp"

namespace onebit {
namespace {

/// The cells of a column of a CSV file.
std::vector<std::string> column(const std::filesystem::path& path, const std::string& name) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  const std::vector<std::string> names = test::cells_of(line);
  const auto place = std::find(names.begin(), names.end(), name) - names.begin();
  std::vector<std::string> cells;
  while (std::getline(file, line)) cells.push_back(test::cells_of(line).at(place));
  return cells;
}

constexpr char models[] =
    "train: {steps: 6, batch: 24, validation_batch: 12}\n"
    "optimizer: {lr: 0.01, beta2: 0.9}\n"
    "freeze: {step: 3}\n"
    "zero_one: {variance_freeze_step: 3}\n"
    "comm: {exchange: pairwise}\n"
    "model: {layers: 2, hidden: 32, heads: 2, feed_forward: 64, positions: 16, sequence: 16}\n"
    "quadratic: {dimension: 5000}\n";

template <class Exec>
class Overlap : public ::testing::Test {
protected:
  Overlap()
      : m_directory(m_world.broadcast(
            (std::filesystem::temp_directory_path() / ("onebit_overlap_test_" + std::to_string(::getpid()))).string(),
            0)) {
    if (m_world.rank() == 0) {
      std::filesystem::create_directories(m_directory);
      std::ofstream corpus(m_directory / "corpus.txt");
      for (int i = 0; i < 3000; ++i) corpus << "abcdefgh ijkl mno. "[i * i % 19];
    }
    m_world.barrier();
  }
  ~Overlap() override {
    m_world.barrier();
    if (m_world.rank() == 0) std::filesystem::remove_all(m_directory);
  }

  /// What tells runs apart: of rank 0, which writes the files; on other ranks nothing.
  std::vector<std::string> run(std::vector<std::string> keys, int bucket_bytes) {
    keys.insert(keys.end(), {"run.output=" + (m_directory / "out").string(),
                             "data.corpus=[" + (m_directory / "corpus.txt").string() + "]",
                             "comm.bucket_bytes=" + std::to_string(bucket_bytes)});
    testing::internal::CaptureStdout();
    try {
      train::train(Exec(), config::parse(models, "overlap_test", keys), m_world);
    } catch (const AgreedError& error) {
      testing::internal::GetCapturedStdout();
      return {error.what()};
    }
    testing::internal::GetCapturedStdout();
    if (m_world.rank() > 0) return {};
    const bool overlapped = column(m_directory / "out/run.csv", "bucket_bytes") != std::vector<std::string>{"0"};
    EXPECT_EQ(overlapped, bucket_bytes > 0 && m_world.size() > 1);
    std::vector<std::string> told = column(m_directory / "out/run.csv", "parameters_hash");
    for (const char* name : {"loss", "gradient_l2", "variance_l1", "skipped", "phase"})
      for (const std::string& cell : column(m_directory / "out/steps.csv", name)) told.push_back(cell);
    return told;
  }

  void expect_the_same(const std::vector<std::string>& keys) {
    const std::vector<std::string> whole = run(keys, 0);
    for (const int bucket_bytes : {4096, 9000}) EXPECT_EQ(run(keys, bucket_bytes), whole) << bucket_bytes;
  }

  Communicator m_world;
  std::filesystem::path m_directory;
};
TYPED_TEST_SUITE(Overlap, test::Backends, test::BackendNames);

TYPED_TEST(Overlap, every_workload_ends_in_the_same_bits) {
  for (const std::vector<std::string>& workload :
       {std::vector<std::string>{"model.architecture=gpt", "train.accumulation=2", "data.tokenizer=characters"},
        {"model.architecture=bert", "model.dropout=0.1"},
        {"workload.kind=quadratic"},
        {"workload.kind=synthetic", "workload.parameters=20000", "workload.compute_time_ms=1"},
        {"model.architecture=gpt", "workload.compute_time_ms=5"}}) {
    SCOPED_TRACE(workload.front());
    std::vector<std::string> keys = workload;
    keys.push_back("optimizer.algorithm=adam");
    this->expect_the_same(keys);
  }
}

TYPED_TEST(Overlap, every_algorithm_ends_in_the_same_bits) {
  for (const char* algorithm : {"onebit_adam", "onebit_adam_32bit", "sgd", "momentum_sgd", "ef_momentum_sgd",
                                "local_sgd", "zero_one_adam", "onebit_lamb"}) {
    SCOPED_TRACE(algorithm);
    this->expect_the_same(
        {"model.architecture=gpt", std::string("optimizer.algorithm=") + algorithm, "optimizer.clip=1"});
  }
  this->expect_the_same({"workload.kind=quadratic", "optimizer.algorithm=onebit_adam", "freeze.step=1"});
  this->expect_the_same({"model.architecture=gpt", "optimizer.algorithm=onebit_adam", "comm.collective=hierarchical"});
}

TYPED_TEST(Overlap, averages_in_16_bits_end_in_the_same_bits) {
  for (const char* type : {"bf16", "fp16"})
    for (const char* algorithm : {"adam", "zero_one_adam"}) {
      SCOPED_TRACE(std::string(type) + " " + algorithm);
      this->expect_the_same({"model.architecture=gpt", std::string("optimizer.algorithm=") + algorithm,
                             std::string("comm.dense_type=") + type});
    }
  this->expect_the_same(
      {"model.architecture=gpt", "optimizer.algorithm=adam", "comm.dense_type=bf16", "comm.collective=hierarchical"});
}

/// The gradient's elements near 1e6 are floats, but not numbers of fp16: all ranks skip, or all end.
TYPED_TEST(Overlap, a_gradient_beyond_fp16_is_not_finite) {
  const std::vector<std::string> large = {"workload.kind=quadratic", "optimizer.algorithm=sgd", "optimizer.lr=1e-9",
                                          "quadratic.noise=1e6"};
  std::vector<std::string> keys = large;
  keys.push_back("comm.dense_type=fp16");
  const std::vector<std::string> whole = this->run(keys, 0);
  ASSERT_EQ(whole.size(), 1u);
  EXPECT_NE(whole.front().find("step 1: the gradient of tensor 'x' has a finite element"), std::string::npos)
      << whole.front();
  EXPECT_EQ(this->run(keys, 4096), whole);
  keys.push_back("optimizer.on_nonfinite=skip");
  this->expect_the_same(keys);
  for (const char* type : {"fp32", "bf16"}) {
    keys = large;
    keys.push_back(std::string("comm.dense_type=") + type);
    this->expect_the_same(keys);
  }
}

TYPED_TEST(Overlap, says_the_same_of_gradients_that_are_not_finite) {
  // The update of step 1 overflows the parameters.
  const std::vector<std::string> keys = {"model.architecture=gpt", "optimizer.algorithm=adam", "optimizer.lr=1e38"};
  const std::vector<std::string> whole = this->run(keys, 0);
  ASSERT_EQ(whole.size(), 1u);
  EXPECT_NE(whole.front().find("the gradient of tensor 'embeddings.word.weight' is not finite"), std::string::npos)
      << whole.front();
  EXPECT_EQ(this->run(keys, 4096), whole);
  std::vector<std::string> skips = keys;
  skips.push_back("optimizer.on_nonfinite=skip");
  this->expect_the_same(skips);
}

}  // namespace
}  // namespace onebit
