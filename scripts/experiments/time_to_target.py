#!/usr/bin/env python3
"""How long does each method train on a slow network until a loss is reached? The median over seeds, as MLPerf scores.

losses   Losses do not depend on the network. So each method trains inputs/figure4b.yaml with each seed on ranks of this
         machine, without shaped links and without the given time of a gradient. This gives steps and bytes to
         `train.target_loss`.
measure  repeats a seed in a laboratory at each rate (needs root and an idle machine). A gradient takes a fixed time,
         because ranks share this machine's cores. The time is the sum of all steps up to the first validation that
         finds the target or less, without validation.
page     For other rates and seeds scripts/predict.py gives the time of each kind of step, to which the work of `losses`
         is added: signs, the server's average and the update. At a measured rate this prediction is multiplied by what
         the measured run took of its own prediction. The page has it all.

All commands keep their rows in one CSV file, and a row replaces the earlier one of its method, seed and rate.
"""

import argparse
import collections
import math
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from validate_model import one, predict

from lib import ROOT, laboratory, tables
from lib.laboratory import bits_per_second
from lib.runs import read_keys, run_here
from lib.tables import number

BF16 = {"comm.dense_type": "bf16"}
# Learning rates are the best of three or more on this input with one seed; 0/1 Adam's is the input's. With beta1 = 0.6
# Adam is as fast at 6e-3 in fp32, and in bf16 it does not reach the target there.
ADAM = {"optimizer.bias_correction": "true", "optimizer.lr": 8e-3}
MUON = {"optimizer.bias_correction": "true", "optimizer.lr": 4e-3, "muon.lr_factor": 6, "muon.table_beta1": 0.3}
METHODS = {  # the first is what the others are compared with
    "Adam, bf16": {"optimizer.algorithm": "adam", **BF16, **ADAM},
    "Adam, fp32": {"optimizer.algorithm": "adam", **ADAM},
    "1-bit Adam": {"optimizer.algorithm": "onebit_adam", **BF16, **ADAM, "compression.scale": "l2",
                   "compression.group": "row", "freeze.step": 120},
    "0/1 Adam": {"optimizer.algorithm": "zero_one_adam", **BF16, "zero_one.variance_freeze_step": 240,
                 "zero_one.local_step_scaler": 120, "zero_one.local_step_clipper": 4, "compression.scale": "l2",
                 "optimizer.epsilon": "1e-4"},
    "Efficient-Adam": {"optimizer.algorithm": "efficient_adam", "compression.scale": "l2",
                       "optimizer.bias_correction": "true", "optimizer.beta1": 0.6, "optimizer.lr": 6e-3},
    "Muon, fp32": {"optimizer.algorithm": "muon", **MUON},
    "1-bit Muon": {"optimizer.algorithm": "onebit_muon", **MUON, "compression.scale": "l2",
                   "compression.group": "row"},
}
KINDS = ("dense", "compressed", "local")  # of a step, by what it sends; `local` sends nothing
WORK = ("compress_s", "average_s", "update_s")  # columns of steps.csv
COLUMNS = ["method", "settings", "seed", "rate", "link_bit_per_s", "burst_bytes", "hosts", "parameters", "target_loss",
           "final_loss", "steps_to_target", *(f"{kind}_steps" for kind in KINDS), "bytes_to_target", "work_s",
           "time_to_target_s", "predicted_s", "compute_time_ms", "compute_overruns", "runs", "machine", "git"]


def methods_in(text):
    """The methods of an option. Raises ArgumentTypeError."""
    for method in text.split(";"):
        if method not in METHODS:
            raise argparse.ArgumentTypeError(f"there is no method '{method}'; remedy: choose of {'; '.join(METHODS)}")
    return text.split(";")


def settings_of(method):
    return " ".join(f"{key}={value}" for key, value in METHODS[method].items())


def kept_rows(path):
    """The rows of the CSV file that have today's columns and whose method still has the same settings."""
    rows = tables.read_csv(path) if pathlib.Path(path).exists() else []
    return [row for row in rows if row.keys() >= set(COLUMNS) and row["method"] in METHODS
            and row["settings"] == settings_of(row["method"])]


