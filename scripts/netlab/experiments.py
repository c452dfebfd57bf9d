"""What the experiments of this folder share: a run of `onebit train` in a laboratory, and its CSV files.

The synthetic experiments train inputs/synthetic_step.yaml: each rank sleeps for as long as its share of BERT-Large would
compute, and everything else is real: the exchange, its kernels and the optimiser. One run has both sides: the first steps
are Adam's, the others 1-bit Adam's compression stage. The first step of either side warms up and is not counted.
"""

import math
import os
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import results  # noqa: E402
from netlab import LEAST_BURST_BYTES, run_while_here  # noqa: E402
from results import read_csv  # noqa: E402

# BERT-Large, sequence 128, 64 GPUs on Ethernet, batch 16 a GPU, no accumulation (Table 1 of the 1-bit Adam paper):
# forward, backward without allreduce, and step, in ms. The step is counted too, although the optimiser really runs here.
BERT_LARGE_PARAMETERS = 336e6
BERT_LARGE_COMPUTE_MS = 35.71 + 60.81 + 75.59


def write_csv(path, rows):
    results.write_csv(pathlib.Path(path), list(rows[0]), rows)


class Links:
    """What the file says that netlab.py --links wrote: the slowest link's bits per second, and the bytes of a burst."""

    def __init__(self, path):
        rows = read_csv(path)
        self.bit_per_s = min(float(row["measured_bit_per_s"]) for row in rows)
        self.burst_bytes = int(rows[0]["burst_bytes"])

    def columns(self):
        return {"link_bit_per_s": f"{self.bit_per_s:.0f}", "burst_bytes": self.burst_bytes}


def provenance(arguments):
    """The columns that say where a row comes from: the program's commit and this machine; a row's `runs` come to it.

    Called before the first measurement, because it refuses results of uncommitted sources for docs/results."""
    return {"git": results.program_version(arguments.onebit, arguments.output), "machine": results.machine()}


def bytes_that_leave_a_host(row):
    """Of all its ranks in one call; hierarchical averages count only those, others what goes to any rank."""
    ranks, wire = int(row["ranks"]), float(row["wire_bytes"])
    ranks_per_host = ranks // int(row["hosts"])
    to_other_hosts = 1 if row["collective"].startswith("hierarchical") else (ranks - ranks_per_host) / (ranks - 1)
    return ranks_per_host * wire * to_other_hosts


def burst_share(row):
    """The part of these bytes that an idle link passes at once, which says nothing about its rate, at most: a burst for
    each of a call's two exchanges, because the link may rest between them while ranks average and compress."""
    return 2 * float(row["burst_bytes"]) / bytes_that_leave_a_host(row)


def steady_s(row):
    """The median time of a call if all its bytes went at the pace of those behind the bursts. A call is done when its
    slowest rank is. Infinite for messages that are no longer than the bursts."""
    rest = 1 - burst_share(row)
    return float(row["p50_s"]) / rest if rest > 0 else math.inf


def share_of_line_rate(row):
    """(bytes that leave a host − bursts) / measured bandwidth of its link / time."""
    return 8 * bytes_that_leave_a_host(row) / float(row["link_bit_per_s"]) / steady_s(row)


def fastest(rows, compressed):
    return min((row for row in rows if ("compressed" in row["collective"]) == compressed), key=steady_s)


def bench_collective(onebit, hosts, ranks_per_host, rate, source, settings, least_burst_bytes=LEAST_BURST_BYTES):
    """Rows of collective.csv with the laboratory's columns; settings are `key=value`."""
    with tempfile.TemporaryDirectory(prefix="onebit-experiment.") as scratch:
        links, output = os.path.join(scratch, "links.csv"), os.path.join(scratch, "out")
        command = [sys.executable, str(HERE / "netlab.py"), "--hosts", str(hosts), "--ranks-per-host",
                   str(ranks_per_host), "--rate", rate, "--least-burst", str(least_burst_bytes), "--links", links, "--", onebit, "bench", "collective", source]
        for setting in [f"run.output={output}", *settings]:
            command += ["--set", setting]
        if run_while_here(command, cwd=ROOT) != 0:
            sys.exit(f"{os.path.basename(sys.argv[0])}: the measurement of {hosts} hosts at {rate} failed, see above")
        laboratory = {"rate": rate, **Links(links).columns()}
        rows = read_csv(os.path.join(output, "collective.csv"))
        return [{**row, **laboratory, "runs": row["repetitions"]} for row in rows]


