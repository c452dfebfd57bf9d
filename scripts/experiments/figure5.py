#!/usr/bin/env python3
"""Measures throughput over the number of hosts, as Figure 5 of the 1-bit Adam paper does (docs/guide/network.md).

One rank a host, and 16 samples a rank as on one of the paper's GPUs. Adam's throughput is that of 1-bit Adam before the
freeze step, and with averages in bf16 that of a run of its own. All hosts share this machine's cores, so the model is
smaller than in other experiments. Needs root.
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
        halved = laboratory.synthetic(arguments, hosts, arguments.rate, bf16=True)
        adam, bf16, onebit = (SAMPLES_PER_RANK * hosts / of.mean_s(phase, "step_s")
                              for of, phase in ((run, "dense"), (halved, "dense"), (run, "compressed")))
        rows.append({**run.columns(), "adam_samples_per_s": f"{adam:.6g}", "adam_bf16_samples_per_s": f"{bf16:.6g}",
                     "onebit_adam_samples_per_s": f"{onebit:.6g}", "speedup": f"{onebit / adam:.4g}",
                     "speedup_vs_bf16": f"{onebit / bf16:.4g}", **origin})
        tables.write_csv(arguments.output, rows)

    print(f"\n{rows[0]['parameters']} parameters, {float(rows[0]['compute_time_ms']):.3g} ms of compute; samples/s")
    print(tables.aligned(["hosts", "rate", "link Mbit/s", "Adam", "in bf16", "1-bit Adam", "faster", "than bf16"], [
        [row["hosts"], row["rate"], laboratory.mbit(row["link_bit_per_s"]),
         *(f"{float(row[f'{name}_samples_per_s']):.1f}" for name in ("adam", "adam_bf16", "onebit_adam")),
         *(f"{float(row[name]):.2f}x" for name in ("speedup", "speedup_vs_bf16"))] for row in rows]))


if __name__ == "__main__":
    main()
