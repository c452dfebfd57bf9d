#pragma once
/// \file simulate.hpp
/// A discrete-event simulation of messages, for what closed forms leave out: queues. Each host's link is two first-in
/// first-out queues, out and in, that its ranks share; inside a host each rank has such a pair of its own. A message leaves
/// its sender when its processor has spent the overhead and the queue before it is empty, arrives after the latency
/// while it is still being sent, and waits again where others arrive at the same host. The switch between hosts holds what
/// waits, without a limit and without loss.

#include "scale/model.hpp"

namespace onebit::scale {

/// From rank to rank.
struct Message {
  int from, to;
  double bytes;
};

/// Rounds of messages, each in the order in which its senders post them. A rank begins a round when it has received all
/// of its messages of the rounds before, and sent its own.
using Schedule = std::vector<std::vector<Message>>;

/// The messages of a form. Counts of ranks, and of ranks on a host, are powers of two for `tree` and `rabenseifner`.
Schedule schedule(Form form, const Cluster& cluster, double parameters, double bytes_per_element,
                  const Machine& machine);

/// Seconds until the last rank has received its last message; work on elements takes none.
double simulate(const Schedule& schedule, const Cluster& cluster, const Machine& machine);

}  // namespace onebit::scale
