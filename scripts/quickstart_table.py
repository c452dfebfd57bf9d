#!/usr/bin/env python3
"""Prints the quick start's table from the directories of its runs.

Usage: quickstart_table.py [--csv FILE.csv] RUN_DIRECTORY…

--csv also writes the rows with the commit and the machine; docs/results/quickstart.csv is what README shows.
"""

import argparse
import pathlib
import sys

import results

COLUMNS = ["algorithm", "final_validation_loss", "tokens_per_s", "bytes_sent", "reduction", "reduction_vs_16bit",
           "variance_frozen_at_step", *results.PROVENANCE]
LINE = "{:<12}  {:>21}  {:>9}  {:>10}  {:>9}  {:>9}  {:>20}"


def with_unit(count):
    """Bytes with a decimal prefix and one decimal place."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def table(rows):
    """The lines of the table, from rows of run.csv or of --csv."""
    lines = [LINE.format("algorithm", "final validation loss", "tokens/s", "bytes sent", "reduction",
                         "vs 16-bit", "variance frozen at")]
    for row in rows:
        step = row["variance_frozen_at_step"]
        lines.append(LINE.format(row["algorithm"], f"{float(row['final_validation_loss']):.4f}",
                                 f"{float(row['tokens_per_s']):.0f}", with_unit(float(row["bytes_sent"])),
                                 f"{results.number(row['reduction']):.1f}x",
                                 f"{results.number(row['reduction_vs_16bit']):.1f}x",
                                 "never" if step == "" or int(step) < 0 else f"step {step}"))
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=pathlib.Path, metavar="FILE.csv")
    parser.add_argument("runs", nargs="+", type=pathlib.Path, metavar="RUN_DIRECTORY")
    arguments = parser.parse_args()
    rows = []
    for directory in arguments.runs:
        row = dict(*results.read_csv(directory / "run.csv")[-1:])
        if lacking := [column for column in COLUMNS if column not in row and column not in ("machine", "runs")]:
            sys.exit(f"quickstart_table.py: {directory}/run.csv has no column {lacking[0]}; remedy: run the quick start again")
        rows.append(row)
    print("\n".join(table(rows)))
    if arguments.csv:
        results.write_csv(arguments.csv, COLUMNS, [
            {**{column: row[column] for column in COLUMNS if column in row}, **results.provenance(row["git"], arguments.csv)}
            for row in rows])


if __name__ == "__main__":
    main()
