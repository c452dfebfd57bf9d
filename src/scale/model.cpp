/// \file model.cpp
/// See model.hpp. Each function that makes stages is one textbook algorithm.

#include "scale/model.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

namespace onebit::scale {
namespace {

constexpr const char* form_names[form_count] = {"ring",
                                                "tree",
                                                "rabenseifner",
                                                "pairwise",
                                                "hierarchical",
                                                "pairwise_bf16",
                                                "hierarchical_bf16",
                                                "compressed",
                                                "pairwise_compressed",
                                                "hierarchical_compressed"};

/// Work of an average in 16 bits on an element, in sums of two floats, each by the bytes that it reads and writes:
/// rounding and widening move 6, adding one that was received 2, and a sum 12.
constexpr double rounding_work = 6.0 / 12, received_work = 2.0 / 12;

int floor_log2(int n) { return n < 2 ? 0 : 1 + floor_log2(n / 2); }
int ceil_log2(int n) { return n < 2 ? 0 : 1 + floor_log2(n - 1); }

/// `laps` times around the ring (1: reduce-scatter or all-gather, 2: both) with messages of `bytes`. `sharing` rings
/// share each link. The messages of a chunk form a chain, which crosses each host's link once a lap.
Stage ring(Part part, const Cluster& cluster, double laps, double bytes, double sharing = 1) {
  const double n = cluster.ranks(), rounds = laps * (n - 1);
  const double crossings = cluster.hosts > 1 ? rounds * cluster.hosts / n : 0, others = rounds - crossings;
  const double link_bytes = cluster.hosts > 1 ? rounds * bytes * sharing : 0;
  Stage stage{part, {{crossings, crossings * bytes, others, others * bytes, rounds}}};
  stage.link_bytes = link_bytes;
  if (cluster.hosts > 1) stage.bounds.push_back({1, link_bytes, 0, 0, 1});
  if (cluster.ranks_per_host > 1) stage.bounds.push_back({0, 0, 1, rounds * bytes, 1});
  return stage;
}

/// Each rank sends `bytes` to each other rank, all posted at once.
Stage direct(Part part, const Cluster& cluster, double bytes, double sharing = 1) {
  const double n = cluster.ranks(), r = cluster.ranks_per_host;
  Stage stage{part, {}};
  if (cluster.hosts > 1) {
    stage.link_bytes = r * (n - r) * bytes * sharing;
    stage.bounds.push_back({1, stage.link_bytes, 0, 0, 1});
    stage.bounds.push_back({1, bytes, 0, 0, n - 1});
  }
  if (r > 1) {
    stage.bounds.push_back({0, 0, 1, (r - 1) * bytes, 1});
    stage.bounds.push_back({0, 0, 1, bytes, n - 1});
  }
  return stage;
}

/// A round in which each rank sends `bytes` to another. \param crossing ranks of a host with a partner on another host;
/// their messages queue at the link
Stage round_of(Part part, double crossing, double bytes) {
  Stage stage{part, {}};
  if (crossing == 0)
    stage.bounds.push_back({0, 0, 1, bytes, 1});
  else
    stage.bounds.push_back({1, crossing * bytes, 0, 0, 1});
  stage.link_bytes = crossing * bytes;
  return stage;
}
/// Each rank exchanges with the rank whose number differs in one bit, as if hosts had a power of two of ranks.
Stage exchange(const Cluster& cluster, int distance, double bytes) {
  return round_of(Part::allreduce, distance < cluster.ranks_per_host ? 0 : cluster.ranks_per_host, bytes);
}

/// Exchanges with the ranks at distance 1, 2, 4, …: of the whole vector of `bytes` (recursive doubling), or of a half,
/// a quarter, … and back, the longest between the nearest ranks. If n is not a power of two, the ranks beyond one send
/// their vectors to a neighbour first and get the result last.
std::vector<Stage> exchanges(const Cluster& cluster, double bytes, bool halves) {
  std::vector<Stage> rounds;
  const int n = cluster.ranks(), steps = floor_log2(n);
  for (int step = 0; step < steps; ++step)
    for (int pass = 0; pass < (halves ? 2 : 1); ++pass)
      rounds.push_back(exchange(cluster, 1 << step, halves ? bytes / std::ldexp(1.0, step + 1) : bytes));
  if ((n & (n - 1)) != 0)
    for (int pass = 0; pass < 2; ++pass) rounds.push_back(exchange(cluster, 1, bytes));
  return rounds;
}

/// Each rank sends some of its blocks to the rank at distance 1, 2, 4, …: all-gather or all-to-all of blocks of `bytes`
/// in ⌈log2 n⌉ rounds (Bruck et al. 1997).
std::vector<Stage> bruck(Part part, const Cluster& cluster, double bytes) {
  std::vector<Stage> rounds;
  const int n = cluster.ranks();
  for (int distance = 1; distance < n; distance *= 2) {
    rounds.push_back(round_of(part, cluster.hosts > 1 ? std::min(distance, cluster.ranks_per_host) : 0,
                              bruck_blocks(part, n, distance) * bytes));
    rounds.back().logarithmic = true;
  }
  return rounds;
}

Stage work(Part part, double elements, Cost cost) {
  Stage stage{part, {}};
  stage.elements = elements;
  stage.cost = cost;
  return stage;
}

std::vector<Stage> stages_of(Form form, const Cluster& cluster, double parameters, const Width& width,
                             const Machine& machine) {
  const int n = cluster.ranks(), hosts = cluster.hosts, per_host = cluster.ranks_per_host;
  const double d = parameters, bytes = d * width.dense_bytes;
  if (n == 1 && !is_compressed(form)) return {};
  const Cluster host{1, per_host}, between{hosts, 1};
  const auto reduced = [&](Part part, double elements) { return work(part, elements, &Machine::reduce); };
  const auto joined = [](std::vector<Stage> all, const std::vector<Stage>& more) {
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const auto faster = [&](const Stage& one, const std::vector<Stage>& many) {
    return one.seconds(machine) <= total_seconds(many, machine) ? std::vector<Stage>{one} : many;
  };

  switch (form) {
    case Form::ring:
      return {ring(Part::allreduce, cluster, 2, bytes / n), reduced(Part::allreduce, d * (n - 1) / n)};
    case Form::tree:
      return joined(exchanges(cluster, bytes, false), {reduced(Part::allreduce, d * ceil_log2(n))});
    case Form::rabenseifner: {
      const double added = 1 - std::ldexp(1.0, -floor_log2(n)), folded = (n & (n - 1)) != 0;
      return joined(exchanges(cluster, bytes, true), {reduced(Part::allreduce, d * (added + folded))});
    }
    case Form::pairwise:
      return {direct(Part::allreduce, cluster, bytes / n), reduced(Part::allreduce, d * (n - 1) / n),
              direct(Part::allreduce, cluster, bytes / n)};
    case Form::hierarchical:
      return {ring(Part::allreduce, host, 1, bytes / per_host),
              reduced(Part::allreduce, d * (per_host - 1) / per_host + d / per_host * (hosts - 1) / hosts),
              ring(Part::allreduce, between, 2, bytes / n, per_host), ring(Part::allreduce, host, 1, bytes / per_host)};
    case Form::pairwise_bf16:
      return {reduced(Part::allreduce, d * rounding_work), direct(Part::allreduce, cluster, 2 * d / n),
              reduced(Part::allreduce, d * received_work), direct(Part::allreduce, cluster, 2 * d / n),
              reduced(Part::allreduce, d * rounding_work)};
    case Form::hierarchical_bf16: {
      const double shard = d / per_host, message = 2 * shard / hosts;
      return {ring(Part::allreduce, host, 1, bytes / per_host),
              reduced(Part::allreduce, d * (per_host - 1) / per_host + shard * (rounding_work + received_work)),
              direct(Part::allreduce, between, message, per_host),
              direct(Part::allreduce, between, message, per_host),
              ring(Part::allreduce, host, 1, 2 * shard),
              reduced(Part::allreduce, d * rounding_work)};
    }
    case Form::compressed:
    case Form::pairwise_compressed: {
      const double message = message_bytes(d / n, width.compressed_bits);
      std::vector<Stage> spread = {direct(Part::all_to_all, cluster, message)};
      std::vector<Stage> gather = {direct(Part::all_gather, cluster, message)};
      if (form == Form::compressed) {
        spread = faster(spread.front(), bruck(Part::all_to_all, cluster, message));
        gather = faster(ring(Part::all_gather, cluster, 1, message), bruck(Part::all_gather, cluster, message));
      }
      spread.front().overlaps = gather.front().overlaps = form == Form::pairwise_compressed;
      std::vector<Stage> all = {work(Part::compress, d, &Machine::compress)};
      all = joined(joined(all, spread), {work(Part::average, d, &Machine::average)});
      return joined(joined(all, gather), {work(Part::decompress, d, &Machine::decompress)});
    }
    case Form::hierarchical_compressed: {
      const double shard = d / per_host, message = message_bytes(shard / hosts, width.compressed_bits);
      Stage spread = direct(Part::all_to_all, between, message, per_host);
      Stage gather = direct(Part::all_gather, between, message, per_host);
      spread.overlaps = gather.overlaps = true;
      return {ring(Part::reduce_scatter, host, 1, bytes / per_host),
              reduced(Part::reduce_scatter, d * (per_host - 1) / per_host),
              work(Part::compress, shard, &Machine::compress),
              spread,
              work(Part::average, shard, &Machine::average),
              gather,
              ring(Part::all_gather, host, 1, message * hosts),
              work(Part::decompress, d, &Machine::decompress)};
    }
  }
  throw std::logic_error("a form without stages");
}

}  // namespace

int bruck_blocks(Part part, int ranks, int distance) {
  if (part == Part::all_gather) return std::min(distance, ranks - distance);
  // The blocks whose number has the bit `distance`.
  return ranks / (2 * distance) * distance + std::max(0, ranks % (2 * distance) - distance);
}

const char* name(Form form) { return form_names[static_cast<int>(form)]; }

Form form_of(const std::string& name) {
  const auto found = std::find(std::begin(form_names), std::end(form_names), name);
  if (found == std::end(form_names)) throw std::logic_error("no form is called " + name);
  return static_cast<Form>(found - std::begin(form_names));
}

double Bound::seconds(const Machine& machine) const {
  return messages * machine.latency + bytes / machine.bandwidth + inside_messages * machine.inside_latency +
         inside_bytes / machine.inside_bandwidth + overheads * machine.overhead;
}

const Bound* Stage::longest(const Machine& machine) const {
  const auto found = std::max_element(bounds.begin(), bounds.end(), [&](const Bound& a, const Bound& b) {
    return a.seconds(machine) < b.seconds(machine);
  });
  return found == bounds.end() ? nullptr : &*found;
}

double Stage::seconds(const Machine& machine) const {
  const Bound* const bound = longest(machine);
  return (bound != nullptr ? bound->seconds(machine) : 0) + (cost != nullptr ? elements * machine.*cost : 0);
}

double message_bytes(double elements, int bits) { return 4 * bits * std::ceil(elements / 32) + 4; }

std::vector<Stage> stages(Form form, const Cluster& cluster, double parameters, const Width& width,
                          const Machine& machine) {
  std::vector<Stage> all = stages_of(form, cluster, parameters, width, machine);
  double left = machine.burst;
  for (Stage& stage : all) {
    if (stage.link_bytes == 0) continue;
    const double passed = std::min(left, stage.link_bytes);
    for (Bound& bound : stage.bounds) bound.bytes *= 1 - passed / stage.link_bytes;
    left -= passed;
  }
  return all;
}

std::vector<double> part_seconds(const std::vector<Stage>& stages, const Machine& machine) {
  std::vector<double> seconds(part_count);
  double before = 0;
  for (const Stage& stage : stages) {
    const double all = stage.seconds(machine);
    seconds[static_cast<int>(stage.part)] += stage.overlaps ? std::max(0.0, all - before) : all;
    before = all;
  }
  return seconds;
}

double total_seconds(const std::vector<Stage>& stages, const Machine& machine) {
  const std::vector<double> parts = part_seconds(stages, machine);
  return std::accumulate(parts.begin(), parts.end(), 0.0);
}

}  // namespace onebit::scale