def add_arguments(parser, output, parameters=25000000):
    """The options that every experiment has; the last four are for those that are synthetic (parameters not 0)."""
    parser.add_argument("--onebit", default=str(ROOT / "build/openmp/onebit"))
    parser.add_argument("--output", default=output, help=f"CSV file (default {output})")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the input")
    if parameters:
        parser.add_argument("--parameters", type=int, default=parameters)
        parser.add_argument("--dense-steps", type=int, default=3)
        parser.add_argument("--compressed-steps", type=int, default=6)
        parser.add_argument("--compute-scale", type=float, default=1,
                            help="factor on the compute time, which is BERT-Large's by parameters; 2 scales it by bytes, "
                                 "because the paper's gradients have 2 of them for a parameter and these have 4")


class Run:
    """What a run left: rows of steps.csv, the row of run.csv, and its links."""

    def __init__(self, arguments, hosts, rate, source, settings):
        environment = {"OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                       **os.environ}
        with tempfile.TemporaryDirectory(prefix="onebit-experiment.") as scratch:
            links, output = os.path.join(scratch, "links.csv"), os.path.join(scratch, "out")
            laboratory = [sys.executable, str(HERE / "netlab.py"), "--hosts", str(hosts), "--rate", rate, "--links", links,
                          "--"] if hosts > 1 else ["mpirun", "-n", "1"]
            command = [*laboratory, arguments.onebit, "train", source, "--set", f"run.output={output}"]
            for setting in [*(f"{key}={value}" for key, value in settings.items()), *arguments.set]:
                command += ["--set", setting]
            if run_while_here(command, cwd=ROOT, env=environment) != 0:
                sys.exit(f"{os.path.basename(sys.argv[0])}: the run on {hosts} host(s) at {rate} failed, see above")
            self.steps = read_csv(os.path.join(output, "steps.csv"))
            self.row = read_csv(os.path.join(output, "run.csv"))[0]
            self.links = Links(links) if hosts > 1 else None

    def mean_s(self, phase, *columns):
        """Seconds of a step of `dense` or `compressed` on rank 0: the sum of some columns of steps.csv."""
        counted = self.counted(phase)
        return sum(float(row[column]) for row in counted for column in columns) / len(counted)

    def counted(self, phase):
        """The steps of `dense` or `compressed` but the first one, which warms up."""
        return [row for row in self.steps if row["phase"] == phase][1:]

    def columns(self, hosts, rate):
        """The columns that every row of a synthetic experiment begins with: one run, and the steps in its means."""
        links = self.links.columns() if self.links else {"link_bit_per_s": "", "burst_bytes": ""}
        return {"rate": rate if hosts > 1 else "", **links, "hosts": hosts, "runs": 1,
                "dense_steps": len(self.counted("dense")), "compressed_steps": len(self.counted("compressed")),
                "parameters": self.row["parameters"], "compute_time_ms": self.row["compute_time_ms"],
                "compute_overruns": self.row["compute_overruns"], "bucket_bytes": self.row["bucket_bytes"]}


def synthetic(arguments, hosts, rate):
    compute = arguments.compute_scale * BERT_LARGE_COMPUTE_MS * arguments.parameters / BERT_LARGE_PARAMETERS
    return Run(arguments, hosts, rate, "inputs/synthetic_step.yaml", {
        "workload.parameters": arguments.parameters, "workload.compute_time_ms": f"{compute:.6g}",
        "train.steps": arguments.dense_steps + arguments.compressed_steps, "freeze.step": arguments.dense_steps})
