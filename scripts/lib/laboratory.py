"""Measurements in the network laboratory: runs of `onebit` on hosts with shaped links (netlab.py), and their rows.

The synthetic experiments train inputs/synthetic_step.yaml. Each rank sleeps for as long as its share of BERT-Large
would compute; the exchange, its kernels and the optimiser are real. One run measures both sides: the first steps are
Adam's, the others 1-bit Adam's compressed phase. The first step of either side warms up and does not count.
"""

import argparse
import math
import os
import pathlib
import re
import sys
import tempfile

from lib import ROOT, launch, program_name, provenance
from lib.tables import read_csv

# BERT-Large, sequence 128, 64 GPUs on Ethernet, batch 16 a GPU, no accumulation (Table 1 of the 1-bit Adam paper):
# forward, backward without allreduce, and step, in ms. The step is included, although the optimiser really runs here.
BERT_LARGE_PARAMETERS = 336e6
BERT_LARGE_COMPUTE_MS = 35.71 + 60.81 + 75.59

# A link that was idle passes this many bytes at once before its rate holds. A real link has no burst. The smallest
# bucket that carries the rate is the closest to it: a larger one hides pauses of the ranks (docs/guide/network.md).
LEAST_BURST_BYTES = 32768
TIMER_S = 0.35e-3  # largest delay of the kernel's timer


def bits_per_second(rate):
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(k|m|g)bit", rate)
    if not match:
        raise argparse.ArgumentTypeError(f"'{rate}' is not a rate like 50mbit, 200mbit or 1gbit")
    return float(match[1]) * {"k": 1e3, "m": 1e6, "g": 1e9}[match[2]]


def burst_of(rate, least=LEAST_BURST_BYTES):
    """Bytes of the token bucket of a link with this many bits per second."""
    return max(least, int(rate / 8 * TIMER_S))


def with_smallest_bursts(rows):
    """The rows of each rate's smallest bucket, which is the nearest to a real link and favours compression least."""
    least = {}
    for row in rows:
        least[row["rate"]] = min(int(row["burst_bytes"]), least.get(row["rate"], math.inf))
    return [row for row in rows if int(row["burst_bytes"]) == least[row["rate"]]]


def bytes_that_leave_a_host(row):
    """Bytes of all ranks of a host in one call.

    `wire_bytes` of a hierarchical average counts bytes to other hosts alone; that of others, bytes to any rank.
    """
    ranks, wire = int(row["ranks"]), float(row["wire_bytes"])
    ranks_per_host = ranks // int(row["hosts"])
    to_other_hosts = 1 if row["collective"].startswith("hierarchical") else (ranks - ranks_per_host) / (ranks - 1)
    return ranks_per_host * wire * to_other_hosts


def burst_share(row):
    """The largest share of these bytes that may pass in bursts, which say nothing about the rate.

    A call has two exchanges. The link may rest between them, while ranks average and compress, so it may pass two
    bursts.
    """
    return 2 * float(row["burst_bytes"]) / bytes_that_leave_a_host(row)


def steady_s(row):
    """The median time of a call (of its slowest rank) if the bytes of the bursts went at the pace of the others.

    Infinite for messages that are no longer than the bursts.
    """
    rest = 1 - burst_share(row)
    return float(row["p50_s"]) / rest if rest > 0 else math.inf


def share_of_line_rate(row):
    """(bytes that leave a host − bursts) / measured bandwidth of its link / time."""
    return 8 * bytes_that_leave_a_host(row) / float(row["link_bit_per_s"]) / steady_s(row)


def kind_of(row):
    """`compressed`, `bf16` for a dense average in 16 bits, or `dense` for one in float."""
    return next((kind for kind in ("compressed", "bf16") if kind in row["collective"]), "dense")


def fastest(rows, kind):
    """The fastest row of a kind; None where there is none."""
    return min((row for row in rows if kind_of(row) == kind), key=steady_s, default=None)


def columns_of_links(path):
    """The columns of a laboratory whose measured links are in this file of netlab.py."""
    rows = read_csv(path)
    slowest = min(float(row["measured_bit_per_s"]) for row in rows)
    return {"link_bit_per_s": f"{slowest:.0f}", "burst_bytes": int(rows[0]["burst_bytes"])}


class Measurement:
    """The CSV files that a command of `onebit` left in a laboratory, and the measured links.

    One host has no links, so `links` is then empty text in each column.
    """

    def __init__(self, onebit, command, settings, hosts, rate, ranks_per_host=1, least_burst_bytes=LEAST_BURST_BYTES):
        with tempfile.TemporaryDirectory(prefix="onebit-experiment.") as scratch:
            links, output = pathlib.Path(scratch, "links.csv"), pathlib.Path(scratch, "out")
            full = [onebit, *command, "--set", f"run.output={output}", *launch.overrides(settings)]
            if hosts > 1:
                full = [sys.executable, ROOT / "scripts/netlab.py", "--hosts", hosts, "--ranks-per-host",
                        ranks_per_host, "--rate", rate, "--least-burst", least_burst_bytes, "--links", links, "--",
                        *full]
            else:
                full = launch.mpirun(1, *full)
            status = launch.run_while_here(list(map(str, full)), cwd=ROOT, env={"OMP_NUM_THREADS": "1", **os.environ})
            if status != 0:
                sys.exit(f"{program_name()}: `onebit {command[0]}` on {hosts} host(s) at {rate} failed, see above")
            self.files = {path.name: read_csv(path) for path in output.glob("*.csv")}
            self.links = {"link_bit_per_s": "", "burst_bytes": ""}
            if hosts > 1:
                self.links = columns_of_links(links)


