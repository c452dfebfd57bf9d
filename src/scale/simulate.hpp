#pragma once
/// \file simulate.hpp
/// A discrete-event simulation of messages, with the queues that closed forms leave out. Each host's link has two
/// first-in first-out queues, out and in, which its ranks share. Inside a host each rank has such a pair of its own.
/// A message leaves its sender when the processor has spent the overhead and the queue before it is empty. It arrives
/// after the latency, while it is still being sent, and queues again with others for the same host. The switch between
/// hosts holds any number of messages and loses none.

#include "scale/model.hpp"

namespace onebit::scale {

struct Message {
  int from, to;  ///< ranks
  double bytes;
};

/// Rounds of messages, in the order in which their senders post them. A rank begins a round when it has sent and
/// received all its messages of the rounds before.
using Schedule = std::vector<std::vector<Message>>;

/// The messages of a form. For `tree` and `rabenseifner`, n and the ranks of a host must be powers of two.
Schedule schedule(Form form, const Cluster& cluster, double parameters, const Width& width, const Machine& machine);

/// Seconds until the last rank has received its last message; work takes no time.
double simulate(const Schedule& schedule, const Cluster& cluster, const Machine& machine);

}  // namespace onebit::scale
