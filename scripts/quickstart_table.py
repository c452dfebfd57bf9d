#!/usr/bin/env python3
"""Prints the quick start's table, from the directories of its runs or from a CSV file that --csv wrote.

It leaves out how fast the runs were: four ranks share a small machine with whatever else runs there. --csv also writes
the rows, with that, the commit and the machine. README shows docs/results/quickstart.csv.
"""

import argparse
import pathlib
import sys

from lib import provenance
from lib.tables import number, read_csv, with_unit, write_csv

COLUMNS = ["algorithm", "final_validation_loss", "tokens_per_s", "bytes_sent", "reduction", "reduction_vs_16bit",
           "variance_frozen_at_step", *provenance.COLUMNS]
LINE = "{:<12}  {:>21}  {:>10}  {:>9}  {:>9}  {:>20}"
HEADER = ("algorithm", "final validation loss", "bytes sent", "reduction", "vs 16-bit", "variance frozen at")


def line_of(row):
    step = row["variance_frozen_at_step"]
    return LINE.format(row["algorithm"], f"{float(row['final_validation_loss']):.4f}",
                       with_unit(float(row["bytes_sent"]), ".1f"),
                       *(f"{number(row[column]):.1f}x" for column in ("reduction", "reduction_vs_16bit")),
                       "never" if step == "" or int(step) < 0 else f"step {step}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=pathlib.Path, metavar="FILE.csv")
    parser.add_argument("runs", nargs="+", type=pathlib.Path, metavar="RUN_DIRECTORY")
    arguments = parser.parse_args()
    rows = []
    for path in arguments.runs:
        file = path / "run.csv" if path.is_dir() else path
        rows += (read := read_csv(file))
        if lacking := [name for name in COLUMNS if name not in read[0] and name not in ("machine", "runs")]:
            sys.exit(f"quickstart_table: {file} has no column {lacking[0]}; remedy: run the quick start again")
    print("\n".join([LINE.format(*HEADER), *map(line_of, rows)]))
    if arguments.csv:
        machine = provenance.machine()
        write_csv(arguments.csv, [
            {**{name: row[name] for name in COLUMNS if name in row}, "machine": machine, "runs": 1,
             "git": provenance.check_version(row["git"], arguments.csv)} for row in rows], COLUMNS)


if __name__ == "__main__":
    main()
