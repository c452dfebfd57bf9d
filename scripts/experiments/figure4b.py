#!/usr/bin/env python3
"""Measures loss over time on a slow network, as in Figure 4(b) of the 1-bit Adam paper (docs/guide/network.md).

Trains inputs/figure4b.yaml with Adam, 1-bit Adam and 1-bit Muon, with the settings of time_to_target.py, each in a
laboratory of its own. A gradient takes a fixed time, because ranks share this machine's cores; at the default rate the
dense average in bf16 takes five times as long, as for BERT-Large at batch 4096 on 64 GPUs. Time is the sum of all
steps, without validation. The figure has the name of the CSV file, with .svg. Needs root.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from time_to_target import METHODS

from lib import laboratory, loss_over_time, tables


def curve(run):
    """The columns of steps.csv that are kept, with the time since the begin."""
    seconds = 0
    for row in run.steps:
        seconds += float(row["step_s"])
        yield {"step": row["step"], "seconds": f"{seconds:.6g}", "phase": row["phase"], "loss": row["loss"],
               "validation_loss": row["validation_loss"]}


def main():
    parser = laboratory.parser_of(__doc__, "results/figure4b.csv")
    parser.add_argument("--hosts", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--rate", default="78mbit", help="default: %(default)s")
    parser.add_argument("input", nargs="?", default="inputs/figure4b.yaml", metavar="INPUT.yaml")
    arguments = parser.parse_args()

    origin, rows = laboratory.origin(arguments), []
    for algorithm, method in loss_over_time.LABELS.items():
        run = laboratory.TrainingRun(arguments, arguments.input, METHODS[method], arguments.hosts, arguments.rate)
        rows += [{"algorithm": algorithm, "rate": arguments.rate, **run.links, "hosts": arguments.hosts, "runs": 1,
                  "compute_time_ms": run.row["compute_time_ms"], "compute_overruns": run.row["compute_overruns"],
                  **row, **origin} for row in curve(run)]
        tables.write_csv(arguments.output, rows)

    curves = loss_over_time.curves_of(rows)
    loss_over_time.draw(curves, pathlib.Path(arguments.output).with_suffix(".svg"))
    target = loss_over_time.common_loss(curves)
    seconds = {name: loss_over_time.seconds_to(part, target) for name, part in curves.items()}
    print(f"\n{arguments.hosts} hosts; time to the lowest validation loss that all reach, {target:.4f}")
    print(tables.aligned(["algorithm", "link Mbit/s", "final loss", "whole run s", "to that loss s", "faster"], [
        [name, laboratory.mbit(part[-1]["link_bit_per_s"]), f"{tables.number(part[-1]['validation_loss']):.4f}",
         f"{float(part[-1]['seconds']):.1f}", f"{seconds[name]:.1f}", f"{seconds['adam'] / seconds[name]:.2f}x"]
        for name, part in curves.items()]))


if __name__ == "__main__":
    main()
