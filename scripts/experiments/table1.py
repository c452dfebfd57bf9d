#!/usr/bin/env python3
"""Takes a training step apart on shaped networks, as Table 1 of the 1-bit Adam paper does (docs/guide/network.md).

For Adam, for Adam with averages in bf16 and for 1-bit Adam's compressed phase: forward pass, the part of the dense
average that the backward pass does not hide, the rest of the backward pass, step (optimiser and compressed exchange).
One rank a host. Needs root.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from lib import laboratory, tables

STAGES = {"adam": "dense", "adam_bf16": "dense", "onebit_adam": "compressed"}  # and their phases in steps.csv


def seconds_of(run, phase):
    """{column: seconds of a step} of a phase."""
    total = run.mean_s(phase, "step_s")
    communication = run.mean_s(phase, "allreduce_s", "all_to_all_s", "all_gather_s")
    return {"forward_s": run.mean_s(phase, "forward_s"),
            "backward_allreduce_s": run.mean_s(phase, "allreduce_s"),
            "backward_allreduce_hidden_s": run.mean_s(phase, "allreduce_hidden_s"),
            "backward_everything_else_s": run.mean_s(phase, "backward_s"),
            "step_s": run.mean_s(phase, "compress_s", "all_to_all_s", "average_s", "all_gather_s", "update_s"),
            "total_s": total, "communication_s": communication, "allreduce_share": communication / total}


def main():
    parser = laboratory.parser_of(__doc__, "results/table1.csv", parameters=25000000)
    parser.add_argument("--rates", type=laboratory.words, default="200mbit,1gbit", help="default: %(default)s")
    parser.add_argument("--hosts", type=laboratory.integers, default="2,4", help="default: %(default)s")
    arguments = parser.parse_args()

    origin, rows = laboratory.origin(arguments), []
    for rate in arguments.rates:
        for hosts in arguments.hosts:
            floats, bf16 = (laboratory.synthetic(arguments, hosts, rate, halved) for halved in (False, True))
            for stage, phase in STAGES.items():
                run = bf16 if stage == "adam_bf16" else floats
                rows.append({**run.columns(), "stage": stage,
                             **{name: f"{value:.6g}" for name, value in seconds_of(run, phase).items()}, **origin})
            tables.write_csv(arguments.output, rows)

    print(f"\n{rows[0]['parameters']} parameters, {float(rows[0]['compute_time_ms']):.3g} ms of compute; times in ms")
    times = ("forward_s", "backward_allreduce_s", "backward_allreduce_hidden_s", "backward_everything_else_s", "step_s",
             "total_s")
    print(tables.aligned(
        ["rate", "link Mbit/s", "hosts", "stage", "forward", "backward allreduce", "(hidden)", "backward else", "step",
         "total", "allreduce"],
        [[row["rate"], laboratory.mbit(row["link_bit_per_s"]), row["hosts"], row["stage"],
          *(f"{1e3 * float(row[name]):.1f}" for name in times), tables.percent(float(row["allreduce_share"]))]
         for row in rows]))


if __name__ == "__main__":
    main()
