#!/usr/bin/env python3
"""Measures throughput over the number of hosts, as Figure 5 of the 1-bit Adam paper does (docs/guide/network.md).

One rank a host, and 16 samples a rank as on one of the paper's GPUs. Adam's throughput is that of 1-bit Adam before the
freeze step. All hosts share this machine's cores, so the model is smaller than in other experiments. Needs root.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from lib import laboratory, tables

SAMPLES_PER_RANK = 16


def main():
    parser = laboratory.parser_of(__doc__, "results/figure5.csv", parameters=8000000)
    parser.add_argument("--hosts", type=laboratory.integers, default="1,2,4,6,8", help="default: %(default)s")
    parser.add_argument("--rate", default="1gbit", help="default: %(default)s")
    arguments = parser.parse_args()

    origin, rows = laboratory.origin(arguments), []
    for hosts in arguments.hosts:
        run = laboratory.synthetic(arguments, hosts, arguments.rate)
        adam, onebit = (SAMPLES_PER_RANK * hosts / run.mean_s(phase, "step_s") for phase in ("dense", "compressed"))
        rows.append({**run.columns(), "adam_samples_per_s": f"{adam:.6g}",
                     "onebit_adam_samples_per_s": f"{onebit:.6g}", "speedup": f"{onebit / adam:.4g}", **origin})
        tables.write_csv(arguments.output, rows)

    print(f"\n{rows[0]['parameters']} parameters, {float(rows[0]['compute_time_ms']):.3g} ms of compute; samples/s")
    print(tables.aligned(["hosts", "rate", "link Mbit/s", "Adam", "1-bit Adam", "faster"], [
        [row["hosts"], row["rate"], laboratory.mbit(row["link_bit_per_s"]), f"{float(row['adam_samples_per_s']):.1f}",
         f"{float(row['onebit_adam_samples_per_s']):.1f}", f"{float(row['speedup']):.2f}x"] for row in rows]))


if __name__ == "__main__":
    main()
