#!/usr/bin/env python3
"""Measures the gain of compression in a whole step on shaped networks, as Figure 9 of the paper
(docs/guide/network.md).

One rank a host. Adam averages floats in one run and bf16 in another (`comm.dense_type`). The paper's speed-ups beside
the measured ones are those of 256 GPUs, 4 on a host, and half precision: 16 times fewer bytes. figure9.py
measures the exchange alone. Needs root.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from lib import laboratory, tables

PAPER = {"50mbit": 10.83, "1gbit": 6.59, "2gbit": 5.93}


def main():
    parser = laboratory.parser_of(__doc__, "results/whole_step.csv", parameters=25000000)
    parser.add_argument("--hosts", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--rates", type=laboratory.words, default="50mbit,200mbit,1gbit,2gbit,3gbit",
                        help="default: %(default)s")
    arguments = parser.parse_args()

    origin, rows = laboratory.origin(arguments), []
    for rate in arguments.rates:
        run = laboratory.synthetic(arguments, arguments.hosts, rate)
        halved = laboratory.synthetic(arguments, arguments.hosts, rate, bf16=True)
        adam, onebit = run.mean_s("dense", "step_s"), run.mean_s("compressed", "step_s")
        bf16 = halved.mean_s("dense", "step_s")
        seconds = {"adam_s": adam, "adam_allreduce_s": run.mean_s("dense", "allreduce_s"),
                   "adam_allreduce_hidden_s": run.mean_s("dense", "allreduce_hidden_s"), "adam_bf16_s": bf16,
                   "adam_bf16_allreduce_s": halved.mean_s("dense", "allreduce_s"), "onebit_adam_s": onebit,
                   "onebit_adam_communication_s": run.mean_s("compressed", "all_to_all_s", "all_gather_s")}
        rows.append({**run.columns(), **{name: f"{value:.6g}" for name, value in seconds.items()},
                     "speedup": f"{adam / onebit:.4g}",
                     "speedup_vs_bf16": f"{bf16 / onebit:.4g}", "paper_speedup": PAPER.get(rate, ""), **origin})
        tables.write_csv(arguments.output, rows)

    print(f"\n{rows[0]['parameters']} parameters, {arguments.hosts} hosts, {float(rows[0]['compute_time_ms']):.3g} ms "
          "of compute; seconds of a step")
    times = ("adam_s", "adam_allreduce_s", "adam_bf16_s", "adam_bf16_allreduce_s", "onebit_adam_s",
             "onebit_adam_communication_s")
    print(tables.aligned(
        ["rate", "link Mbit/s", "Adam", "allreduce", "in bf16", "allreduce", "1-bit Adam", "exchange", "faster",
         "than bf16", "paper"],
        [[row["rate"], laboratory.mbit(row["link_bit_per_s"]), *(f"{float(row[name]):.4f}" for name in times),
          *(f"{float(row[name]):.2f}x" for name in ("speedup", "speedup_vs_bf16")),
          f"{row['paper_speedup']}x" if row["paper_speedup"] else ""]
         for row in rows]))


if __name__ == "__main__":
    main()
