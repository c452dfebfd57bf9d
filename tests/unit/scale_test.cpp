/// \file scale_test.cpp
/// The model of communication: closed forms against cases worked out by hand and against the simulation of messages,
/// properties that any prediction must have, fits that find planted numbers, and crossovers against direct evaluation.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>

#include "base/error.hpp"
#include "config/input.hpp"
#include "scale/crossover.hpp"
#include "scale/fit.hpp"
#include "scale/model.hpp"
#include "scale/predict.hpp"
#include "scale/simulate.hpp"

namespace onebit::scale {
namespace {

const std::vector<Form> all_forms = {Form::ring,
                                     Form::tree,
                                     Form::rabenseifner,
                                     Form::pairwise,
                                     Form::hierarchical,
                                     Form::pairwise_bf16,
                                     Form::hierarchical_bf16,
                                     Form::compressed,
                                     Form::pairwise_compressed,
                                     Form::hierarchical_compressed};

/// Numbers that are easy to follow by hand: α 10, o 1, a byte 1 on a link; 2, 1 and 1/4 inside; work 0.01 an element.
Machine simple() {
  Machine machine;
  machine.latency = 10;
  machine.bandwidth = 1;
  machine.overhead = 1;
  machine.inside_latency = 2;
  machine.inside_bandwidth = 4;
  machine.reduce = machine.compress = machine.average = machine.decompress = 0.01;
  return machine;
}

double messages_seconds(Form form, const Cluster& cluster, double parameters, const Machine& machine) {
  double sum = 0;
  for (const Stage& stage : stages(form, cluster, parameters, {}, machine)) {
    const Bound* const bound = stage.longest(machine);
    if (bound != nullptr) sum += bound->seconds(machine);
  }
  return sum;
}
double total(Form form, const Cluster& cluster, double parameters, const Machine& machine) {
  return total_seconds(stages(form, cluster, parameters, {}, machine), machine);
}
double simulated(Form form, const Cluster& cluster, double parameters, const Machine& machine) {
  return simulate(schedule(form, cluster, parameters, {}, machine), cluster, machine);
}

TEST(ClosedForms, two_ranks_by_hand) {
  const Machine m = simple();
  const Cluster two{2, 1};
  // 100 elements are 400 bytes, a chunk 200; two messages one after the other, 50 elements added.
  EXPECT_DOUBLE_EQ(total(Form::ring, two, 100, m), 2 * (10 + 1 + 200) + 0.5);
  EXPECT_DOUBLE_EQ(total(Form::pairwise, two, 100, m), 2 * (10 + 1 + 200) + 0.5);
  EXPECT_DOUBLE_EQ(total(Form::rabenseifner, two, 100, m), 2 * (10 + 1 + 200) + 0.5);
  EXPECT_DOUBLE_EQ(total(Form::hierarchical, two, 100, m), 2 * (10 + 1 + 200) + 0.5);
  // The whole vector once, all of it added.
  EXPECT_DOUBLE_EQ(total(Form::tree, two, 100, m), 10 + 1 + 400 + 1.0);
  // A chunk in 16 bits is 100 bytes. Rounding and widening 100 elements are 100 sums, adding those received a sixth.
  for (const Form form : {Form::pairwise_bf16, Form::hierarchical_bf16})
    EXPECT_DOUBLE_EQ(total(form, two, 100, m), 2 * (10 + 1 + 100) + 1.0 + 1.0 / 6) << name(form);
  // A chunk of 50 elements has two sign words and a scale: 12 bytes.
  EXPECT_DOUBLE_EQ(total(Form::compressed, two, 100, m), 2 * (10 + 1 + 12) + 3.0);
  // In parts, compression and average go on while messages travel; decompression does not.
  for (const Form form : {Form::pairwise_compressed, Form::hierarchical_compressed}) {
    EXPECT_DOUBLE_EQ(total(form, two, 100, m), 2 * (10 + 1 + 12) + 1.0) << name(form);
    Machine slow = m;
    slow.compress = 0.5;
    const auto parts = part_seconds(stages(form, two, 100, {}, slow), slow);
    EXPECT_DOUBLE_EQ(parts[static_cast<int>(Part::compress)], 50);
    EXPECT_DOUBLE_EQ(parts[static_cast<int>(Part::all_to_all)], 0);
    EXPECT_DOUBLE_EQ(parts[static_cast<int>(Part::all_gather)], 10 + 1 + 12 - 1);
  }
}

TEST(ClosedForms, four_ranks_by_hand) {
  const Machine m = simple();
  const Cluster four{4, 1};
  // Chunks of 100 bytes.
  EXPECT_DOUBLE_EQ(total(Form::ring, four, 100, m), 6 * (10 + 1 + 100) + 0.75);
  EXPECT_DOUBLE_EQ(total(Form::pairwise, four, 100, m), 2 * (10 + 1 + 300) + 0.75);
  EXPECT_DOUBLE_EQ(total(Form::rabenseifner, four, 100, m), 2 * (10 + 1 + 200) + 2 * (10 + 1 + 100) + 0.75);
  EXPECT_DOUBLE_EQ(total(Form::tree, four, 100, m), 2 * (10 + 1 + 400) + 2.0);
  // 25 elements: one word and a scale, 8 bytes.
  EXPECT_DOUBLE_EQ(total(Form::pairwise_compressed, four, 100, m), 2 * (10 + 1 + 3 * 8) + 1.0);
  // As a library chooses: Bruck's two rounds of two blocks are longer than the direct all-to-all; its all-gather of one
  // block and then two is shorter than the ring's three rounds.
  EXPECT_DOUBLE_EQ(total(Form::compressed, four, 100, m), (10 + 1 + 24) + (10 + 1 + 8 + 10 + 1 + 16) + 3.0);
}

TEST(ClosedForms, two_hosts_of_two_by_hand) {
  const Machine m = simple();
  const Cluster cluster{2, 2};
  // Of the ring's six messages of 100 bytes in a chain half cross a link; a link carries six in all.
  EXPECT_DOUBLE_EQ(messages_seconds(Form::ring, cluster, 100, m),
                   std::max(3 * (10 + 1 + 100) + 3 * (2 + 1 + 25), 10 + 1 + 600));
  // Two ranks of a host send 100 bytes to two ranks of the other, through one link.
  EXPECT_DOUBLE_EQ(messages_seconds(Form::pairwise, cluster, 100, m), 2 * (10 + 1 + 400));
  // Inside: 200 bytes there and back at 4 bytes a second. Between: a link carries two messages of 100 bytes of each of
  // two shards' rings; one ring's latency passes while the other's bytes do.
  EXPECT_DOUBLE_EQ(messages_seconds(Form::hierarchical, cluster, 100, m), 2 * (2 + 1 + 50) + (10 + 1 + 4 * 100));
  // The same dense part before; then shards of 50 elements in chunks of 25 (8 bytes); two messages of a shard inside.
  EXPECT_DOUBLE_EQ(messages_seconds(Form::hierarchical_compressed, cluster, 100, m),
                   (2 + 1 + 50) + 2 * (10 + 1 + 2 * 8) + (2 + 1 + 16 / 4.0));
}

TEST(ClosedForms, a_burst_passes_once_in_a_call) {
  Machine m = simple();
  const double without = messages_seconds(Form::pairwise, {4, 1}, 100, m);  // two stages of 300 bytes
  m.burst = 120;
  EXPECT_DOUBLE_EQ(messages_seconds(Form::pairwise, {4, 1}, 100, m), without - 120);
  m.burst = 400;
  // Nothing is left of the first stage but what its processors send; of the second 200 bytes.
  EXPECT_DOUBLE_EQ(messages_seconds(Form::pairwise, {4, 1}, 100, m), (3 + 10) + (10 + 1 + 200));
  m.burst = 1e6;
  EXPECT_DOUBLE_EQ(messages_seconds(Form::pairwise, {4, 1}, 100, m), 2 * 3 + 2 * 10);  // what processors send
}

TEST(ClosedForms, blocks_of_bruck_are_those_with_the_bit) {
  for (int ranks = 2; ranks < 70; ++ranks)
    for (int distance = 1; distance < ranks; distance *= 2) {
      int blocks = 0;
      for (int other = 0; other < ranks; ++other) blocks += (other & distance) != 0;
      EXPECT_EQ(bruck_blocks(Part::all_to_all, ranks, distance), blocks);
    }
}

TEST(ClosedForms, link_bytes_are_those_of_the_schedule) {
  const Machine m = simple();
  for (const Form form : all_forms)
    for (const Cluster cluster : {Cluster{4, 1}, Cluster{2, 2}, Cluster{4, 4}, Cluster{8, 2}}) {
      double declared = 0, sent = 0;
      for (const Stage& stage : stages(form, cluster, 1000, {}, m)) declared += stage.link_bytes;
      for (const auto& round : schedule(form, cluster, 1000, {}, m))
        for (const Message& message : round)
          if (message.from / cluster.ranks_per_host != message.to / cluster.ranks_per_host) sent += message.bytes;
      EXPECT_NEAR(declared, sent / cluster.hosts, 1e-9 * declared)
          << name(form) << " " << cluster.hosts << "x" << cluster.ranks_per_host;
    }
}

/// Networks from one where latency is everything to one where bandwidth is.
std::vector<Machine> machines() {
  std::vector<Machine> all;
  for (const double latency : {1e-6, 3e-5, 1e-3})
    for (const double bandwidth : {1e7, 1e9})
      for (const double overhead : {0.0, 1e-6}) {
        Machine machine;
        machine.latency = latency;
        machine.bandwidth = bandwidth;
        machine.overhead = overhead;
        machine.inside_latency = latency / 10;
        machine.inside_bandwidth = 1e10;
        all.push_back(machine);
      }
  return all;
}

TEST(Simulation, equals_closed_forms_with_one_rank_on_a_host) {
  for (const Machine& machine : machines())
    for (const Form form : all_forms)
      for (const int hosts : {2, 4, 16, 64})
        for (const double parameters : {1e3, 1e6, 1e8}) {
          const Cluster cluster{hosts, 1};
          const double closed = messages_seconds(form, cluster, parameters, machine);
          EXPECT_NEAR(simulated(form, cluster, parameters, machine) / closed, 1, 1e-6)
              << name(form) << " on " << hosts << " hosts, " << parameters << " parameters, latency " << machine.latency
              << ", bandwidth " << machine.bandwidth << ", overhead " << machine.overhead;
        }
}

TEST(Simulation, is_near_closed_forms_with_several_ranks_on_a_host) {
  for (const Machine& machine : machines())
    for (const Form form : all_forms)
      for (const Cluster cluster : {Cluster{1, 8}, Cluster{2, 4}, Cluster{8, 8}, Cluster{16, 4}})
        for (const double parameters : {1e3, 1e6, 1e8}) {
          const double ratio =
              simulated(form, cluster, parameters, machine) / messages_seconds(form, cluster, parameters, machine);
          EXPECT_GT(ratio, 0.65) << name(form) << " " << cluster.hosts << "x" << cluster.ranks_per_host << ", "
                                 << parameters << " parameters, latency " << machine.latency << ", bandwidth "
                                 << machine.bandwidth << ", overhead " << machine.overhead;
          EXPECT_LT(ratio, 1.2) << name(form) << " " << cluster.hosts << "x" << cluster.ranks_per_host << ", "
                                << parameters << " parameters, latency " << machine.latency << ", bandwidth "
                                << machine.bandwidth << ", overhead " << machine.overhead;
        }
}

TEST(Simulation, queues_where_many_send_to_one) {
  Machine m = simple();
  m.overhead = 0;
  const Cluster five{5, 1};
  // Four messages to host 0 arrive at once and go in one after the other.
  EXPECT_DOUBLE_EQ(simulate({{{1, 0, 100}, {2, 0, 100}, {3, 0, 100}, {4, 0, 100}}}, five, m), 10 + 400);
  // Each rank first sends to rank 0: its link in is busy with the others' while the others' links are idle, ...
  Schedule naive(1), rotated(1);
  for (int distance = 0; distance < 5; ++distance)
    for (int rank = 0; rank < 5; ++rank) {
      if (distance != rank) naive[0].push_back({rank, distance, 100});
      if (distance > 0) rotated[0].push_back({rank, (rank + distance) % 5, 100});
    }
  EXPECT_DOUBLE_EQ(simulate(rotated, five, m), 10 + 400);
  EXPECT_GT(simulate(naive, five, m), 10 + 600);
  // A chain: the second message is posted when the first has arrived.
  EXPECT_DOUBLE_EQ(simulate({{{0, 1, 100}}, {{1, 2, 100}}}, five, m), 2 * (10 + 100));
  // Inside a host nothing crosses the link.
  EXPECT_DOUBLE_EQ(simulate({{{0, 1, 100}}}, {1, 2}, m), 2 + 25);
}

TEST(ClosedForms, are_monotonic) {
  std::mt19937 random(1);
  const auto draw = [&](double low, double high) {
    return low * std::pow(high / low, std::uniform_real_distribution<>(0, 1)(random));
  };
  for (int trial = 0; trial < 300; ++trial) {
    Machine m;
    m.latency = draw(1e-7, 1e-2);
    m.bandwidth = draw(1e6, 1e11);
    m.overhead = draw(1e-8, 1e-4);
    m.inside_latency = m.latency * draw(1e-3, 1);
    m.inside_bandwidth = draw(1e8, 1e11);
    m.reduce = m.compress = m.average = m.decompress = draw(1e-12, 1e-9);
    const Cluster cluster{1 << (random() % 8), 1 << (random() % 4)};
    const double d = draw(1e2, 1e10);
    for (const Form form : all_forms) {
      const double time = total(form, cluster, d, m) * (1 + 1e-12);
      EXPECT_GE(time, total(form, cluster, d / 2, m)) << name(form);
      Machine better = m;
      better.bandwidth *= 2;
      EXPECT_LE(total(form, cluster, d, better), time) << name(form);
      better = m;
      better.latency /= 2;
      EXPECT_LE(total(form, cluster, d, better), time) << name(form);
      better = m;
      better.compress = better.reduce = better.average = better.decompress = 0;
      EXPECT_LE(total(form, cluster, d, better), time) << name(form);
      const double empty = messages_seconds(form, cluster, 0, m) * (1 + 1e-12);
      EXPECT_LE(messages_seconds(form, {(cluster.hosts + 1) / 2, cluster.ranks_per_host}, 0, m), empty) << name(form);
    }
  }
}

TEST(LeastSquares, finds_the_numbers_and_none_below_zero) {
  const std::vector<double> exact = least_squares({{1, 2}, {3, 4}, {5, 7}}, {8, 18, 31});
  EXPECT_NEAR(exact[0], 2, 1e-9);
  EXPECT_NEAR(exact[1], 3, 1e-9);
  // Without the bound x would be (2, -1); with it the second is 0 and the first (1*0 + 1*1 + 1*2) / 3.
  const std::vector<double> bounded = least_squares({{1, 2}, {1, 1}, {1, 0}}, {0, 1, 2});
  EXPECT_NEAR(bounded[0], 1, 1e-9);
  EXPECT_EQ(bounded[1], 0);
  // Columns that say the same: one of them is enough.
  const std::vector<double> same = least_squares({{1, 2}, {2, 4}}, {3, 6});
  EXPECT_NEAR(same[0] + 2 * same[1], 3, 1e-9);
}

/// Rows as a machine with these numbers would give them, each wrong by up to `noise`.
std::vector<Measurement> planted(const std::string& collective, const Machine& machine, double share, double noise) {
  std::mt19937 random(7);
  std::vector<Measurement> rows;
  for (const int hosts : {2, 3, 4, 8})
    for (const double link : {6e6, 25e6, 1.2e8})
      for (const double parameters : {1e4, 1e6, 2.5e7}) {
        Measurement row;
        row.collective = collective;
        row.parameters = parameters;
        row.ranks = row.hosts = hosts;
        row.link = link;
        Machine m = machine;
        m.bandwidth = share * link;
        const auto all = stages(form_of_collective(collective), row.cluster(), parameters, {}, m);
        const auto parts = part_seconds(all, m);
        row.compress = parts[static_cast<int>(Part::compress)];
        row.average = parts[static_cast<int>(Part::average)];
        row.decompress = parts[static_cast<int>(Part::decompress)];
        row.seconds = total_seconds(all, m) * (1 + noise * std::uniform_real_distribution<>(-1, 1)(random));
        rows.push_back(row);
      }
  return rows;
}

TEST(Fit, recovers_planted_numbers) {
  Machine m;
  m.latency = 3e-4;
  m.inside_bandwidth = 1e10;
  m.reduce = 2e-9;
  m.compress = 3e-9;
  m.average = 5e-9;
  m.decompress = 1e-9;
  Machine start;  // what an input says
  start.inside_bandwidth = 1e10;
  start.reduce = start.compress = start.average = start.decompress = 1e-10;
  for (const char* collective :
       {"mpi_allreduce", "mpi_reduce_scatter", "pairwise_allreduce", "mpi_compressed", "pairwise_compressed"}) {
    SCOPED_TRACE(collective);
    const std::vector<Fit> exact = fit(planted(collective, m, 0.8, 0), start, 0);
    ASSERT_EQ(exact.size(), 1u);
    EXPECT_TRUE(exact[0].work_fitted);
    EXPECT_NEAR(exact[0].share, 0.8, 1e-6);
    EXPECT_NEAR(exact[0].latency, 3e-4, 1e-9);
    if (is_compressed(exact[0].form)) {
      EXPECT_NEAR(exact[0].compress, 3e-9, 1e-14);
      EXPECT_NEAR(exact[0].average, 5e-9, 1e-14);
      EXPECT_NEAR(exact[0].decompress, 1e-9, 1e-14);
    } else {
      EXPECT_NEAR(exact[0].reduce, 2e-9, 1e-14);
    }
    EXPECT_LT(exact[0].largest_error, 1e-6);
    const std::vector<Fit> noisy = fit(planted(collective, m, 0.8, 0.05), start, 0);
    EXPECT_NEAR(noisy[0].share, 0.8, 0.08);
    EXPECT_LT(noisy[0].median_error, 0.06);
    EXPECT_GT(noisy[0].median_error, 0.002);
  }
}

TEST(Fit, leaves_work_to_the_phases_where_one_rate_was_measured) {
  Machine m;
  m.latency = 1e-4;
  m.compress = m.average = m.decompress = 4e-9;
  std::vector<Measurement> rows = planted("mpi_compressed", m, 0.7, 0);
  rows.erase(std::remove_if(rows.begin(), rows.end(), [](const Measurement& row) { return row.link != 25e6; }),
             rows.end());
  const std::vector<Fit> found = fit(rows, Machine(), 0);
  EXPECT_FALSE(found[0].work_fitted);
  EXPECT_NEAR(found[0].compress, 4e-9, 1e-13);
  EXPECT_NEAR(found[0].share, 0.7, 1e-4);
}

TEST(Fit, shared_cores_make_work_longer) {
  EXPECT_EQ(slowdown(4, 0), 1);
  EXPECT_EQ(slowdown(2, 4), 1);
  EXPECT_EQ(slowdown(8, 4), 2);
  Machine m;
  m.reduce = 2e-9;
  std::vector<Measurement> rows = planted("pairwise_allreduce", m, 0.9, 0);
  for (Measurement& row : rows) {
    const double work = row.parameters * (row.ranks - 1) / row.ranks * m.reduce;
    row.seconds += (work + 2 * 5e-3) * (slowdown(row.ranks, 2) - 1);  // two rounds wait for their rank's turn
  }
  Machine start;
  start.reduce = 1e-9;
  const Fit found = fit(rows, start, 2)[0];
  EXPECT_NEAR(found.reduce, 2e-9, 1e-13);
  EXPECT_NEAR(found.wait, 5e-3, 1e-8);
  EXPECT_NEAR(found.share, 0.9, 1e-6);
  EXPECT_LT(found.largest_error, 1e-6);
  EXPECT_EQ(fit(rows, start, 0)[0].wait, 0);
}

config::Input parsed(const std::string& text) { return config::parse(text, "a.yaml", {}); }

TEST(Model, crossovers_agree_with_direct_evaluation) {
  for (const char* text : {"predict: {ranks_per_host: 8}", "predict: {ranks_per_host: 1, message_overhead_us: 10}",
                           "predict: {ranks_per_host: 4, memory_bandwidth_gbyte_per_s: 5, parameters: 1e6}",
                           "predict: {ranks_per_host: 1, overlap_buckets: 10, backward_ms: 200}"}) {
    SCOPED_TRACE(text);
    const config::Input input = parsed(text);
    const Model model(input);
    int crossings = 0;
    for (const int ranks : {8, 64, 1024})
      for (const double gbit : {0.1, 10.0, 400.0}) {
        const Cluster cluster = model.cluster(ranks);
        const auto gain = [&](double parameters, double link) {
          return model.step(*model.best(false, cluster, parameters, link), cluster, parameters, link).step -
                 model.step(*model.best(true, cluster, parameters, link), cluster, parameters, link).step;
        };
        const double link = gbit * 1.25e8, d = input.predict.parameters;
        const double above = crossover_parameters(model, cluster, link);
        if (std::isfinite(above) && above > 0) {
          ++crossings;
          for (const double factor : {1 + 1e-9, 2.0, 10.0, 100.0})
            EXPECT_GT(gain(above * factor, link), 0) << ranks << " ranks at " << gbit << ", times " << factor;
          EXPECT_LE(gain(above * (1 - 1e-9), link), 1e-12) << ranks << " ranks at " << gbit;
        } else {
          EXPECT_EQ(gain(1e13, link) > 0, above == 0) << ranks << " ranks at " << gbit;
        }
        const double below = crossover_link(model, cluster, d);
        if (std::isfinite(below) && below > 0) {
          ++crossings;
          for (const double factor : {1 + 1e-9, 2.0, 10.0, 100.0})
            EXPECT_GT(gain(d, below / factor), 0) << ranks << " ranks, a rate of 1/" << factor;
          EXPECT_LE(gain(d, below * (1 + 1e-9)), 1e-12) << ranks << " ranks";
        } else {
          EXPECT_EQ(gain(d, 1e2) > 0, std::isinf(below)) << ranks << " ranks";
        }
      }
    EXPECT_GT(crossings, 0);
  }
}

TEST(Model, limits_of_one_average_agree_with_direct_evaluation) {
  const config::Input input = parsed(
      "predict: {ranks_per_host: 4, overlap_buckets: 16, bytes_per_element: 2, error: 0.2, compressed_buckets: 4, "
      "least_gain: 0.05, "
      "collectives: [ring, pairwise_bf16, compressed, hierarchical_compressed]}");
  const Model model(input);
  int crossings = 0;
  for (const int ranks : {8, 64, 1024})
    for (const Candidate& candidate : model.candidates()) {
      if (!is_compressed(candidate.form)) continue;
      const Cluster cluster = model.cluster(ranks);
      const double d = input.predict.parameters;
      const RateLimit limit = crossover_link(model, candidate, cluster, d);
      EXPECT_LE(limit.least, limit.expected);
      EXPECT_LE(limit.expected, limit.greatest);
      const auto gain = [&](double link, double compressed, double dense) {
        double shortest = infinity;
        for (const Candidate& other : model.candidates())
          if (!is_compressed(other.form))
            shortest = std::min(shortest, model.step(other, cluster, d, link, dense).step);
        return 0.95 * shortest - model.step(candidate, cluster, d, link, compressed).step;
      };
      const auto check = [&](double rate, double compressed, double dense) {
        if (rate == 0 || std::isinf(rate)) return;
        ++crossings;
        EXPECT_GT(gain(rate * (1 - 1e-9), compressed, dense), 0);
        EXPECT_LE(gain(rate * (1 + 1e-9), compressed, dense), 1e-12);
      };
      check(limit.least, 1.2, 0.8);
      check(limit.expected, 1, 1);
      check(limit.greatest, 0.8, 1.2);
    }
  EXPECT_GT(crossings, 6);
}

TEST(Model, buckets_bits_and_local_steps_of_compressed_averages) {
  const auto step = [](const std::string& keys) {
    const config::Input input =
        parsed("predict: {ranks_per_host: 1, backward_ms: 100, collectives: [pairwise_compressed]" + keys + "}");
    const Model model(input);
    return model.step(model.candidates()[0], {16, 1}, 1e8, 1.25e8);
  };
  const Step plain = step("");
  EXPECT_EQ(plain.hidden, 0);
  const Step overlapped = step(", compressed_buckets: 16");
  EXPECT_GT(overlapped.hidden, 0);
  EXPECT_LE(overlapped.hidden, 0.1);
  EXPECT_LT(overlapped.step, plain.step);
  EXPECT_GE(step(", compressed_bits: 4").link_bytes, 3.99 * plain.link_bytes);
  const Step local = step(", steps_per_exchange: 4");
  EXPECT_NEAR(local.step, 0.15 + plain.call / 4, 1e-12);
  EXPECT_EQ(local.call, plain.call);
}

TEST(Model, overlap_hides_no_more_than_the_backward_pass) {
  const std::string common = "ranks_per_host: 1, backward_ms: 100, collectives: [ring, compressed]";
  const config::Input without = parsed("predict: {" + common + "}");
  const Model behind_it(without);
  const config::Input with = parsed("predict: {overlap_buckets: 10, " + common + "}");
  const Model overlapped(with);
  for (const double gbit : {0.1, 10.0, 100.0, 1000.0}) {
    const Cluster cluster{16, 1};
    const double link = gbit * 1.25e8;
    const Candidate dense = overlapped.candidates()[0], compressed = overlapped.candidates()[1];
    const Step step = overlapped.step(dense, cluster, 1e8, link);
    EXPECT_GT(step.hidden, 0);
    EXPECT_LE(step.hidden, 0.1);
    EXPECT_LE(step.step, behind_it.step(dense, cluster, 1e8, link).step + 1e-3);
    EXPECT_NEAR(step.step, 0.04 + 0.1 + 0.01 + step.call - step.hidden, 1e-12);
    EXPECT_EQ(overlapped.step(compressed, cluster, 1e8, link).hidden, 0);
  }
}

/// A collective.csv with a column more than needed, and in another order.
std::string csv(const std::string& rows) {
  const std::string path = ::testing::TempDir() + "scale_test_collective.csv";
  std::ofstream(path)
      << "hosts,collective,parameters,ranks,new_column,p50_s,compress_s,average_s,decompress_s,network\n"
      << rows;
  return path;
}

TEST(Measurements, are_read_by_the_names_of_columns) {
  const auto rows = read_measurements(
      csv("2,pairwise_compressed,1000,4,x,0.5,0.1,0.2,0.05,\"netlab 2 hosts x 2 ranks, links of 50 Mbit/s (measured "
          "48.0), round trip 90 us\"\n1,mpi_allreduce,1000,2,,0.25,0,0,0,\n1,mpi_allreduce,1000,1,,0.25,0,0,0,\n"),
      0);
  ASSERT_EQ(rows.size(), 2u) << "one rank communicates with nobody";
  EXPECT_EQ(rows[0].collective, "pairwise_compressed");
  EXPECT_EQ(rows[0].hosts, 2);
  EXPECT_EQ(rows[0].cluster().ranks_per_host, 2);
  EXPECT_DOUBLE_EQ(rows[0].link, 48e6 / 8);
  EXPECT_DOUBLE_EQ(rows[0].seconds, 0.5);
  EXPECT_DOUBLE_EQ(rows[0].average, 0.2);
  EXPECT_EQ(rows[1].link, 0);
  EXPECT_DOUBLE_EQ(read_measurements(csv("2,mpi_allreduce,9,2,,1,0,0,0,\n"), 1e6)[0].link, 1e6);
}

TEST(Measurements, wrong_files_are_refused) {
  const auto refusal = [](const std::string& path) -> std::string {
    try {
      read_measurements(path, 0);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refusal("no/such.csv").find("no/such.csv"), std::string::npos);
  const struct {
    const char* row;
    const char* part;
  } cases[] = {{"2,gossip,9,2,,1,0,0,0,\n", "gossip"},
               {"2,mpi_allreduce,9,2,,x,0,0,0,\n", "p50_s is 'x'"},
               {"2,mpi_allreduce,9,2,,-1,0,0,0,\n", "p50_s is '-1'"},
               {"2,mpi_allreduce,9,3,,1,0,0,0,\n", "3 ranks on 2 hosts"},
               {"2,mpi_allreduce,9,2,,1,0,0,0,\n", "line rate"},
               {"2,mpi_allreduce,9\n", "3 cells for 10"},
               {"0,mpi_allreduce,9,2,,1,0,0,0,\n", "hosts is '0'"}};
  for (const auto& one : cases) {
    const std::string message = refusal(csv(one.row));
    EXPECT_NE(message.find(one.part), std::string::npos) << message;
    EXPECT_NE(message.find("scale_test_collective.csv:2"), std::string::npos) << message;
    EXPECT_NE(message.find("remedy: "), std::string::npos) << message;
  }
  std::ofstream(csv("")) << "a,b\n1,2\n";
  EXPECT_NE(refusal(::testing::TempDir() + "scale_test_collective.csv").find("no column 'collective'"),
            std::string::npos);
}

}  // namespace
}  // namespace onebit::scale
