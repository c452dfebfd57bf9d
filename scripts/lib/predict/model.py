"""The time of averages over ranks in the α-β-γ model, as closed forms (docs/reference/prediction/model.md).

A message costs latency α, the time of its bytes at bandwidth β, and an overhead o of a processor. Work costs γ for each
element. A host's link has a bandwidth in each direction, which all ranks of the host share. Inside a host each rank has
a channel of its own. A rank begins a round when its messages of the round before have arrived, its own and those for
it. Ranks are numbered host by host. Hockney 1994; Thakur, Rabenseifner and Gropp, "Optimization of Collective
Communication Operations in MPICH", 2005.

Seconds are for one number of parameters and one bandwidth, or for NumPy arrays of them.
"""

import collections
import dataclasses
import functools
import itertools
import math

import numpy as np

FORMS = (
    "ring",  # reduce-scatter and all-gather around a ring, the ranks in order
    "tree",  # recursive doubling with the whole vector
    "rabenseifner",  # recursive halving, then recursive doubling
    "pairwise",  # each rank sends every other rank its chunk, and the sums of its own chunk back
    "hierarchical",  # reduce-scatter inside hosts, rings between hosts, all-gather inside hosts
    "bf16",  # dense in 16 bits: all-to-all and all-gather, as an MPI library would choose them
    "grid_bf16",  # the same along the rows and columns of a grid of ranks
    "pairwise_bf16",  # dense in 16 bits: all-to-all and all-gather, all messages direct
    "hierarchical_bf16",  # reduce-scatter in float inside hosts, pairwise_bf16 between, all-gather inside
    "compressed",  # a bit or a few an element: all-to-all and all-gather, as an MPI library would choose them
    "grid_compressed",  # the same along the rows and columns of a grid of ranks
    "pairwise_compressed",  # a bit or a few an element, all messages direct, overlapped with compression and average
    "hierarchical_compressed",  # dense reduce-scatter inside hosts, pairwise_compressed between, all-gather inside
)
# Of a call, in order.
PARTS = ("allreduce", "reduce_scatter", "compress", "all_to_all", "average", "all_gather", "decompress")
COSTS = ("reduce", "compress", "average", "decompress")  # the kinds of work, each with its γ

# Work of an average in 16 bits on an element, in sums of two floats, each by the bytes that it reads and writes:
# rounding and widening move 6, adding one that was received 2, and a sum 12.
ROUNDING, RECEIVED = 6 / 12, 2 / 12

# Messages of a compressed average to a rank at once: codes, then their scales (comm/compressed_average.cpp).
PARTS_OF_MESSAGE = 2

# Bytes from which Open MPI's all-to-all exchanges with one rank after the other, and bytes of all ranks together from
# which its all-gather is a ring (coll_tuned_decision_fixed.c).
IN_TURN_FROM, RING_FROM = 3000, 50000

# What an element takes in messages: bytes in the dense forms but those in 16 bits, bits in the compressed forms. A
# server of a flat compressed form needs `largest_tensor` elements of one average; 0: any part will do.
Width = collections.namedtuple("Width", "dense_bytes compressed_bits largest_tensor", defaults=(4, 1, 0))


# Forms whose exchanges an MPI library carries out.
BY_LIBRARY = ("bf16", "grid_bf16", "compressed", "grid_compressed")


def is_compressed(form):
    return form.endswith("compressed")


@dataclasses.dataclass
class Machine:
    """Times in seconds, bandwidths in bytes per second."""

    latency: float = 0  # α between hosts
    bandwidth: float = math.inf  # β of a host's link that messages reach, each direction
    burst: float = 0  # bytes of a call that an idle link passes at once (token bucket)
    overhead: float = 0  # o of each message
    inside_latency: float = 0  # α inside a host
    inside_bandwidth: float = math.inf  # of a rank's channel inside its host, each direction
    reduce: float = 0  # γ of adding an element to another
    compress: float = 0  # γ of compressing an element with its residual
    average: float = 0  # γ of averaging and recompressing, for each element received
    decompress: float = 0  # γ of decompressing an element

    def changed(self, **values):
        return dataclasses.replace(self, **values)

    def slowed_down(self, factor):
        """All costs of work multiplied."""
        return self.changed(**{cost: getattr(self, cost) * factor for cost in COSTS})


