#!/usr/bin/env python3
"""Measures what compression gains on shaped networks, as in Figure 9 of the 1-bit Adam paper, and prints one table.

Usage: figure9.py [--onebit PROGRAM] [--hosts 4] [--rates 50mbit,200mbit,1gbit,3gbit] [--output FILE.csv] [INPUT.yaml]

For each rate a laboratory is made (netlab.py; needs root) and `onebit bench collective INPUT.yaml` runs in it. The table
compares the fastest dense average with the fastest compressed one, and says for both which share of the line rate they
reach: (bytes that a rank sends / measured bandwidth of its link) / time. The paper's own speed-ups at these bandwidths
are for 256 GPUs and BERT-Large and are not repeated here.
"""

import argparse
import csv
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def measure(arguments, rate, scratch):
    """Rows of collective.csv and the slowest link's measured bits per second."""
    links = scratch / "links.csv"
    command = [sys.executable, str(HERE / "netlab.py"), "--hosts", str(arguments.hosts), "--rate", rate, "--links",
               str(links), "--", arguments.onebit, "bench", "collective", arguments.input, "--set",
               f"run.output={scratch / 'out'}"]
    if subprocess.run(command, cwd=ROOT).returncode != 0:
        raise SystemExit(f"figure9: the measurement at {rate} failed, see above")
    with open(links) as file:
        slowest = min(float(row["measured_bit_per_s"]) for row in csv.DictReader(file))
    with open(scratch / "out" / "collective.csv") as file:
        return list(csv.DictReader(file)), slowest


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onebit", default=str(ROOT / "build/openmp/onebit"))
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rates", default="50mbit,200mbit,1gbit,3gbit")
    parser.add_argument("--output", help="CSV file for the rows of all rates")
    parser.add_argument("input", nargs="?", default="inputs/figure9.yaml")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")

    all_rows, lines = [], []
    for rate in arguments.rates.split(","):
        with tempfile.TemporaryDirectory(prefix="onebit-figure9.") as scratch:
            rows, link = measure(arguments, rate, pathlib.Path(scratch))
        for row in rows:
            row["rate"], row["link_bit_per_s"] = rate, f"{link:.0f}"
            row["share_of_line_rate"] = f"{8 * float(row['wire_bytes']) / link / float(row['mean_s']):.3f}"
        all_rows += rows
        dense = min((r for r in rows if "allreduce" in r["collective"]), key=lambda r: float(r["mean_s"]))
        sign = min((r for r in rows if "compressed" in r["collective"]), key=lambda r: float(r["mean_s"]))
        lines.append(f"{rate:>8}  {link / 1e6:>10.1f}  {dense['collective']:>20} {float(dense['mean_s']):>9.3f} "
                     f"{100 * float(dense['share_of_line_rate']):>5.0f}%  {sign['collective']:>20} "
                     f"{float(sign['mean_s']):>9.4f} {100 * float(sign['share_of_line_rate']):>5.0f}%  "
                     f"{float(dense['mean_s']) / float(sign['mean_s']):>7.1f}x")
        if arguments.output:
            partial = arguments.output + ".partial"
            with open(partial, "w", newline="") as file:
                writer = csv.DictWriter(file, list(all_rows[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows(all_rows)
            os.replace(partial, arguments.output)
    print(f"\n{all_rows[0]['parameters']} parameters, {arguments.hosts} hosts")
    print(f"{'rate':>8}  {'link Mbit/s':>10}  {'fastest dense':>20} {'s':>9} {'line':>6}  {'fastest compressed':>20} "
          f"{'s':>9} {'line':>6}  {'faster':>8}")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
