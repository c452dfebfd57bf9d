"""A discrete-event simulation of messages, with the queues that closed forms leave out.

Each host's link has two first-in first-out queues, out and in, which its ranks share. Inside a host each rank has such
a pair of its own. A message leaves its sender when the processor has spent the overhead and the queue before it is
empty. It arrives after the latency, while it is still being sent, and queues again with others for the same host. Its
sender waits until it has arrived. The switch between hosts holds any number of messages and loses none.
"""

import heapq

from lib.predict import model


def shift(groups, distance, size, mutual=False):
    """Each member of a group sends `size` bytes to the one at `distance`; with `mutual`, pairs of members exchange
    them. All groups of ranks communicate at the same time. [round]"""
    n = len(groups[0])
    return [[(group[i], group[i ^ distance if mutual else (i + distance) % n], size)
             for group in groups for i in range(n)]] if n > 1 else []


def ring(groups, rounds, size):
    """Each member sends `size` bytes to the next one, `rounds` times. [round]"""
    return shift(groups, 1, size) * rounds


def direct(groups, size, parts=1):
    """Each member sends `size` bytes in some parts to each other member, its successor first. [round]"""
    n = len(groups[0])
    return [[message for distance in range(1, n) for message in shift(groups, distance, size / parts)[0] * parts]
            ] if n > 1 else []


def in_turn(groups, size):
    """Each member exchanges `size` bytes with one other member after the other. [round]"""
    n = len(groups[0])
    return [step for distance in range(1, n) for step in shift(groups, distance, size, model.is_power_of_two(n))]


def bruck(part, groups, size):
    """Rounds of Bruck's algorithm with blocks of `size` bytes. [round]"""
    n = len(groups[0])
    return [step for distance in model.bruck_distances(n)
            for step in shift(groups, distance, model.bruck_blocks(part, n, distance) * size)]


def schedule(form, cluster, parameters, width, machine):
    """Rounds of messages (from, to, bytes), in the order in which their senders post them. A rank begins a round when
    it has sent and received all its messages of the rounds before. For `tree` and `rabenseifner`, n and the ranks of a
    host must be powers of two."""
    n, hosts, per_host = cluster.ranks, *cluster
    size = parameters * width.dense_bytes
    whole = [list(range(n))]
    inside = [list(range(host * per_host, (host + 1) * per_host)) for host in range(hosts)]
    between = [list(range(rank, n, per_host)) for rank in range(per_host)]
    own = parameters / n if form == "hierarchical_compressed" else model.chunk(n, parameters, width)
    message = float(model.message_bytes(own, width.compressed_bits))
    doubling = [1 << step for step in range(model.floor_log2(n))]
    if form == "ring":
        return ring(whole, 2 * (n - 1), size / n)
    if form == "tree":
        return [step for distance in doubling for step in shift(whole, distance, size, True)]
    if form == "rabenseifner":
        return [step for distance in [*doubling, *reversed(doubling)]
                for step in shift(whole, distance, size / (2 * distance), True)]
    if form == "pairwise":
        return direct(whole, size / n) * 2
    if form == "hierarchical":
        across = ring(inside, per_host - 1, size / per_host)
        return across + ring(between, 2 * (hosts - 1), size / n) + across
    if form == "pairwise_bf16":
        return direct(whole, 2 * parameters / n) * 2
    if form == "hierarchical_bf16":
        return (ring(inside, per_host - 1, size / per_host) + direct(between, 2 * parameters / n) * 2 +
                ring(inside, per_host - 1, 2 * parameters / per_host))
    parts = model.PARTS_OF_MESSAGE
    if form == "pairwise_compressed":
        return direct(whole, message, parts) * 2
    if form == "hierarchical_compressed":
        return (ring(inside, per_host - 1, size / per_host) + direct(between, message, parts) * 2 +
                ring(inside, per_host - 1, message * hosts))
    assert form in model.BY_LIBRARY, form
    message = float(model.library_message(form, cluster, parameters, width))
    return [step for hop in model.hops(form, cluster, message) for step in by_library(hop, n, machine)]


