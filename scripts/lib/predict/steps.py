"""Predicted steps, and where compression begins to pay: the number of parameters and the line rate at which a step with
a compressed average takes as long as one with the fastest dense average."""

import collections
import math

import numpy as np

from lib.predict import model
from lib.predict.fit import fit, read_measurements, slowdown
from lib.predict.inputs import InputError
from lib.predict.simulate import schedule, simulate

GBIT = 1e9 / 8  # bytes

# Bytes of memory that a rank's work reads and writes for each element.
TRAFFIC = {
    "reduce": 12,  # two terms, a sum
    "compress": 12,  # the vector, c of the last and of this call
    "average": 8,  # a sum's old and new value, for each element received
    "decompress": 4,  # the value
}

# One way to average. `fit` has its parameters of the model; None: the input's.
Candidate = collections.namedtuple("Candidate", "collective form fit", defaults=(None,))

# A predicted step; times in seconds.
#   buckets     in which the average goes on during the backward pass; 1: after it
#   parts       of the average, by model.PARTS
#   call        the average: the sum of its parts
#   messages    of the average, without the rank's own work
#   hidden      of the average, during the backward pass
#   link_bytes  that leave a host
#   step        forward and backward pass, average without `hidden`, update; a mean over the steps between two exchanges
Step = collections.namedtuple("Step", "buckets parts call messages hidden link_bytes step")

# The line rate in bytes/s below which one average pays, and how far it may lie from there. least: every compressed
# average takes longer by `predict.error`, and every dense one is as much faster; greatest: the other way round.
RateLimit = collections.namedtuple("RateLimit", "least expected greatest")