class Cluster(collections.namedtuple("Cluster", "hosts ranks_per_host")):
    """Hosts with the same number of ranks each."""

    @property
    def ranks(self):
        return self.hosts * self.ranks_per_host


class Bound(collections.namedtuple("Bound", "messages bytes inside_messages inside_bytes overheads")):
    """What follows one another in a stage: `messages` of α and `bytes` through one link, the same inside a host, and
    `overheads` of one processor."""

    def seconds(self, machine):
        return (self.messages * machine.latency + self.bytes / machine.bandwidth +
                self.inside_messages * machine.inside_latency + self.inside_bytes / machine.inside_bandwidth +
                self.overheads * machine.overhead)


@dataclasses.dataclass
class Stage:
    """One step of a call: messages, which take as long as the longest of the bounds, or work."""

    part: str
    bounds: list = dataclasses.field(default_factory=list)
    link_bytes: float = 0  # that leave a host
    algorithm: str = ""  # of an MPI library: "ring", "direct", "in turn", or "bruck" for one of its rounds
    overlaps: bool = False  # begins with the stage before it, which is work: the longer of the two counts
    elements: float = 0  # of work, each at `cost`
    cost: str = ""

    def message_seconds(self, machine):
        times = [bound.seconds(machine) for bound in self.bounds] or [0]
        return functools.reduce(np.maximum, times)

    def seconds(self, machine):
        return self.elements * getattr(machine, self.cost) if self.cost else self.message_seconds(machine)


def ring(part, cluster, laps, size, sharing=1):
    """`laps` times around the ring (1: reduce-scatter or all-gather, 2: both) with messages of `size` bytes. `sharing`
    rings share each link. A round is as long as its longest message, between hosts or inside one."""
    rounds = laps * (cluster.ranks - 1)
    stage = Stage(part, algorithm="ring")
    if cluster.hosts > 1:
        stage.link_bytes = rounds * size * sharing
        stage.bounds.append(Bound(rounds, stage.link_bytes, 0, 0, rounds))
    if cluster.ranks_per_host > 1:
        stage.bounds.append(Bound(0, 0, rounds, rounds * size, rounds))
    return stage


def direct(part, cluster, size, sharing=1, parts=1):
    """Each rank sends `size` bytes to each other rank in `parts` messages, all posted at once. They share the link and
    arrive together, and then the processor takes one after the other: bytes and overheads add up, as they do in a
    simulation (docs/results/many_ranks.md)."""
    n, r = cluster.ranks, cluster.ranks_per_host
    stage, overheads = Stage(part, algorithm="direct"), parts * (n - 1)
    if cluster.hosts > 1:
        stage.link_bytes = r * (n - r) * size * sharing
        stage.bounds.append(Bound(1, stage.link_bytes, 0, 0, overheads))
    if r > 1:
        stage.bounds.append(Bound(0, 0, 1, (r - 1) * size, overheads))
    return stage


def in_turn(part, cluster, size, sharing):
    """Each rank exchanges `size` bytes with one other rank after the other. In n − r rounds all r ranks of a host have
    a partner on another one, in the others none has."""
    n, r = cluster.ranks, cluster.ranks_per_host
    link_bytes = r * (n - r) * size * sharing
    return Stage(part, [Bound(n - r, link_bytes, r - 1, (r - 1) * size, n - 1)], link_bytes, "in turn")


def round_of(part, crossing, size, algorithm=""):
    """A round in which each rank sends `size` bytes to another. `crossing` ranks of a host have a partner on another
    host; their messages queue at the link."""
    bound = Bound(1, crossing * size, 0, 0, 1) if crossing else Bound(0, 0, 1, size, 1)
    return Stage(part, [bound], crossing * size, algorithm)


def exchanges(cluster, size, halves):
    """Exchanges with the ranks at distance 1, 2, 4, …: of the whole vector of `size` bytes (recursive doubling), or of
    a half, a quarter, … and back, the longest between the nearest ranks. If n is not a power of two, the ranks beyond
    one send their vectors to a neighbour first and get the result last. Hosts have a power of two of ranks."""

    def exchange(distance, size):
        return round_of("allreduce", 0 if distance < cluster.ranks_per_host else cluster.ranks_per_host, size)

    rounds = []
    for step in range(floor_log2(cluster.ranks)):
        rounds += [exchange(1 << step, size / 2 ** (step + 1))] * 2 if halves else [exchange(1 << step, size)]
    return rounds if is_power_of_two(cluster.ranks) else rounds + [exchange(1, size)] * 2


