#!/usr/bin/env python3
"""Measures the peak of a rank's memory with each algorithm, in each of its phases, beside what the check at a run's
start counts.

The measured bytes are the peak of the process (Linux's VmHWM) less that of the same run with few parameters. The dense
phase is a run of one step.
"""

import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from lib import laboratory, tables
from lib.runs import run_here

FEW = 1000
COLUMNS = ["algorithm", "phase", "ranks", "parameters", "predicted_bytes", "measured_bytes", "git", "machine", "runs"]
PHASES = {"dense": 1, "compressed": 3}  # steps


def algorithms(program):
    listed = subprocess.run([program, "list"], capture_output=True, text=True, check=True).stdout
    return next(line for line in listed.splitlines() if line.startswith("algorithms:")).split(":")[1].split()


def measure(program, algorithm, ranks, parameters, phase, more=()):
    """(predicted, measured) bytes of a rank."""
    settings = ["workload.kind=synthetic", f"optimizer.algorithm={algorithm}", f"train.steps={PHASES[phase]}",
                "freeze.step=1", f"train.batch={ranks}", "train.validate_every=0", "train.validation_batch=1",
                "comm.exchange=collective", "workload.compute_time_ms=0", *more]
    runs = [run_here(ranks, program, "inputs/synthetic_step.yaml", [*settings, f"workload.parameters={d}"]).run
            for d in (FEW, parameters)]
    column = f"predicted_{phase}_bytes"
    return (int(float(runs[1][column])),
            int(float(runs[1]["peak_memory_bytes"]) - float(runs[0]["peak_memory_bytes"])))


def main():
    parser = laboratory.parser_of(__doc__, "results/memory.csv")
    parser.add_argument("--parameters", type=int, default=20_000_000, help="of the model (20,000,000)")
    parser.add_argument("--ranks", type=int, default=2, help="(2)")
    arguments = parser.parse_args()
    origin, rows = laboratory.origin(arguments), []
    for algorithm in algorithms(arguments.onebit):
        for phase in PHASES:
            predicted, measured = measure(arguments.onebit, algorithm, arguments.ranks, arguments.parameters, phase,
                                          arguments.set)
            rows.append({"algorithm": algorithm, "phase": phase, "ranks": arguments.ranks,
                         "parameters": arguments.parameters, "predicted_bytes": predicted, "measured_bytes": measured,
                         "runs": 1, **origin})
            tables.write_csv(arguments.output, rows, COLUMNS)
            print(f"{algorithm:20s} {phase:10s} predicted {predicted / 1e6:7.1f} MB, "
                  f"measured {measured / 1e6:7.1f} MB, {predicted / measured:.3f}", flush=True)


if __name__ == "__main__":
    main()