class Model:
    """Predictions for an input."""

    def __init__(self, given):
        """Reads and fits the measurements. Raises InputError."""
        self.input = given
        memory = given.memory_bandwidth_gbyte_per_s * 1e9
        self.without_bandwidth = model.Machine(
            latency=given.latency_us * 1e-6, burst=given.burst_kbyte * 1e3,
            overhead=given.message_overhead_us * 1e-6, inside_latency=given.inside_latency_us * 1e-6,
            inside_bandwidth=given.inside_bandwidth_gbyte_per_s * 1e9,
            **{cost: traffic / memory for cost, traffic in TRAFFIC.items()})
        self.width = model.Width(given.bytes_per_element, given.compressed_bits, given.largest_tensor)
        rows = []
        for path in given.measurements:
            with given.located("measurements"):
                rows += read_measurements(path, given.measured_gbit_per_s * GBIT)
        if given.measurements and not rows:
            raise InputError(given.where("measurements"), "no file has a row of more than one rank",
                             "measure with several ranks, best on several hosts")
        self.fits = fit(rows, self.without_bandwidth, given.shared_cores)
        self.candidates = [*(Candidate(one.collective, one.form, one) for one in self.fits),
                           *(Candidate(form, form) for form in given.collectives)]
        if given.largest_tensor > 0 and any(one.form == "hierarchical_compressed" for one in self.candidates):
            raise InputError(given.where("largest_tensor"), "hierarchical_compressed has no servers of whole tensors",
                             "leave it out of predict.collectives and of predict.measurements")

    def cluster(self, ranks):
        """Ranks fill one host after the other."""
        per_host = min(ranks, self.input.ranks_per_host)
        return model.Cluster(ranks // per_host, per_host)

    def machine(self, candidate, cluster, link):
        """link: line rate of a host's link, bytes/s"""
        slow = slowdown(cluster.ranks, self.input.shared_cores)
        if candidate.fit:
            return candidate.fit.applied_to(self.without_bandwidth, link, slow)
        return self.without_bandwidth.changed(bandwidth=link * self.input.line_rate_share).slowed_down(slow)

    def of(self, compressed):
        """The compressed candidates, or the dense ones."""
        return [one for one in self.candidates if model.is_compressed(one.form) == compressed]

    def steps(self, candidate, cluster, parameters, link, factor=1):
        """The step in each number of buckets, along axis 0 of its arrays, with those of parameters and rates along
        axis 1. Bucket k is final after k / `buckets` of the backward pass, and buckets are averaged one after the
        other. factor: multiplies the time of the average"""
        given, compressed = self.input, model.is_compressed(candidate.form)
        most = given.compressed_buckets if compressed else given.overlap_buckets
        buckets = np.array([[1]] + [[most >> k] for k in range(most.bit_length() - 1)])
        bucket = model.call(candidate.form, cluster, parameters / buckets, self.width,
                            self.machine(candidate, cluster, link))
        parts = {part: seconds * (buckets * factor) for part, seconds in bucket.parts.items()}
        if compressed:
            served = model.served(cluster.ranks, parameters, self.width)
            parts["average"] = parts["average"] + factor * given.server_ns * 1e-9 * served
        call = model.total(parts)
        backward = given.backward_ms * 1e-3
        end = np.maximum(backward + call / buckets, backward / buckets + call)
        hidden = backward + call - end
        exchanges = 1 / given.steps_per_exchange if compressed else 1
        step = (given.forward_ms + given.update_ms) * 1e-3 + backward + exchanges * (call - hidden)
        return Step(buckets, parts, call, buckets * factor * bucket.messages, hidden, buckets * bucket.link_bytes, step)

    def seconds(self, candidate, cluster, parameters, link, factor=1):
        """Of the step in the number of buckets that makes it shortest, in an array."""
        return self.steps(candidate, cluster, parameters, link, factor).step.min(axis=0)

    def step(self, candidate, cluster, parameters, link):
        """The step in the number of buckets that makes it shortest."""
        every = self.steps(candidate, cluster, np.array([parameters]), np.array([link]))
        best = int(every.step[:, 0].argmin())

        def pick(values):
            return float(np.broadcast_to(values, every.step.shape)[best, 0])

        return Step(int(every.buckets[best, 0]), {part: pick(values) for part, values in every.parts.items()},
                    *map(pick, every[2:]))

    def simulated(self, candidate, cluster, parameters, link):
        """Seconds of the messages of `step`, simulated; NaN beyond `predict.simulate_up_to` ranks, and for a form that
        has no schedule on this cluster."""
        has_schedule = candidate.form not in ("tree", "rabenseifner") or (
            model.is_power_of_two(cluster.ranks) and model.is_power_of_two(cluster.ranks_per_host))
        if model.is_compressed(candidate.form) and model.moves(cluster.ranks, parameters, self.width):
            has_schedule = False
        if cluster.ranks > self.input.simulate_up_to or not has_schedule:
            return math.nan
        machine = self.machine(candidate, cluster, link)
        buckets = self.step(candidate, cluster, parameters, link).buckets
        rounds = schedule(candidate.form, cluster, parameters / buckets, self.width, machine)
        return buckets * simulate(rounds, cluster, machine)

    def best(self, compressed, cluster, parameters, link):
        """The candidate with the shortest step, of the dense or of the compressed ones; None if there are none."""
        return min(self.of(compressed), default=None,
                   key=lambda one: self.step(one, cluster, parameters, link).step)

    def shortest(self, compressed, cluster, parameters, link):
        """Seconds of the shortest step, in an array."""
        return np.minimum.reduce([self.seconds(one, cluster, parameters, link) for one in self.of(compressed)])

    def pays(self, cluster, parameters, link):
        """Where the fastest compressed average gives the shorter step."""
        return (self.shortest(True, cluster, parameters, link) < self.shortest(False, cluster, parameters, link))

    def crossover_parameters(self, cluster, link):
        """Number of parameters above which the fastest compressed average pays: 0 if it always does, infinite if
        never."""
        least, most = 100, 1e13
        found = last_change(least, most, lambda d: self.pays(cluster, d, np.array([link])))
        return 0 if found <= least else found

    def crossover_link(self, cluster, parameters):
        """Line rate in bytes/s below which the fastest compressed average pays: infinite if it always does, 0 if
        never."""
        return last_rate(lambda link: self.pays(cluster, parameters, link))

    def rate_limit(self, compressed, cluster, parameters):
        """The RateLimit of one compressed candidate, which pays if it makes the step shorter than every dense one by
        `predict.least_gain`."""

        def limit(compressed_error, dense_error):
            def pays(link):
                step = self.seconds(compressed, cluster, parameters, link, 1 + compressed_error)
                return np.logical_and.reduce([
                    step < (1 - self.input.least_gain) *
                    self.seconds(dense, cluster, parameters, link, 1 + dense_error) for dense in self.of(False)])
            return last_rate(pays)

        error = self.input.error
        return RateLimit(limit(error, -error), limit(0, 0), limit(-error, error))


def last_change(low, high, is_positive):
    """The largest x in [low, high] at which `is_positive` changes from false to true, searched on a logarithmic scale:
    `low` if it is true everywhere, infinite if it is false at `high`. is_positive: of an array of x"""
    grid = [high]
    while grid[-1] > low:
        grid.append(grid[-1] / 1.1)
    # A cluster of one host has the same answer for all rates.
    negative = np.flatnonzero(~np.broadcast_to(is_positive(np.array(grid)), len(grid)))
    if len(negative) == 0:
        return low
    first = int(negative[0])
    return bisected(grid[first], grid[first - 1], is_positive) if first else math.inf


def bisected(below, above, is_positive, rounds=10, at_once=6):
    """Where `is_positive` is true, after 60 bisections between a false and a true x. Arrays cost as little as numbers,
    so each round asks for all points that its bisections could come to."""
    for _ in range(rounds):
        points, levels = [(below, above)], []
        for _ in range(at_once):
            middles = [math.sqrt(low * high) for low, high in points]
            levels.append(middles)
            points = [half for (low, high), middle in zip(points, middles) for half in ((low, middle), (middle, high))]
        answers, place, offset = is_positive(np.array(sum(levels, []))), 0, 0
        for middles in levels:
            positive = answers[offset + place]
            below, above = (below, middles[place]) if positive else (middles[place], above)
            offset, place = offset + len(middles), 2 * place + (not positive)
    return above


def last_rate(pays):
    """The highest line rate in bytes/s below which `pays` is true: infinite if it always is, 0 if never."""
    least, most = 1e2, 1e14
    slowness = last_change(1 / most, 1 / least, lambda x: pays(1 / x))
    return math.inf if slowness <= 1 / most else 1 / slowness
