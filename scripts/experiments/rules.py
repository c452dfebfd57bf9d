#!/usr/bin/env python3
"""Runs a size of the run rules with some seeds, ranks and precisions: its reference of convergence.

scripts/run_rules.py compares with these losses, and docs/guide/run_rules.md quotes them. A run of `smoke` takes half a
minute on two cores, and a run of `node` almost an hour. So each run keeps its files under --runs, and another call goes
on with the runs that are not whole there, or are of another commit of the program or of another input.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from run_rules import wanted

from lib import laboratory, tables
from lib.runs import Run, run_in

RUNS = {  # of a size: ranks, precision and seed of each
    "smoke": [(ranks, precision, seed)
              for ranks, precision, seeds in ((1, "fp32", 3), (2, "fp32", 3), (4, "fp32", 5), (8, "fp32", 3),
                                              (4, "bf16", 3)) for seed in range(1, seeds + 1)],
    "node": [(2, "bf16", seed) for seed in range(1, 6)],
}
FIGURES = ["final_validation_loss", "tokens_per_s", "time_to_target_s", "reduction"]
COLUMNS = ["seed", "ranks", "precision", *FIGURES, "git", "machine", "runs"]


def whole(directory, git, keys):
    """The Run of this commit and of this resolved input whose files are in the directory, or None."""
    run = Run(directory)
    place = {"run.output": ""}  # another name of the directory is no other input
    same = {**run.input, **place} == {**keys, **place}
    return run if run.complete and run.run["git"] == git and same else None


def main():
    parser = laboratory.parser_of(__doc__, "results/rules.csv")
    parser.add_argument("size", choices=RUNS)
    parser.add_argument("--runs", type=pathlib.Path, required=True, metavar="DIR", help="has a directory for each run")
    arguments = parser.parse_args()
    origin, rows = laboratory.origin(arguments), []
    for ranks, precision, seed in RUNS[arguments.size]:
        directory = arguments.runs.resolve() / f"{ranks}_{precision}_{seed}"
        settings = [f"run.seed={seed}", f"model.precision={precision}", *arguments.set]
        run = whole(directory, origin["git"], wanted(arguments.onebit, arguments.size, settings)) or run_in(
            directory, ranks, arguments.onebit, f"inputs/rules/{arguments.size}.yaml", settings)
        rows.append({"seed": seed, "ranks": ranks, "precision": precision, "runs": 1,
                     **{name: run.run[name] for name in (*FIGURES, "git", "machine")}})
        tables.write_csv(arguments.output, rows, COLUMNS)
        print(f"{ranks} ranks, {precision}, seed {seed}: {run.run['final_validation_loss']}", flush=True)


if __name__ == "__main__":
    main()