def by_library(hop, ranks, machine):
    """What an MPI library does, with the same algorithm as in the closed form. [round]"""
    members = hop.cluster.ranks
    firsts = range(hop.stride) if hop.stride > 1 else range(0, ranks, members)
    groups = [[first + hop.stride * member for member in range(members)] for first in firsts]
    stages = next(stages for where, stages in model.library_choice(hop, machine) if where)
    algorithm = stages[0].algorithm if stages else "bruck"
    if algorithm == "ring":
        return ring(groups, members - 1, hop.size)
    if algorithm == "bruck":
        return bruck(hop.part, groups, hop.size)
    return {"in turn": in_turn, "direct": direct}[algorithm](groups, hop.size)


class Progress:
    """How far each rank is in the rounds of a schedule."""

    def __init__(self, rounds, ranks, overhead):
        self.rounds, self.overhead = rounds, overhead
        # For each round and rank, the messages that it sends, and the number that it has yet to send or receive.
        self.posts = [[[] for _ in range(ranks)] for _ in rounds]
        self.open = [[0] * ranks for _ in rounds]
        for number, messages in enumerate(rounds):
            for i, (sender, receiver, _) in enumerate(messages):
                self.posts[number][sender].append(i)
                self.open[number][sender] += 1
                self.open[number][receiver] += 1
        self.complete = [[0.0] * ranks for _ in rounds]  # the time of the last message that a rank sent or received
        self.current = [-1] * ranks  # the last round that a rank has begun
        self.processor = [0.0] * ranks  # the time from which it is free
        self.events = []  # (time, round, message, whether it arrives) of each message, in the order of time

    def advance(self, rank, now):
        """Posts the messages of the rank's next rounds, until a round has open messages. Messages posted at one time
        come in the order of the schedule, so ranks of a host take turns at its link."""
        at = self.current[rank]
        while at + 1 < len(self.rounds) and (at < 0 or self.open[at][rank] == 0):
            if at >= 0:
                now = max(now, self.complete[at][rank])
            at += 1
            time = max(now, self.processor[rank])
            for i in self.posts[at][rank]:
                time += self.overhead
                heapq.heappush(self.events, (time, at, i, False))
            self.processor[rank] = time
        self.current[rank] = at

    def close(self, number, rank, time):
        """The rank has sent or received a message of a round."""
        self.open[number][rank] -= 1
        if time > self.complete[number][rank]:
            self.complete[number][rank] = time
        if self.open[number][rank] == 0 and self.current[rank] == number:
            self.advance(rank, 0)


def simulate(rounds, cluster, machine):
    """Seconds until the last rank has received its last message; work takes no time."""
    ranks, per_host = cluster.ranks, cluster.ranks_per_host
    progress = Progress(rounds, ranks, machine.overhead)
    # The times from which queues are free: of hosts' links and of ranks' channels, out and in.
    links = [0.0] * cluster.hosts, [0.0] * cluster.hosts
    channels = [0.0] * ranks, [0.0] * ranks
    end = 0.0
    for rank in range(ranks):
        progress.advance(rank, 0.0)
    events = progress.events
    while events:
        time, number, i, arrives = heapq.heappop(events)
        sender, receiver, size = rounds[number][i]
        rank = receiver if arrives else sender
        if sender // per_host != receiver // per_host:
            queue, place, latency, bandwidth = links[arrives], rank // per_host, machine.latency, machine.bandwidth
        else:
            queue, place, latency, bandwidth = channels[arrives], rank, machine.inside_latency, machine.inside_bandwidth
        begin = max(time, queue[place])
        free = queue[place] = begin + size / bandwidth
        end = max(end, free)
        if not arrives:
            heapq.heappush(events, (begin + latency, number, i, True))
            continue
        for one in (sender, receiver):
            progress.close(number, one, free)
    return end
