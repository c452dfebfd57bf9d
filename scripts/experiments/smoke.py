#!/usr/bin/env python3
"""Runs the size `smoke` of the run rules with some seeds, ranks and precisions: the losses behind its bound.

docs/guide/run_rules.md quotes them. A run takes half a minute on two cores.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from lib import laboratory, tables
from lib.runs import run_here

RUNS = [(ranks, "fp32", seed) for ranks, seeds in ((1, 3), (2, 3), (4, 5), (8, 3)) for seed in range(1, seeds + 1)]
RUNS += [(4, "bf16", seed) for seed in (1, 2, 3)]
COLUMNS = ["seed", "ranks", "precision", "final_validation_loss", "reduction", "git", "machine", "runs"]


def main():
    arguments = laboratory.parser_of(__doc__, "results/smoke.csv").parse_args()
    origin, rows = laboratory.origin(arguments), []
    for ranks, precision, seed in RUNS:
        run = run_here(ranks, arguments.onebit, "inputs/rules/smoke.yaml",
                       [f"run.seed={seed}", f"model.precision={precision}", *arguments.set]).run
        rows.append({"seed": seed, "ranks": ranks, "precision": precision, "runs": 1, **origin,
                     **{name: run[name] for name in ("final_validation_loss", "reduction")}})
        tables.write_csv(arguments.output, rows, COLUMNS)
        print(f"{ranks} ranks, {precision}, seed {seed}: {run['final_validation_loss']}", flush=True)


if __name__ == "__main__":
    main()
