#!/usr/bin/env python3
"""Measures the peak of a rank's memory with each algorithm, in each of its phases, beside what the check at a run's
start counts.

The measured bytes are the peak of the process (Linux's VmHWM) less that of Adam with few parameters. A run of one step
is the dense phase; an algorithm without T_w has one phase, `all`.
"""

import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from lib import laboratory, tables
from lib.runs import run_here

FEW = 1000
COLUMNS = ["algorithm", "phase", "ranks", "parameters", "predicted_bytes", "measured_bytes", "git", "machine", "runs"]


def algorithms(program):
    listed = subprocess.run([program, "list"], capture_output=True, text=True, check=True).stdout
    return next(line for line in listed.splitlines() if line.startswith("algorithms:")).split(":")[1].split()


def main():
    parser = laboratory.parser_of(__doc__, "results/memory.csv")
    parser.add_argument("--parameters", type=int, default=6_000_000, help="of the model (6,000,000)")
    parser.add_argument("--ranks", type=int, default=2, help="(2)")
    arguments = parser.parse_args()
    origin, rows = laboratory.origin(arguments), []

    def run(algorithm, parameters, steps):
        return run_here(arguments.ranks, arguments.onebit, "inputs/synthetic_step.yaml", [
            f"optimizer.algorithm={algorithm}", f"workload.parameters={parameters}", f"train.steps={steps}",
            f"train.batch={arguments.ranks}", f"freeze.step={1 if steps > 1 else 2}", "train.validate_every=0",
            "train.validation_batch=1", "comm.exchange=collective", "workload.compute_time_ms=0", *arguments.set]).run

    constant = float(run("adam", FEW, 1)["peak_memory_bytes"])
    for algorithm in algorithms(arguments.onebit):
        whole = run(algorithm, arguments.parameters, 3)
        phases = {"compressed": whole}
        if whole["predicted_dense_bytes"] == whole["predicted_compressed_bytes"]:
            phases = {"all": whole}
        else:
            phases = {"dense": run(algorithm, arguments.parameters, 1), **phases}
        for phase, of_phase in phases.items():
            column = "predicted_dense_bytes" if phase == "dense" else "predicted_compressed_bytes"
            predicted = round(float(of_phase[column]))
            measured = round(float(of_phase["peak_memory_bytes"]) - constant)
            rows.append({"algorithm": algorithm, "phase": phase, "ranks": arguments.ranks,
                         "parameters": arguments.parameters, "predicted_bytes": predicted, "measured_bytes": measured,
                         "runs": 1, **origin})
            tables.write_csv(arguments.output, rows, COLUMNS)
            print(f"| `{algorithm}` | {phase} | {predicted / arguments.parameters:.2f} | "
                  f"{measured / arguments.parameters:.2f} | {100 * (predicted / measured - 1):+.1f} % |", flush=True)


if __name__ == "__main__":
    main()