def write(path, rows):
    """Of rows with the same method, seed and rate, the last one counts."""
    rows = {(row["method"], str(row["seed"]), row["rate"]): row for row in rows}
    methods = list(METHODS)
    order = sorted(rows, key=lambda at: (methods.index(at[0]), at[1], bits_per_second(at[2]) if at[2] else 0))
    tables.write_csv(path, [rows[at] for at in order], COLUMNS)


def row_of(method, seed, run, steps):
    """The columns of a run. \\param run the row of its run.csv"""
    until = int(run["steps_to_target"] or 0)
    kinds = collections.Counter("local" if number(step["bytes_sent"]) == 0 else step["phase"] for step in steps[:until])
    return {"method": method, "settings": settings_of(method), "seed": seed, "rate": "", "hosts": run["ranks"],
            "final_loss": run["final_validation_loss"], "runs": 1,
            **{f"{kind}_steps": kinds[kind] if until else "" for kind in KINDS},
            "work_s": f"{sum(number(step[column]) for step in steps[:until] for column in WORK):.4g}" if until else "",
            **{name: run[name] for name in ("parameters", "target_loss", "steps_to_target", "bytes_to_target")}}


def settings_for(arguments, method, seed):
    return {**METHODS[method], "train.target_loss": arguments.target, "run.seed": seed}


def losses(arguments):
    origin = laboratory.origin(arguments)
    for method in arguments.methods:
        for seed in arguments.seeds:
            settings = {**settings_for(arguments, method, seed), "workload.compute_time_ms": 0}
            run = run_here(arguments.hosts, arguments.onebit, arguments.input,
                           [*(f"{key}={value}" for key, value in settings.items()), *arguments.set])
            row = row_of(method, seed, run.run, run.steps)
            write(arguments.output, [*kept_rows(arguments.output), {**row, **origin}])
            print(f"{method}, seed {seed}: {row['steps_to_target'] or 'never'} steps, loss {row['final_loss']}",
                  flush=True)


def measure(arguments):
    origin = laboratory.origin(arguments)
    seed = arguments.seeds[0]
    for rate in arguments.rates:
        for method in arguments.methods:
            run = laboratory.TrainingRun(arguments, arguments.input, settings_for(arguments, method, seed),
                                         arguments.hosts, rate)
            row = {**row_of(method, seed, run.row, run.steps), "rate": rate, **run.links, **origin,
                   **{name: run.row[name] for name in ("time_to_target_s", "compute_time_ms", "compute_overruns")}}
            write(arguments.output, [*kept_rows(arguments.output), row])


class Prediction:
    """Seconds of each kind of step, by scripts/predict.py."""

    def __init__(self, arguments):
        self.known = {}
        self.compute_ms = float(read_keys(ROOT / arguments.input)["workload.compute_time_ms"])

    def step_s(self, row, bit_per_s):
        """{kind: seconds} on a link of this rate."""
        dense = "pairwise_bf16" if "comm.dense_type=bf16" in row["settings"] else "pairwise"
        at = dense, bit_per_s
        if at not in self.known:
            rows = predict(ROOT / "inputs/predict/large_scale.yaml", parameters=row["parameters"],
                           ranks=f"[{row['hosts']}]", ranks_per_host=1, forward_ms=self.compute_ms / 3,
                           backward_ms=2 * self.compute_ms / 3, update_ms=0, overlap_buckets=8, simulate_up_to=0,
                           bytes_per_element=4, bandwidths_gbit_per_s=f"[{bit_per_s / 1e9}]",
                           collectives=f"[{dense}, pairwise_compressed]")
            self.known[at] = {"dense": one(rows, collective=dense)["step_s"],
                              "compressed": one(rows, collective="pairwise_compressed")["step_s"],
                              "local": self.compute_ms / 1e3}
        return self.known[at]

    def seconds(self, row, bit_per_s, work_s):
        """Up to the target, with the rank's own work; empty where it was not reached."""
        if not row["steps_to_target"]:
            return ""
        step_s = self.step_s(row, bit_per_s)
        return f"{sum(int(row[f'{kind}_steps']) * step_s[kind] for kind in KINDS) + number(work_s):.4g}"


def is_measured(row):
    """In the laboratory. Other rows with a rate are predictions, and rows without one are of `losses`."""
    return row["compute_time_ms"] != ""


