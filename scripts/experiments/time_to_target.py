#!/usr/bin/env python3
"""Measures how long each method trains on a slow network until a loss is reached, as MLPerf scores.

Trains inputs/figure4b.yaml by each method on each network, each run in a laboratory of its own; a gradient takes a
fixed time, because ranks share this machine's cores. The time is the sum of all steps up to the first validation that
finds `train.target_loss` or less, without validation. For rates that are not measured, `onebit predict` gives the time
of each kind of step, and the steps are those of a measured run. The rates of both show its error. Needs root.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from validate_model import Predict, one

from lib import laboratory, tables
from lib.laboratory import bits_per_second

BF16 = {"comm.dense_type": "bf16"}
METHODS = {  # the first is what the others are compared with
    "Adam, bf16": {"optimizer.algorithm": "adam", **BF16},
    "Adam, fp32": {"optimizer.algorithm": "adam"},
    "1-bit Adam": {"optimizer.algorithm": "onebit_adam", **BF16},
    "0/1 Adam": {"optimizer.algorithm": "zero_one_adam", **BF16, "zero_one.variance_freeze_step": 240},
    "Efficient-Adam": {"optimizer.algorithm": "efficient_adam", "compression.scale": "l2",
                       "optimizer.bias_correction": "true", "optimizer.beta1": 0.6, "optimizer.lr": 6e-3},
}
COLUMNS = ["method", "rate", "link_bit_per_s", "burst_bytes", "hosts", "seed", "target_loss", "final_loss",
           "steps_to_target", "time_to_target_s", "bytes_to_target", "predicted_s", "compute_time_ms",
           "compute_overruns", "runs", "machine", "git"]


def kind_of(step):
    """What a step sent: `dense`, `compressed` or `local` for nothing."""
    return "local" if float(step["bytes_sent"]) == 0 else step["phase"]


class Prediction:
    """Seconds of each kind of step, by `onebit predict`."""

    def __init__(self, arguments, run):
        self.predict = Predict(arguments.onebit)
        self.hosts = arguments.hosts
        compute = float(run.row["compute_time_ms"])
        self.settings = {"parameters": run.row["parameters"], "ranks": f"[{arguments.hosts}]", "ranks_per_host": 1,
                         "forward_ms": compute / 3, "backward_ms": 2 * compute / 3, "update_ms": 0,
                         "overlap_buckets": 8, "simulate_up_to": 0,
                         "collectives": "[pairwise, pairwise_bf16, pairwise_compressed]"}
        self.compute_s = compute / 1e3

    def seconds(self, steps, bit_per_s, dense):
        """Of these steps. \\param dense the form of the dense average"""
        rows = self.predict(pathlib.Path("inputs/predict/large_scale.yaml").resolve(),
                            bandwidths_gbit_per_s=f"[{bit_per_s / 1e9}]", bytes_per_element=4, **self.settings)
        step_s = {"dense": one(rows, collective=dense)["step_s"],
                  "compressed": one(rows, collective="pairwise_compressed")["step_s"], "local": self.compute_s}
        return sum(step_s[kind_of(step)] for step in steps)


def row_of(run, method, prediction, seed):
    """A row of a measured run."""
    until = run.row["steps_to_target"]
    steps = run.steps[:int(until)] if until else []
    dense = "pairwise" if "fp32" in method else "pairwise_bf16"
    return {"method": method, "rate": run.rate, **run.links, "hosts": run.hosts, "seed": seed,
            **{name: run.row[name] for name in ("steps_to_target", "time_to_target_s", "bytes_to_target",
                                                "compute_time_ms", "compute_overruns")},
            "target_loss": run.row["target_loss"], "final_loss": run.row["final_validation_loss"], "runs": 1,
            "predicted_s": f"{prediction.seconds(steps, float(run.links['link_bit_per_s']), dense):.4g}" if steps
            else ""}, steps, dense


def cell(row, first):
    """Seconds to the target, and how much faster that is than the first method at the same rate."""
    if not row["steps_to_target"]:
        return "never"
    kind = "time_to_target_s" if row["time_to_target_s"] else "predicted_s"
    seconds, of_first = tables.number(row[kind]), tables.number(first[kind])
    text = f"{seconds:.0f} s" if row["time_to_target_s"] else f"*{seconds:.0f} s*"
    return text if row is first else f"{text} ({of_first / seconds:.2g} ×)"


def page(rows):
    rates = sorted({row["rate"] for row in rows}, key=bits_per_second)
    by_method = {method: {row["rate"]: row for row in rows if row["method"] == method} for method in METHODS}
    first = next(iter(by_method.values()))
    measured = [row for row in rows if row["time_to_target_s"]]
    errors = [tables.number(row["predicted_s"]) / tables.number(row["time_to_target_s"]) - 1 for row in measured]
    lines = []
    for method, own in by_method.items():
        some = next(iter(own.values()))
        sent = tables.with_unit(tables.number(some["bytes_to_target"]))
        lines.append([method, some["steps_to_target"] or "never", sent,
                      *(cell(own.get(rate, some), first[rate]) for rate in rates)])
    return tables.page([
        "# Time to a loss on slow networks",
        "<!-- Made by scripts/experiments/time_to_target.py. -->",
        "How long each method trains [inputs/figure4b.yaml](../../inputs/figure4b.yaml) until a validation loss of "
        f"{rows[0]['target_loss']}, on {rows[0]['hosts']} hosts. A gradient takes {rows[0]['compute_time_ms']} ms. "
        "Dense averages are in bf16 except where a row says fp32, and overlap with the backward pass. Bytes are those "
        "that a rank sent. In brackets: how much faster than Adam in bf16. Seconds in italics are predicted: the steps "
        "of the measured run, each as long as `onebit predict` says. All others were measured in the laboratory "
        f"([how](../guide/network.md)), where predictions are {tables.percent(min(errors))} to "
        f"{tables.percent(max(errors))} off. One seed; machine: {rows[0]['machine']}; commit {rows[0]['git']}.",
        tables.markdown(["method", "steps", "bytes", *rates], lines)])


def main():
    parser = laboratory.parser_of(__doc__, "results/time_to_target.csv")
    parser.add_argument("--hosts", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--rates", type=laboratory.words, default="50mbit,200mbit,1gbit", help="default: %(default)s")
    parser.add_argument("--predicted-rates", type=laboratory.words, default="100mbit,400mbit,3gbit,10gbit",
                        help="default: %(default)s")
    parser.add_argument("--target", type=float, default=2.0, metavar="LOSS", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    parser.add_argument("input", nargs="?", default="inputs/figure4b.yaml", metavar="INPUT.yaml")
    parser.add_argument("--page", type=pathlib.Path, metavar="PAGE.md", help="write the table as a page, too")
    parser.add_argument("--draw-only", action="store_true", help="make the page from the CSV file")
    arguments = parser.parse_args()
    if arguments.draw_only:
        arguments.page.write_text(page(tables.read_csv(arguments.output)))
        return

    origin, rows = laboratory.origin(arguments), []
    for method, settings in METHODS.items():
        for rate in arguments.rates:
            run = laboratory.TrainingRun(
                arguments, arguments.input,
                {**settings, "train.target_loss": arguments.target, "run.seed": arguments.seed}, arguments.hosts, rate)
            prediction = Prediction(arguments, run)
            row, steps, dense = row_of(run, method, prediction, arguments.seed)
            rows.append({**row, **origin})
            tables.write_csv(arguments.output, rows, COLUMNS)
        for rate in arguments.predicted_rates if steps else []:
            seconds = prediction.seconds(steps, bits_per_second(rate), dense)
            rows.append({**row, "rate": rate, "link_bit_per_s": bits_per_second(rate), "burst_bytes": "",
                         "time_to_target_s": "", "predicted_s": f"{seconds:.4g}", **origin})
        tables.write_csv(arguments.output, rows, COLUMNS)
    print(f"\n{arguments.hosts} hosts; seconds to a validation loss of {arguments.target}")
    print(tables.aligned(["method", "rate", "steps", "measured s", "predicted s", "MB"], [
        [row["method"], row["rate"], row["steps_to_target"] or "never", row["time_to_target_s"], row["predicted_s"],
         f"{tables.number(row['bytes_to_target']) / 1e6:.4g}"] for row in rows], left=2))

    if arguments.page:
        arguments.page.write_text(page(rows))


if __name__ == "__main__":
    main()
