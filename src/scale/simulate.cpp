#include "scale/simulate.hpp"

#include <algorithm>
#include <array>
#include <queue>
#include <tuple>

namespace onebit::scale {
namespace {

/// Appends rounds to a schedule. All groups of ranks communicate at the same time.
class Rounds {
public:
  explicit Rounds(Schedule& schedule) : m_schedule(schedule) {}

  /// Each member of a group sends `bytes` to the next one, `rounds` times.
  void ring(const std::vector<std::vector<int>>& groups, int rounds, double bytes) {
    for (int round = 0; round < rounds; ++round) shift(groups, 1, bytes);
  }

  /// Each member sends `bytes` to each other member, its successor first.
  void direct(const std::vector<std::vector<int>>& groups, double bytes) {
    const int n = static_cast<int>(groups.front().size());
    if (n < 2) return;
    m_schedule.emplace_back();
    for (int distance = 1; distance < n; ++distance)
      for (const auto& group : groups)
        for (int i = 0; i < n; ++i) m_schedule.back().push_back({group[i], group[(i + distance) % n], bytes});
  }

  /// Each member sends `bytes` to the one at `distance`; with `mutual`, pairs of members exchange them.
  void shift(const std::vector<std::vector<int>>& groups, int distance, double bytes, bool mutual = false) {
    const int n = static_cast<int>(groups.front().size());
    if (n < 2) return;
    m_schedule.emplace_back();
    for (const auto& group : groups)
      for (int i = 0; i < n; ++i)
        m_schedule.back().push_back({group[i], group[mutual ? i ^ distance : (i + distance) % n], bytes});
  }

private:
  Schedule& m_schedule;
};

enum Direction { out, in };

/// A message reaches the queue out or the queue in, or has been sent or received.
enum Kind { posted, arriving, sent, received };
struct Event {
  double time;
  int round, message;
  Kind kind;
  /// The greatest is the earliest; of those at one time, the first in the schedule.
  bool operator<(const Event& other) const {
    return std::tie(time, round, message, kind) > std::tie(other.time, other.round, other.message, other.kind);
  }
};

}  // namespace

Schedule schedule(Form form, const Cluster& cluster, double parameters, const Width& width, const Machine& machine) {
  const int n = cluster.ranks(), hosts = cluster.hosts, per_host = cluster.ranks_per_host;
  const double bytes = parameters * width.dense_bytes;
  std::vector<std::vector<int>> all(1), inside(hosts), between(per_host);
  for (int rank = 0; rank < n; ++rank) {
    all[0].push_back(rank);
    inside[rank / per_host].push_back(rank);
    between[rank % per_host].push_back(rank);
  }
  Schedule result;
  Rounds rounds(result);
  const auto bruck = [&](Part part, double block) {
    for (int distance = 1; distance < n; distance *= 2)
      rounds.shift(all, distance, bruck_blocks(part, n, distance) * block);
  };
  switch (form) {
    case Form::ring:
      rounds.ring(all, 2 * (n - 1), bytes / n);
      break;
    case Form::tree:
      for (int distance = 1; distance < n; distance *= 2) rounds.shift(all, distance, bytes, true);
      break;
    case Form::rabenseifner:
      for (int distance = 1; distance < n; distance *= 2) rounds.shift(all, distance, bytes / (2 * distance), true);
      for (int distance = n / 2; distance > 0; distance /= 2) rounds.shift(all, distance, bytes / (2 * distance), true);
      break;
    case Form::pairwise:
      rounds.direct(all, bytes / n);
      rounds.direct(all, bytes / n);
      break;
    case Form::hierarchical:
      rounds.ring(inside, per_host - 1, bytes / per_host);
      rounds.ring(between, 2 * (hosts - 1), bytes / n);
      rounds.ring(inside, per_host - 1, bytes / per_host);
      break;
    case Form::pairwise_bf16:
      rounds.direct(all, 2 * parameters / n);
      rounds.direct(all, 2 * parameters / n);
      break;
    case Form::hierarchical_bf16:
      rounds.ring(inside, per_host - 1, bytes / per_host);
      rounds.direct(between, 2 * parameters / n);
      rounds.direct(between, 2 * parameters / n);
      rounds.ring(inside, per_host - 1, 2 * parameters / per_host);
      break;
    case Form::compressed: {
      // The same algorithms as in the closed form.
      const double message = message_bytes(parameters / n, width.compressed_bits);
      const std::vector<Stage> chosen = stages(form, cluster, parameters, width, machine);
      const auto logarithmic = [&](Part part) {
        return std::any_of(chosen.begin(), chosen.end(),
                           [=](const Stage& stage) { return stage.part == part && stage.logarithmic; });
      };
      logarithmic(Part::all_to_all) ? bruck(Part::all_to_all, message) : rounds.direct(all, message);
      logarithmic(Part::all_gather) ? bruck(Part::all_gather, message) : rounds.ring(all, n - 1, message);
      break;
    }
    case Form::pairwise_compressed:
      rounds.direct(all, message_bytes(parameters / n, width.compressed_bits));
      rounds.direct(all, message_bytes(parameters / n, width.compressed_bits));
      break;
    case Form::hierarchical_compressed: {
      const double message = message_bytes(parameters / n, width.compressed_bits);
      rounds.ring(inside, per_host - 1, bytes / per_host);
      rounds.direct(between, message);
      rounds.direct(between, message);
      rounds.ring(inside, per_host - 1, message * hosts);
      break;
    }
  }
  return result;
}

double simulate(const Schedule& schedule, const Cluster& cluster, const Machine& machine) {
  const int n = cluster.ranks(), rounds = static_cast<int>(schedule.size());
  // For each round and rank, the messages that it sends and the number that it has yet to send or receive.
  std::vector<std::vector<std::vector<int>>> posts(rounds, std::vector<std::vector<int>>(n));
  std::vector<std::vector<int>> open(rounds, std::vector<int>(n));
  for (int round = 0; round < rounds; ++round)
    for (std::size_t i = 0; i < schedule[round].size(); ++i) {
      const Message& message = schedule[round][i];
      posts[round][message.from].push_back(static_cast<int>(i));
      ++open[round][message.from];
      ++open[round][message.to];
    }
  std::vector<int> current(n, -1);  // the last round that a rank has begun
  // The times from which processors and queues are free.
  std::vector<double> processor(n);
  std::vector<std::array<double, 2>> link(cluster.hosts, {0, 0}), channel(n, {0, 0});

  std::priority_queue<Event> events;
  double end = 0;
  // Posts the messages of the rank's next rounds, until a round has open messages. Messages posted at one time come in
  // the order of the schedule, so ranks of a host take turns at its link.
  const auto advance = [&](int rank, double now) {
    while (current[rank] + 1 < rounds && (current[rank] < 0 || open[current[rank]][rank] == 0)) {
      const int round = ++current[rank];
      double time = std::max(now, processor[rank]);
      for (const int i : posts[round][rank]) events.push({time += machine.overhead, round, i, posted});
      processor[rank] = time;
    }
  };
  for (int rank = 0; rank < n; ++rank) advance(rank, 0);
  while (!events.empty()) {
    const Event event = events.top();
    events.pop();
    end = std::max(end, event.time);
    const Message& message = schedule[event.round][event.message];
    const bool far = message.from / cluster.ranks_per_host != message.to / cluster.ranks_per_host;
    const double latency = far ? machine.latency : machine.inside_latency;
    const double duration = message.bytes / (far ? machine.bandwidth : machine.inside_bandwidth);
    const auto queue = [&](int rank, Direction direction) -> double& {
      return far ? link[rank / cluster.ranks_per_host][direction] : channel[rank][direction];
    };
    const auto later = [&](double time, Kind kind) { events.push({time, event.round, event.message, kind}); };
    switch (event.kind) {
      case posted: {
        double& free = queue(message.from, out);
        const double begin = std::max(event.time, free);
        free = begin + duration;
        later(begin + latency, arriving);
        later(free, sent);
        break;
      }
      case arriving: {
        double& free = queue(message.to, in);
        free = std::max(event.time, free) + duration;
        later(free, received);
        break;
      }
      case sent:
      case received: {
        const int rank = event.kind == sent ? message.from : message.to;
        if (--open[event.round][rank] == 0 && current[rank] == event.round) advance(rank, event.time);
        break;
      }
    }
  }
  return end;
}

}  // namespace onebit::scale
