/// \file optim_test.cpp
/// Every algorithm against an independent plain reference: double precision, n ranks simulated serially, on random
/// gradients that every rank can make for itself. Also clipping, weight decay, bias correction and bitwise replicas.

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "../support.hpp"
#include "base/random.hpp"
#include "optim/algorithm.hpp"

namespace {

using namespace onebit;
using Values = std::vector<double>;

constexpr int steps = 50;

/// Tensors of a small model; the second one does not decay and the sizes share no factor with 32.
TensorTable make_tensors() {
  TensorTable tensors;
  tensors.add("weight", {13, 7}, true);
  tensors.add("bias", {13}, false);
  tensors.add("output.weight", {5, 21}, true);
  return tensors;
}

/// Gradient of one rank: a mean that all ranks share and noise of its own, different from tensor to tensor.
Values gradient(const TensorTable& tensors, int rank, int step) {
  Values g;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Philox4 own = philox(stream_key(7, Stream::noise), i, static_cast<std::uint64_t>(step) * 64 + rank);
    const Philox4 shared = philox(stream_key(8, Stream::noise), i, 0);
    g.push_back(static_cast<float>(0.1 * (1 + i / 100) *
                                   (normal(shared.word[0], shared.word[1]) + normal(own.word[0], own.word[1]))));
  }
  return g;
}

double initial(std::size_t i) { return 0.01 * static_cast<double>(i % 17) - 0.05; }

/// The compressor of docs/algorithms.md on `c`, with the group of each element given; c becomes c − C(c).
Values compress(Values& c, const std::vector<std::size_t>& groups, bool l1) {
  std::vector<double> norm(c.size() + 1), count(c.size() + 1);
  for (std::size_t i = 0; i < c.size(); ++i) {
    norm[groups[i]] += l1 ? std::fabs(c[i]) : c[i] * c[i];
    count[groups[i]] += 1;
  }
  Values compressed;
  for (std::size_t i = 0; i < c.size(); ++i) {
    const double mean = norm[groups[i]] / count[groups[i]];
    const double scale = l1 ? mean : std::sqrt(mean);
    compressed.push_back(c[i] >= 0 ? scale : -scale);
    c[i] -= compressed.back();
  }
  return compressed;
}

/// All ranks and servers of a compressed allreduce in one place. A server's chunk is a range of whole words.
class Reference {
public:
  Reference(const config::Input& input, const TensorTable& tensors, int ranks)
      : m_input(input),
        m_tensors(tensors),
        m_ranks(ranks),
        m_worker(ranks, Values(tensors.size())),
        m_server(tensors.size()),
        m(tensors.size()),
        v(tensors.size()) {
    const std::size_t words = (tensors.size() + 31) / 32, chunk = (words + ranks - 1) / ranks * 32;
    const auto& group = input.compression.group;
    std::size_t next = 0, last_chunk = 0, last_part = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::size_t in_chunk = i % chunk;
      const std::size_t part = group.word == "tensor" ? tensors.at_element(i).offset
                               : group.word.empty()   ? in_chunk / group.number
                                                      : 0;
      if (i > 0 && (i / chunk != last_chunk || part != last_part)) ++next;
      last_chunk = i / chunk;
      last_part = part;
      m_groups.push_back(next);
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) x.push_back(static_cast<float>(initial(i)));
  }

  void step(int t, double lr) {
    const std::size_t d = x.size();
    std::vector<Values> g;
    Values mean(d);
    double mean_square = 0;
    for (int rank = 0; rank < m_ranks; ++rank) {
      g.push_back(gradient(m_tensors, rank, t));
      for (std::size_t i = 0; i < d; ++i) mean[i] += g[rank][i] / m_ranks;
      mean_square += std::inner_product(g[rank].begin(), g[rank].end(), g[rank].begin(), 0.0) / m_ranks;
    }
    const auto& in = m_input.optimizer;
    const long t_w = m_input.warmup.steps.number;
    const bool frozen = in.algorithm != "adam" && t > t_w;
    const double norm =
        frozen ? std::sqrt(mean_square) : std::sqrt(std::inner_product(mean.begin(), mean.end(), mean.begin(), 0.0));
    const double factor = in.clip > 0 && norm > in.clip ? in.clip / norm : 1;
    if (!frozen) {
      for (std::size_t i = 0; i < d; ++i) {
        m[i] = in.beta1 * m[i] + (1 - in.beta1) * factor * mean[i];
        v[i] = in.beta2 * v[i] + (1 - in.beta2) * factor * factor * mean[i] * mean[i];
      }
    } else {
      std::vector<Values> local(m_ranks, m);
      for (int rank = 0; rank < m_ranks; ++rank)
        for (std::size_t i = 0; i < d; ++i) local[rank][i] = in.beta1 * m[i] + (1 - in.beta1) * factor * g[rank][i];
      m = in.algorithm == "onebit_adam" ? compressed_average(local) : average(local);
    }
    const double corrected = static_cast<double>(frozen ? t_w : t);
    const double c1 = in.bias_correction ? 1 / (1 - std::pow(in.beta1, corrected)) : 1;
    const double c2 = in.bias_correction ? 1 / (1 - std::pow(in.beta2, corrected)) : 1;
    for (std::size_t i = 0; i < d; ++i) {
      const double decay = m_tensors.at_element(i).decays ? in.weight_decay : 0;
      x[i] -= lr * (c1 * m[i] / (std::sqrt(c2 * v[i]) + in.epsilon) + decay * x[i]);
    }
  }

  Values x;