def bruck_blocks(part, ranks, distance):
    """Blocks in a message of Bruck's all-gather or all-to-all, in the round with `distance`."""
    if part == "all_gather":
        return min(distance, ranks - distance)
    # The blocks whose number has the bit `distance`.
    return ranks // (2 * distance) * distance + max(0, ranks % (2 * distance) - distance)


def bruck_distances(ranks):
    return [1 << step for step in range(ceil_log2(ranks))]


def bruck(part, cluster, size, sharing):
    """Each rank sends some of its blocks to the rank at distance 1, 2, 4, …: all-gather or all-to-all of blocks of
    `size` bytes in ⌈log2 n⌉ rounds (Bruck et al. 1997)."""
    return [round_of(part, min(distance, cluster.ranks_per_host) * sharing if cluster.hosts > 1 else 0,
                     bruck_blocks(part, cluster.ranks, distance) * size, "bruck")
            for distance in bruck_distances(cluster.ranks)]


def floor_log2(n):
    return n.bit_length() - 1


def ceil_log2(n):
    return (n - 1).bit_length()


def is_power_of_two(n):
    return n & (n - 1) == 0


def message_bytes(elements, bits):
    """Bytes of a compressed message: words of codes and a scale."""
    return 4 * bits * np.ceil(elements / 32) + 4


def served(ranks, d, width):
    """Elements of the server that has the most of them."""
    return np.maximum(d / ranks, width.largest_tensor)


def moves(ranks, d, width):
    """Whether averages are made in equal chunks and move to their servers, because the longest of the servers' chunks
    would be more than twice the mean."""
    return served(ranks, d, width) * ranks > 2 * d


def chunk(ranks, d, width):
    """Elements of the longest chunk of an average, whose length all messages have."""
    return np.where(moves(ranks, d, width), d / ranks, served(ranks, d, width))


def server_moves(cluster, d, width):
    """Averages move in float to the servers of whole tensors, and what these make of them moves back. A host has one
    server, or the tensors of as many elements as its ranks have."""
    n, r = cluster.ranks, cluster.ranks_per_host
    needed = moves(n, d, width)
    if not np.any(needed):
        return []
    messages = np.where(needed, served(n, d, width) * n / d, 0)  # of the server with the largest tensor
    if cluster.hosts > 1:
        size = 4 * np.where(needed, np.maximum(served(n, d, width), r * d / n) * (n - r) / n, 0)
        bound = Bound(np.where(needed, 1, 0), size, 0, 0, messages)
    else:
        size = 0
        bound = Bound(0, 0, np.where(needed, 1, 0), 4 * np.where(needed, served(n, d, width), 0), messages)
    return [Stage(part, [bound], size, "direct") for part in ("all_to_all", "all_gather")]


def work(part, elements, cost):
    return Stage(part, elements=elements, cost=cost)


def reduced(elements, part="allreduce"):
    return work(part, elements, "reduce")


def dense_stages(form, cluster, d, width):
    n, hosts, per_host = cluster.ranks, *cluster
    size, part = d * width.dense_bytes, "allreduce"
    host, between = Cluster(1, per_host), Cluster(hosts, 1)
    if form == "ring":
        return [ring(part, cluster, 2, size / n), reduced(d * (n - 1) / n)]
    if form == "tree":
        return [*exchanges(cluster, size, False), reduced(d * ceil_log2(n))]
    if form == "rabenseifner":
        added, folded = 1 - 0.5 ** floor_log2(n), not is_power_of_two(n)
        return [*exchanges(cluster, size, True), reduced(d * (added + folded))]
    if form == "pairwise":
        return [direct(part, cluster, size / n), reduced(d * (n - 1) / n), direct(part, cluster, size / n)]
    if form == "hierarchical":
        return [ring(part, host, 1, size / per_host),
                reduced(d * (per_host - 1) / per_host + d / per_host * (hosts - 1) / hosts),
                ring(part, between, 2, size / n, per_host), ring(part, host, 1, size / per_host)]
    if form == "pairwise_bf16":
        return [reduced(d * ROUNDING), direct(part, cluster, 2 * d / n), reduced(d * RECEIVED),
                direct(part, cluster, 2 * d / n), reduced(d * ROUNDING)]
    assert form == "hierarchical_bf16", form
    shard = d / per_host
    message = 2 * shard / hosts
    return [ring(part, host, 1, size / per_host),
            reduced(d * (per_host - 1) / per_host + shard * (ROUNDING + RECEIVED)),
            direct(part, between, message, per_host), direct(part, between, message, per_host),
            ring(part, host, 1, 2 * shard), reduced(d * ROUNDING)]