def with_predictions(arguments):
    """The rows of `losses` and of `measure`, with predictions of every seed at every rate."""
    origin, prediction, rows = laboratory.origin(arguments), Prediction(arguments), kept_rows(arguments.output)
    measured = {(row["method"], row["rate"]): row for row in rows if is_measured(row)}
    if not measured:
        sys.exit(f"time_to_target: {arguments.output} has no measured rows of these methods\n  remedy: measure first")
    runs = [row for row in rows if not row["rate"]]
    rates = dict.fromkeys([*arguments.predicted_rates, *(rate for _, rate in measured)])
    predicted = []
    for run in runs:
        for rate in rates:
            row = measured.get((run["method"], rate), {"link_bit_per_s": f"{bits_per_second(rate):.0f}", "seed": ""})
            link = row["link_bit_per_s"]
            mine = row if row["seed"] == run["seed"] else {**run, "rate": rate, "link_bit_per_s": link, **origin}
            predicted.append({**mine, "predicted_s": prediction.seconds(mine, float(link), run["work_s"])})
    return runs + predicted


def spread(values, words):
    """The median and, where they differ, the least and the greatest, in words; `never` for infinity."""
    least, middle, most = (words(value) if math.isfinite(value) else "never"
                           for value in (min(values), statistics.median(values), max(values)))
    return middle if least == most else f"{middle} ({least} – {most})"


def seconds_of(row, run):
    """A seed's time: measured, or predicted in proportion to the measured `run` of its method and rate."""
    if row["time_to_target_s"] or not row["steps_to_target"]:
        return number(row["time_to_target_s"] or "inf")
    ratio = number(run["time_to_target_s"]) / number(run["predicted_s"]) if run and run["time_to_target_s"] else 1
    return number(row["predicted_s"]) * ratio


def of_measured_runs(rows, words):
    """A table of the measured runs, methods by rates. \\param words what a cell says of its row"""
    rates = sorted({row["rate"] for row in rows}, key=bits_per_second)
    cells = {(row["method"], row["rate"]): words(row) for row in rows}
    return tables.markdown(["method", *rates], [[method, *(cells.get((method, rate), "") for rate in rates)]
                                                for method in dict.fromkeys(row["method"] for row in rows)])


def error_of(row):
    return number(row["predicted_s"]) / number(row["time_to_target_s"]) - 1


