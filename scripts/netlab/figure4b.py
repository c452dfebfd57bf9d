#!/usr/bin/env python3
"""Measures loss over wall-clock time on a slow network, as in Figure 4(b) of the 1-bit Adam paper: CSV, figure, one table.

Usage: figure4b.py [--hosts 4] [--rate 155mbit] [--output figure4b.csv] [options] [INPUT.yaml]

Trains a real model (inputs/figure4b.yaml) with `adam` and with `onebit_adam`, each in a laboratory of its own. Ranks share
this machine's cores, so each gradient takes a fixed time (workload.compute_time_ms); at the default rate the dense average
takes about five times as long, as for BERT-Large at batch 4096 on 64 GPUs (2259 ms to 456 ms: Table 1 of the paper). The
figure gets the name of the CSV file, with .png. Time is the sum of all steps up to one, without validation. Needs root.
"""

import argparse
import math
import pathlib
import sys

import experiments

sys.path.insert(0, str(experiments.ROOT / "scripts"))
import results  # noqa: E402

results.require("figure4b", {"matplotlib": "matplotlib", "yaml": "PyYAML"})
from study_page import pyplot  # noqa: E402

LABELS = {"adam": "Adam", "onebit_adam": "1-bit Adam"}


def curve(run):
    """Rows of the CSV file: what steps.csv has, with the time since the begin."""
    seconds = 0
    for row in run.steps:
        seconds += float(row["step_s"])
        yield {"step": row["step"], "seconds": f"{seconds:.6g}", "phase": row["phase"], "loss": row["loss"],
               "validation_loss": row["validation_loss"]}


def seconds_to(rows, loss):
    """When the validation loss first is as low, between two validations by a straight line; None for never."""
    before = None
    for row in rows:
        if not row["validation_loss"]:
            continue
        now = float(row["seconds"]), float(row["validation_loss"])
        if now[1] <= loss:
            if before is None:
                return now[0]
            return before[0] + (now[0] - before[0]) * (before[1] - loss) / (before[1] - now[1])
        before = now
    return None


def draw(rows, path):
    figure, axes = pyplot.subplots(figsize=(7, 4), constrained_layout=True)
    for place, (algorithm, label) in enumerate(LABELS.items()):
        validated = [row for row in rows if row["algorithm"] == algorithm and row["validation_loss"]]
        axes.plot([float(row["seconds"]) for row in validated], [float(row["validation_loss"]) for row in validated],
                  label=label, **results.style(place))
    axes.set_xlabel("wall-clock time, s")
    axes.set_ylabel("validation loss, nats")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="155mbit")
    experiments.add_arguments(parser, "results/figure4b.csv", parameters=0)
    parser.add_argument("input", nargs="?", default="inputs/figure4b.yaml")
    arguments = parser.parse_args()

    provenance, rows, runs, curves = experiments.provenance(arguments), [], {}, {}
    for algorithm in LABELS:
        runs[algorithm] = run = experiments.Run(arguments, arguments.hosts, arguments.rate, arguments.input,
                                                {"optimizer.algorithm": algorithm})
        curves[algorithm] = list(curve(run))
        rows += [{"algorithm": algorithm, "rate": arguments.rate, **run.links.columns(), "hosts": arguments.hosts,
                  "runs": 1, "compute_time_ms": run.row["compute_time_ms"],
                  "compute_overruns": run.row["compute_overruns"], **row, **provenance} for row in curves[algorithm]]
        experiments.write_csv(arguments.output, rows)
    draw(rows, pathlib.Path(arguments.output).with_suffix(".png"))

    # The lowest loss that both reach.
    target = max(min(float(row["validation_loss"]) for row in part if row["validation_loss"]) for part in curves.values())
    print(f"\n{arguments.hosts} hosts; time to the lowest validation loss that both reach, {target:.4f}")
    print(f"{'algorithm':>12} {'link Mbit/s':>11} {'final loss':>10} {'whole run s':>11} {'to that loss s':>14} {'faster':>8}")
    baseline = seconds_to(curves["adam"], target)
    for algorithm, part in curves.items():
        seconds = seconds_to(part, target)
        print(f"{algorithm:>12} {runs[algorithm].links.bit_per_s / 1e6:>11.1f} "
              f"{float(runs[algorithm].row['final_validation_loss'] or math.nan):>10.4f} {float(part[-1]['seconds']):>11.1f} "
              f"{seconds:>14.1f} {baseline / seconds:>7.2f}x")


if __name__ == "__main__":
    sys.exit(main())