def overlapping(stage):
    return dataclasses.replace(stage, overlaps=True)


def compressed_stages(form, cluster, d, width):
    n, hosts, per_host = cluster.ranks, *cluster
    if form == "pairwise_compressed":
        own = chunk(n, d, width)
        message = message_bytes(own, width.compressed_bits)
        spread, gather = (direct(part, cluster, message, 1, PARTS_OF_MESSAGE) for part in ("all_to_all", "all_gather"))
        return [work("compress", d, "compress"), overlapping(spread), *server_moves(cluster, d, width),
                work("average", n * own, "average"), overlapping(gather), work("decompress", d, "decompress")]
    assert form == "hierarchical_compressed", form
    shard, host, between = d / per_host, Cluster(1, per_host), Cluster(hosts, 1)
    message = message_bytes(shard / hosts, width.compressed_bits)
    spread, gather = (direct(part, between, message, per_host, PARTS_OF_MESSAGE)
                      for part in ("all_to_all", "all_gather"))
    return [ring("reduce_scatter", host, 1, d * width.dense_bytes / per_host),
            reduced(d * (per_host - 1) / per_host, "reduce_scatter"), work("compress", shard, "compress"),
            overlapping(spread), work("average", shard, "average"), overlapping(gather),
            ring("all_gather", host, 1, message * hosts), work("decompress", d, "decompress")]


def library_choice(hop, machine):
    """What an MPI library chooses for messages of so many bytes: [(where, stages)]. Shorter ones take the faster of two
    algorithms, so that a longer vector never takes less time."""
    of = hop.part, hop.cluster, hop.size
    if hop.part == "all_to_all":
        is_long = np.greater_equal(hop.size, IN_TURN_FROM)
        longer, short = in_turn(*of, hop.sharing), direct(*of, hop.sharing)
    else:
        is_long = np.greater_equal(hop.cluster.ranks * hop.size, RING_FROM)
        longer = short = ring(hop.part, hop.cluster, 1, hop.size, hop.sharing)
    rounds = bruck(*of, hop.sharing)
    is_faster = short.seconds(machine) <= sum(stage.seconds(machine) for stage in rounds)
    is_short = np.logical_not(is_long)
    return [(is_long, [longer]), (np.logical_and(is_short, is_faster), [short]),
            (np.logical_and(is_short, np.logical_not(is_faster)), rounds)]


def grid_columns(ranks):
    """The greatest divisor that is at most √n (comm/transport/combined/grid.hpp)."""
    return max(divisor for divisor in range(1, math.isqrt(ranks) + 1) if ranks % divisor == 0)


# An exchange of messages of `size` bytes within all groups of ranks at once. The ranks of a group are `stride` apart,
# and `sharing` groups share the link of a host.
Hop = collections.namedtuple("Hop", "part cluster size sharing stride")