def page(rows):
    runs = [row for row in rows if not row["rate"]]
    rates = sorted({row["rate"] for row in rows if row["rate"]}, key=bits_per_second)
    measured = [row for row in rows if row["time_to_target_s"]]
    errors = [error_of(row) for row in measured]
    worst = max(measured, key=lambda row: int(row["compute_overruns"]))
    short = measured[errors.index(min(errors))]["method"]  # whose predictions are the shortest
    hardest = max(measured, key=lambda row: number(row["work_s"]))
    short_errors = [error_of(row) for row in measured if row["method"] == short]
    lines, first = [], {}
    for method in dict.fromkeys(row["method"] for row in runs):
        own = [row for row in runs if row["method"] == method]
        line = [method, spread([number(row["steps_to_target"] or "inf") for row in own], "{:.0f}".format),
                spread([number(row["bytes_to_target"] or "inf") for row in own], tables.with_unit)]
        for rate in rates:
            cells = [row for row in rows if (row["method"], row["rate"]) == (method, rate)]
            run = next(filter(is_measured, cells), None)
            values = [seconds_of(row, run) for row in cells]
            text = spread(values, "{:.0f}".format)
            # Both sides of a ratio are measured, or both are predicted.
            medians = {"predicted": statistics.median(number(row["predicted_s"] or "inf") for row in cells)}
            if run:
                medians["measured"] = statistics.median(values)
            of_first = first.setdefault(rate, medians)
            kind = "measured" if "measured" in medians.keys() & of_first.keys() else "predicted"
            gain = of_first[kind] / medians[kind]
            line.append((text if run else f"*{text}*") + (f", {gain:.2g} ×" if len(lines) and gain else ""))
        lines.append(line)
    seeds = sorted({row["seed"] for row in runs})
    commits, machines = (", ".join(dict.fromkeys(row[name] for row in rows)) for name in ("git", "machine"))
    return tables.page([
        "# Time to a loss on slow networks",
        "<!-- Made by scripts/experiments/time_to_target.py. -->",
        "How long does each method train [inputs/figure4b.yaml](../../inputs/figure4b.yaml) until a validation loss of "
        f"{runs[0]['target_loss']}, on {runs[0]['hosts']} hosts? A gradient takes {measured[0]['compute_time_ms']} ms. "
        "Dense averages are in bf16 except where a row says fp32, and overlap with the backward pass. Bytes are those "
        "that a rank sent, times are in seconds. Each cell has the median over the seeds "
        f"{', '.join(seeds)}, the least and the greatest in brackets where they differ, and how much faster than Adam "
        "in bf16 the median is: by measurements where both have one, else by predictions. A seed that does not reach "
        "the loss counts as infinite.",
        "Steps and bytes are those of runs with every seed, because losses do not depend on the network. Times of seed "
        f"{measured[0]['seed']} that are not in italics were measured in the laboratory "
        "([how](../guide/network.md)). A prediction is the steps of a run, each as long as `scripts/predict.py` says "
        "for its kind, and the rank's own work in that run: signs, the server's average and the update. "
        f"It is {tables.percent(min(errors))} to {tables.percent(max(errors))} off in the {len(errors)} "
        "measured runs. The other seeds' times at a measured rate are predictions, multiplied by what the measured run "
        "took of its own prediction. Cells in italics are predictions as they are.",
        tables.markdown(["method", "steps", "bytes", *rates], lines),
        f"All hosts share this machine's cores, so in some steps a gradient took longer than the "
        f"{measured[0]['compute_time_ms']} ms that it should (overruns). So many did in the measured runs, on the rank "
        "with the most:",
        of_measured_runs(measured, lambda row: row["compute_overruns"]),
        f"{worst['method']} has {worst['compute_overruns']} of them at {worst['rate']}, and methods that send less "
        "have fewer. So a part of the ratios at that rate is the two cores' and not the network's. Predictions know no "
        "overruns. They differ from the measured times by:",
        of_measured_runs(measured, lambda row: tables.percent(error_of(row))),
        f"Those of {short} are {tables.percent(-max(short_errors))} to {tables.percent(-min(short_errors))} short, so "
        "cells in italics flatter it. No cell in italics is to be compared with a measured one beside it: a method may "
        "look slower at a measured rate than at a lower one in italics.",
        f"{hardest['method']} works the most: signs, the server's average and the update took "
        f"{number(hardest['work_s']):.2g} s of its run at {hardest['rate']}, on cores that the hosts share.",
        "The methods' settings, beside those of the input:",
        tables.markdown(["method", "`--set`"], [
            [line[0], " ".join(f"`{pair}`" for pair in settings_of(line[0]).split())] for line in lines]),
        f"Machine: {machines}. Commits of the program: {commits}. The second command needs root and an idle machine:",
        "```\nscripts/experiments/time_to_target.py losses\nsudo scripts/experiments/time_to_target.py measure\n"
        "scripts/experiments/time_to_target.py page\n```"])


def make_page(arguments):
    write(arguments.output, with_predictions(arguments))
    arguments.page.write_text(page(tables.read_csv(arguments.output)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    shared = laboratory.parser_of("", "results/time_to_target.csv")
    for name, function in (("losses", losses), ("measure", measure), ("page", make_page)):
        command = commands.add_parser(name, parents=[shared], add_help=False)
        command.set_defaults(function=function)
        if name == "page":
            command.add_argument("--predicted-rates", type=laboratory.words, help="default: %(default)s",
                                 default="50mbit,100mbit,400mbit,1gbit,3gbit,10gbit")
            command.add_argument("--page", type=pathlib.Path, default="results/time_to_target.md", metavar="PAGE.md",
                                 help="default: %(default)s")
        else:
            command.add_argument("--hosts", type=int, default=4, help="default: %(default)s")
            command.add_argument("--target", type=float, default=2.0, metavar="LOSS", help="default: %(default)s")
            command.add_argument("--methods", type=methods_in, default=list(METHODS), metavar="METHOD;METHOD",
                                 help="default: all")
            command.add_argument("--seeds", type=laboratory.integers, default="1,2,3",
                                 help="`measure` takes the first one; default: %(default)s")
        if name == "measure":
            command.add_argument("--rates", type=laboratory.words, default="50mbit,200mbit,1gbit",
                                 help="default: %(default)s")
        command.add_argument("input", nargs="?", default="inputs/figure4b.yaml", metavar="INPUT.yaml")
    arguments = parser.parse_args()
    arguments.function(arguments)


if __name__ == "__main__":
    main()
