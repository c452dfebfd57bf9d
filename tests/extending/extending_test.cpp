/// \file extending_test.cpp
/// The examples of docs/develop/extending.md compute what they say: the algorithm against its reference implementation
/// in double, the compressor against its definition, the workload's gradient against differences of its value; and all
/// together train.

#include <cmath>

#include "../support.hpp"
#include "base/mpi.hpp"
#include "compress/codec_compressor.hpp"
#include "nesterov_sgd.hpp"
#include "power_codec.hpp"
#include "rosenbrock.hpp"

namespace onebit {
namespace {

constexpr std::size_t pairs = 50;

template <class Exec>
class Extending : public ::testing::Test {
protected:
  const Communicator world;
  const Exec exec{};
};
TYPED_TEST_SUITE(Extending, test::Backends, test::BackendNames);

/// The workload by the algorithm for so many steps. \returns x before the first step and after each
template <class Exec>
std::vector<std::vector<float>> train(const Communicator& world, const config::Input& input, double& loss) {
  const Exec exec{};
  workload::Rosenbrock<Exec> workload(pairs, {world.rank(), world.size()});
  const auto transport = comm::make_transport<Exec>(TransportKind::automatic, world);
  comm::DenseAverage<Exec> average(*transport);
  optim::NesterovSgd<Exec> algorithm({input, workload.tensors(), *transport, average});
  const Vector<Exec, float> x("x", 2 * pairs), g("g", 2 * pairs);
  workload.initialize(exec, x);
  std::vector<std::vector<float>> all = {test::to_host(x)};
  PhaseTimes times;
  for (long step = 1; step <= input.train.steps; ++step) {
    workload.gradient(exec, x, step, g, times, {});
    algorithm.step(exec, x, g, {step, input.optimizer.lr}, times);
    all.push_back(test::to_host(x));
  }
  loss = workload.validation_loss(exec, x, {}).sum;
  return all;
}

config::Input make_input(int steps, CompressorKind compressor) {
  config::Input input;
  input.train.steps = steps;
  input.optimizer.lr = 1e-3;
  input.compression.compressor = compressor;
  return input;
}

TYPED_TEST(Extending, algorithm_is_its_reference) {
  const config::Input input = make_input(50, CompressorKind::none);
  double loss = 0;
  const auto x = train<TypeParam>(this->world, input, loss);
  const double beta1 = input.optimizer.beta1, lr = input.optimizer.lr;
  // The pairs are all the same, and the ranks' a have the mean 1.
  double u = -1, v = -1, m_u = 0, m_v = 0;
  for (int step = 1; step <= input.train.steps; ++step) {
    const double g_u = -2 * (1 - u) - 400 * u * (v - u * u), g_v = 200 * (v - u * u);
    m_u = beta1 * m_u + (1 - beta1) * g_u;
    m_v = beta1 * m_v + (1 - beta1) * g_v;
    u -= lr * (beta1 * m_u + (1 - beta1) * g_u);
    v -= lr * (beta1 * m_v + (1 - beta1) * g_v);
    for (std::size_t k = 0; k < pairs; ++k) {
      ASSERT_NEAR(x[step][2 * k], u, 1e-5);
      ASSERT_NEAR(x[step][2 * k + 1], v, 1e-5);
    }
  }
}

TYPED_TEST(Extending, training_descends_and_replicas_are_the_same) {
  double loss = 0;
  const auto x = train<TypeParam>(this->world, make_input(2000, CompressorKind::sign), loss);
  EXPECT_LT(loss, 0.1 * 404 * pairs);  // 404 a pair at the begin
  std::vector<float> first = x.back();
  MPI_Bcast(first.data(), static_cast<int>(first.size()), MPI_FLOAT, 0, this->world.get());
  EXPECT_TRUE(test::same_bits(x.back(), first));
}

TYPED_TEST(Extending, compressor_is_its_definition) {
  using namespace compress;
  const auto values = test::random_values(1000, 3);
  const Layout layout(values.size(), 3, Grouping::fixed, 64);
  const CodecCompressor<TypeParam, PowerCodec> compressor(layout, PowerCodec());
  const auto x = test::to_device<TypeParam>(values);
  const Vector<TypeParam, float> decompressed("decompressed", values.size()), lost("lost", values.size());
  const Vector<TypeParam, std::uint32_t> messages("messages", 3 * compressor.message_words());
  const Feedback<TypeParam> feedback = compressor.no_feedback(0, 3);
  compressor.compress(this->exec, {0, 3, x, feedback, messages});
  compressor.decompress(this->exec, 0, 3, messages, decompressed);
  compressor.residual(this->exec, 0, 3, feedback, lost);
  const auto sent = test::to_host(decompressed), residual = test::to_host(lost);
  for (int chunk = 0; chunk < 3; ++chunk)
    for (std::size_t begin = layout.chunk_begins[chunk]; begin < layout.chunk_begins[chunk + 1]; begin += 64) {
      const std::size_t end = std::min(begin + 64, layout.chunk_begins[chunk + 1]);
      double greatest = 0;
      for (std::size_t j = begin; j < end; ++j) greatest = std::max(greatest, std::fabs(double{values[j]}));
      for (std::size_t j = begin; j < end; ++j) {
        double nearest = 0;
        for (int power = 0; power < 7; ++power)
          for (const double value : {greatest / (1 << power), -greatest / (1 << power)})
            if (std::fabs(values[j] - value) < std::fabs(values[j] - nearest)) nearest = value;
        // Half-way, either is the nearest.
        EXPECT_EQ(std::fabs(values[j] - double{sent[j]}), std::fabs(values[j] - nearest)) << j;
        EXPECT_EQ(residual[j], values[j] - sent[j]);
      }
    }
}

TYPED_TEST(Extending, gradient_is_the_difference_of_values) {
  workload::Rosenbrock<TypeParam> workload(2, {0, 1});
  const Vector<TypeParam, float> g("g", 4);
  PhaseTimes times;
  const std::vector<float> at = {-0.5f, 1.25f, 1.5f, 0.75f};
  workload.gradient(this->exec, test::to_device<TypeParam>(at), 1, g, times, {});
  const auto gradient = test::to_host(g);
  constexpr float h = 1.0f / 256;  // exact in single precision, as all of `at` are with it
  for (std::size_t i = 0; i < at.size(); ++i) {
    auto low = at, high = at;
    low[i] -= h;
    high[i] += h;
    const double difference = workload.value(this->exec, test::to_device<TypeParam>(high), 1.0f) -
                              workload.value(this->exec, test::to_device<TypeParam>(low), 1.0f);
    EXPECT_NEAR(gradient[i], difference / (2 * h), 0.02) << i;
  }
}

}  // namespace
}  // namespace onebit