private:
  Values average(const std::vector<Values>& local) const {
    Values sum(x.size());
    for (const Values& one : local)
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += one[i] / m_ranks;
    return sum;
  }

  Values compressed_average(std::vector<Values> local) {
    const bool l1 = m_input.compression.scale == config::Scale::l1;
    const bool whole = m_input.compression.group.word == "vector";
    for (int rank = 0; rank < m_ranks; ++rank) {
      for (std::size_t i = 0; i < x.size(); ++i) m_worker[rank][i] += local[rank][i];
      local[rank] = compress(m_worker[rank], whole ? std::vector<std::size_t>(x.size()) : m_groups, l1);
    }
    const Values mean = average(local);
    for (std::size_t i = 0; i < x.size(); ++i) m_server[i] += mean[i];
    return compress(m_server, m_groups, l1);  // all servers at once: no group crosses a chunk
  }

  const config::Input& m_input;
  const TensorTable& m_tensors;
  int m_ranks;
  std::vector<Values> m_worker;
  Values m_server, m, v;
  std::vector<std::size_t> m_groups;
};

config::Input make_input(const std::string& algorithm) {
  config::Input input;
  input.optimizer.algorithm = algorithm;
  input.optimizer.lr = 0.01;
  input.optimizer.beta2 = 0.99;
  input.train.steps = steps;
  input.warmup.steps = {"", 20};
  return input;
}

/// Runs the algorithm and the reference side by side.
template <class Exec>
void compare(const config::Input& input) {
  const Communicator world;
  const Exec exec;
  const TensorTable tensors = make_tensors();
  const auto transport = comm::make_transport<Exec>(comm::TransportKind::automatic, world);
  const auto algorithm = optim::make_algorithm<Exec>({input, tensors, *transport, world.rank(), world.size()});
  Reference reference(input, tensors, world.size());
  const std::size_t d = tensors.size();
  const Vector<Exec, float> x = test::to_device<Exec>(std::vector<float>(reference.x.begin(), reference.x.end()));
  PhaseTimes times;
  for (int t = 1; t <= steps; ++t) {
    const Values mine = gradient(tensors, world.rank(), t);
    const Vector<Exec, float> g = test::to_device<Exec>(std::vector<float>(mine.begin(), mine.end()));
    double square = std::inner_product(mine.begin(), mine.end(), mine.begin(), 0.0);
    world.sum(&square, 1);
    const double lr = optim::learning_rate(input, t);
    algorithm->step(exec, x, g, {t, lr, square / world.size()}, times);
    reference.step(t, lr);
    const std::vector<float> updated = test::to_host(x);
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < d; ++i) {
      difference += (updated[i] - reference.x[i]) * (updated[i] - reference.x[i]);
      size += reference.x[i] * reference.x[i];
    }
    ASSERT_LE(std::sqrt(difference / size), 1e-6) << input.optimizer.algorithm << " at step " << t;
    const std::vector<double> bits(updated.begin(), updated.end());
    const std::vector<double> all = world.gather(bits.data(), static_cast<int>(d));
    for (int rank = 0; rank < world.size(); ++rank)
      ASSERT_TRUE(std::equal(bits.begin(), bits.end(), all.begin() + rank * d)) << "rank " << rank << " differs";
  }
}

template <class Exec>
class Optim : public ::testing::Test {};
TYPED_TEST_SUITE(Optim, test::Backends, test::BackendNames);

TYPED_TEST(Optim, adam_is_its_reference) {
  config::Input input = make_input("adam");
  compare<TypeParam>(input);
  input.optimizer.bias_correction = true;
  input.optimizer.weight_decay = 0.1;
  compare<TypeParam>(input);
  input.optimizer.clip = 0.5;
  compare<TypeParam>(input);
}

TYPED_TEST(Optim, frozen_variance_is_its_reference) {
  config::Input input = make_input("onebit_adam_32bit");
  compare<TypeParam>(input);
  input.optimizer.clip = 1.0;
  input.optimizer.bias_correction = true;
  compare<TypeParam>(input);
}

TYPED_TEST(Optim, onebit_adam_is_its_reference) {
  for (const config::Scale scale : {config::Scale::l1, config::Scale::l2})
    for (const char* group : {"vector", "chunk", "tensor", "32"}) {
      config::Input input = make_input("onebit_adam");
      input.compression.scale = scale;
      input.compression.group =
          std::isdigit(group[0]) != 0 ? config::NumberOrWord{"", std::atoi(group)} : config::NumberOrWord{group, 0};
      input.optimizer.weight_decay = 0.01;
      compare<TypeParam>(input);
    }
  config::Input input = make_input("onebit_adam");
  input.optimizer.clip = 1.0;
  compare<TypeParam>(input);
}

}  // namespace
