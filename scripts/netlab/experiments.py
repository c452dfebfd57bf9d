"""What the experiments of this folder share: a run of `onebit train` in a laboratory, and its CSV files.

The synthetic experiments train inputs/synthetic_step.yaml: each rank sleeps for as long as its share of BERT-Large would
compute, and everything else is real: the exchange, its kernels and the optimiser. One run has both sides: the first steps
are Adam's, the others 1-bit Adam's compression stage. The first step of either side warms up and is not counted.
"""

import os
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import results  # noqa: E402
from netlab import run_while_here  # noqa: E402
from results import read_csv  # noqa: E402

# BERT-Large, sequence 128, 64 GPUs on Ethernet, batch 16 a GPU, no accumulation (Table 1 of the 1-bit Adam paper):
# forward, backward without allreduce, and step, in ms. The step is counted too, although the optimiser really runs here.
BERT_LARGE_PARAMETERS = 336e6
BERT_LARGE_COMPUTE_MS = 35.71 + 60.81 + 75.59


def write_csv(path, rows):
    results.write_csv(pathlib.Path(path), list(rows[0]), rows)


def slowest_link(links):
    """Measured bits per second, of the file that netlab.py --links wrote."""
    return min(float(row["measured_bit_per_s"]) for row in read_csv(links))


def bench_collective(onebit, hosts, ranks_per_host, rate, source, settings):
    """Rows of collective.csv and the slowest link's measured bits per second; settings are `key=value`."""
    with tempfile.TemporaryDirectory(prefix="onebit-experiment.") as scratch:
        links, output = os.path.join(scratch, "links.csv"), os.path.join(scratch, "out")
        command = [sys.executable, str(HERE / "netlab.py"), "--hosts", str(hosts), "--ranks-per-host",
                   str(ranks_per_host), "--rate", rate, "--links", links, "--", onebit, "bench", "collective", source]
        for setting in [f"run.output={output}", *settings]:
            command += ["--set", setting]
        if run_while_here(command, cwd=ROOT) != 0:
            sys.exit(f"{os.path.basename(sys.argv[0])}: the measurement of {hosts} hosts at {rate} failed, see above")
        return read_csv(os.path.join(output, "collective.csv")), slowest_link(links)


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
    """What a run left: rows of steps.csv, the row of run.csv, and the slowest link's measured bits per second."""

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
            self.link = slowest_link(links) if hosts > 1 else None

    def mean_s(self, phase, *columns):
        """Seconds of a step of `dense` or `compressed` on rank 0: the sum of some columns of steps.csv."""
        counted = [row for row in self.steps if row["phase"] == phase][1:]
        return sum(float(row[column]) for row in counted for column in columns) / len(counted)

    def columns(self, hosts, rate):
        """The columns that every row of a synthetic experiment begins with."""
        return {"rate": rate if hosts > 1 else "", "link_bit_per_s": f"{self.link:.0f}" if self.link else "",
                "hosts": hosts, "parameters": self.row["parameters"], "compute_time_ms": self.row["compute_time_ms"],
                "compute_overruns": self.row["compute_overruns"], "bucket_bytes": self.row["bucket_bytes"]}


def synthetic(arguments, hosts, rate):
    compute = arguments.compute_scale * BERT_LARGE_COMPUTE_MS * arguments.parameters / BERT_LARGE_PARAMETERS
    return Run(arguments, hosts, rate, "inputs/synthetic_step.yaml", {
        "workload.parameters": arguments.parameters, "workload.compute_time_ms": f"{compute:.6g}",
        "train.steps": arguments.dense_steps + arguments.compressed_steps, "warmup.steps": arguments.dense_steps})