def hops(form, cluster, message):
    """The exchanges of messages of so many bytes, one after the other. Where neither a row nor a host has a multiple of
    the other's ranks, a row is taken to have their greatest common divisor on each of its hosts."""
    if not form.startswith("grid"):
        return [Hop(part, cluster, message, 1, 1) for part in ("all_to_all", "all_gather")]
    columns = grid_columns(cluster.ranks)
    rows, of_row = cluster.ranks // columns, math.gcd(columns, cluster.ranks_per_host)  # ranks of a row on a host
    of_column = cluster.ranks_per_host // of_row
    row, column = Cluster(columns // of_row, of_row), Cluster(rows // of_column, of_column)
    return [Hop("all_to_all", row, rows * message, of_column, 1),
            Hop("all_to_all", column, columns * message, of_row, columns),
            Hop("all_gather", column, message, of_row, columns),
            Hop("all_gather", row, rows * message, of_column, 1)]


def library_message(form, cluster, d, width):
    """Bytes of what a rank has for another."""
    if is_compressed(form):
        return message_bytes(chunk(cluster.ranks, d, width), width.compressed_bits)
    return 2 * d / cluster.ranks


def library_stages(form, cluster, d, width, machine):
    """The forms that an MPI library carries out: [(where this is what it chooses, stages)]."""
    if is_compressed(form):
        before, after = work("compress", d, "compress"), work("decompress", d, "decompress")
        between = [*server_moves(cluster, d, width),
                   work("average", cluster.ranks * chunk(cluster.ranks, d, width), "average")]
    else:
        before, between, after = reduced(d * ROUNDING), [reduced(d * RECEIVED)], reduced(d * ROUNDING)
    all_stages = []
    of_hops = [library_choice(hop, machine) for hop in hops(form, cluster, library_message(form, cluster, d, width))]
    for chosen in itertools.product(*of_hops):
        exchanges = [stage for _, stages in chosen for stage in stages]
        spread, gather = ([stage if is_compressed(form) else dataclasses.replace(stage, part="allreduce")
                           for stage in exchanges if stage.part == part] for part in ("all_to_all", "all_gather"))
        where = functools.reduce(np.logical_and, [where for where, _ in chosen])
        all_stages.append((where, [before, *spread, *between, *gather, after]))
    return all_stages


def after_burst(stages, burst):
    """The stages without the bytes that an idle link passes at once."""
    left, shorter = burst, []
    for stage in stages:
        if np.any(stage.link_bytes):
            passed = np.minimum(left, stage.link_bytes)
            left = left - passed
            share = 1 - passed / np.maximum(stage.link_bytes, 1e-9)  # some of an array's may be 0
            stage = dataclasses.replace(
                stage, bounds=[bound._replace(bytes=bound.bytes * share) for bound in stage.bounds])
        shorter.append(stage)
    return shorter


def choices(form, cluster, parameters, width, machine):
    """[(where, the stages of one call there)]; `machine` decides between algorithms as an MPI library would."""
    if cluster.ranks == 1 and not is_compressed(form):
        return [(True, [])]
    if form in BY_LIBRARY:
        all_stages = library_stages(form, cluster, parameters, width, machine)
    else:
        make = compressed_stages if is_compressed(form) else dense_stages
        all_stages = [(True, make(form, cluster, parameters, width))]
    return [(where, after_burst(stages, machine.burst) if machine.burst else stages) for where, stages in all_stages]


def stages(form, cluster, parameters, width, machine):
    """The stages of one call, for one number of parameters and one machine."""
    return next(chosen for where, chosen in choices(form, cluster, parameters, width, machine) if where)


# parts: {part: seconds}, for overlapped messages what is left to wait for. messages: seconds without the rank's work.
# link_bytes: that leave a host.
Call = collections.namedtuple("Call", "parts messages link_bytes")


def call_of(stages, machine):
    parts, messages, link_bytes, before = dict.fromkeys(PARTS, 0), 0, 0, 0
    for stage in stages:
        seconds = stage.seconds(machine)
        parts[stage.part] = parts[stage.part] + (np.maximum(0, seconds - before) if stage.overlaps else seconds)
        before = seconds
        if not stage.cost:
            messages = messages + seconds
        link_bytes = link_bytes + stage.link_bytes
    return Call(parts, messages, link_bytes)


def call(form, cluster, parameters, width, machine):
    """What one call takes, also where the choice of an algorithm differs within arrays."""
    found = None
    for where, chosen in choices(form, cluster, parameters, width, machine):
        if np.all(where):
            return call_of(chosen, machine)
        if np.any(where):
            one = call_of(chosen, machine)
            found = one if found is None else Call(
                {part: np.where(where, one.parts[part], found.parts[part]) for part in PARTS},
                np.where(where, one.messages, found.messages), np.where(where, one.link_bytes, found.link_bytes))
    return found


def total(parts):
    """The sum of the seconds of the parts, in their order."""
    return sum(parts[part] for part in PARTS)


def total_seconds(form, cluster, parameters, width, machine):
    """Of one call."""
    return total(call(form, cluster, parameters, width, machine).parts)