def bench_collective(onebit, settings, hosts, rate, source, **laboratory):
    """Rows of collective.csv with the laboratory's columns."""
    measured = Measurement(onebit, ["bench", "collective", source], settings, hosts, rate, **laboratory)
    return [{**row, "rate": rate, **measured.links, "runs": row["repetitions"]}
            for row in measured.files["collective.csv"]]


class TrainingRun(Measurement):
    """A run of `onebit train` with one rank on each host. `steady`: the steps of a stage that count."""

    def __init__(self, arguments, source, settings, hosts, rate, steady=(1, None)):
        settings = [*(f"{key}={value}" for key, value in settings.items()), *arguments.set]
        super().__init__(arguments.onebit, ["train", source], settings, hosts, rate)
        self.steps, self.row = self.files["steps.csv"], self.files["run.csv"][0]
        self.hosts, self.rate, self.steady = hosts, rate, steady

    def counted(self, phase):
        """The steps of `dense` or `compressed` that count; without others, the first one is left out: it warms up."""
        return [row for row in self.steps if row["phase"] == phase][slice(*self.steady)]

    def mean_s(self, phase, *columns):
        """Seconds of a step of `dense` or `compressed` on rank 0: the sum of some columns of steps.csv."""
        counted = self.counted(phase)
        return sum(float(row[column]) for row in counted for column in columns) / len(counted)

    def line_s(self, phase):
        """Seconds that the bytes of a step take at the measured rate of a link."""
        counted = self.counted(phase)
        return 8 * sum(int(row["bytes_sent"]) for row in counted) / len(counted) / float(self.links["link_bit_per_s"])

    def columns(self):
        """The columns that every row of a synthetic experiment begins with."""
        return {"rate": self.rate if self.hosts > 1 else "", **self.links, "hosts": self.hosts, "runs": 1,
                "dense_steps": len(self.counted("dense")), "compressed_steps": len(self.counted("compressed")),
                **{name: self.row[name] for name in ("parameters", "compute_time_ms", "compute_overruns",
                                                     "bucket_bytes")}}


def synthetic(arguments, hosts, rate, bf16=False, compute_ms=None):
    """Adam's steps and then those of 1-bit Adam; with `bf16` Adam's alone, whose dense averages are in 16 bits."""
    return TrainingRun(arguments, "inputs/synthetic_step.yaml", {
        **synthetic_gradient(arguments, compute_ms),
        "train.steps": arguments.dense_steps + (0 if bf16 else arguments.compressed_steps),
        **({"optimizer.algorithm": "adam", "comm.dense_type": "bf16"} if bf16 else {}),
        "freeze.step": arguments.dense_steps}, hosts, rate)


def synthetic_overlapped(arguments, hosts, rate, bucket_bytes, compute_ms=None):
    """1-bit Adam's steps with the momentum averaged in buckets beside the computation. Three of the compressed steps do
    not count: nothing hides the first one, the second one has nothing to end of a step before, and the last one ends
    its own update."""
    return TrainingRun(arguments, "inputs/synthetic_step.yaml", {
        **synthetic_gradient(arguments, compute_ms), "train.steps": arguments.compressed_steps + 4,
        "comm.dense_type": "bf16", "comm.compressed_bucket_bytes": bucket_bytes, "freeze.step": 1}, hosts, rate,
        steady=(2, -1))


def synthetic_gradient(arguments, compute_ms):
    """Its settings. `compute_ms` takes the place of BERT-Large's time in proportion to the parameters."""
    if compute_ms is None:
        compute_ms = arguments.compute_scale * BERT_LARGE_COMPUTE_MS * arguments.parameters / BERT_LARGE_PARAMETERS
    return {"workload.parameters": arguments.parameters, "workload.compute_time_ms": f"{compute_ms:.6g}"}


def parser_of(description, output, parameters=None):
    """A parser with the options of every experiment; `parameters` is for the synthetic ones."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onebit", type=launch.program, default=launch.ONEBIT, metavar="PROGRAM")
    parser.add_argument("--output", default=output, metavar="FILE.csv", help="default: %(default)s")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the input")
    if parameters:
        parser.add_argument("--parameters", type=int, default=parameters, help="default: %(default)s")
        parser.add_argument("--dense-steps", type=int, default=3, help="default: %(default)s")
        parser.add_argument("--compressed-steps", type=int, default=6, help="default: %(default)s")
        parser.add_argument("--compute-scale", type=float, default=1,
                            help="factor of the compute time, which is BERT-Large's by parameters; 2 scales it by "
                                 "bytes, because the paper's gradients have 2 bytes a parameter and these have 4")
    return parser


def origin(arguments):
    """The columns `git` and `machine`; ends the program where docs/results may not have its rows."""
    return provenance.of_program(arguments.onebit, arguments.output)


def mbit(bit_per_s):
    """Megabits per second as a cell; empty where there is no link."""
    return f"{float(bit_per_s) / 1e6:.1f}" if bit_per_s else ""


def integers(text):
    """1,2,4 → [1, 2, 4]: the type of an option."""
    return [int(number) for number in text.split(",")]


def numbers(text):
    """200,1000 → [200.0, 1000.0]: the type of an option."""
    return [float(number) for number in text.split(",")]


def words(text):
    """50mbit,1gbit → ["50mbit", "1gbit"]: the type of an option."""
    return text.split(",")
