#!/usr/bin/env python3
"""Records the ranges of gradients' groups and the variance of their quantisers in training: Figures 2, 6, 8 and 9 of
"1-Bit FQT".

An input runs once for each way to quantise, with model.quantization.record_every:

    sections   inputs/fine_tune.yaml without pre-training; needs the files of `scripts/classification_tasks.py sections`
    images     a ResNet-18 that was trained on animals, on digits; needs those of `scripts/image_tasks.py animals` and
               `scripts/image_tasks.py digits`

The rows go to a file of docs/results/quantized_training, or to --output, with the commit and the machine
(ONEBIT_MACHINE, in words); figures lie beside. Then it prints the tables of docs/results/gradient_groups.md.
--draw-only draws and prints for a file that exists.
"""

import argparse
import collections
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from lib import ROOT, launch, provenance
from lib.plots import COLORS, WIDTH, pyplot, save
from lib.tables import markdown, number, read_csv, write_csv

RESULTS = ROOT / "docs/results/quantized_training"
RUNS = {"SCQ, 8 bits": ("scq", 8), "PSQ, 1 bit": ("psq", 1), "SCQ, 1 bit": ("scq", 1), "FQT, b = 2": ("fqt", 2),
        "FQT, b = 4": ("fqt", 4), "FQT, b = 8": ("fqt", 8)}
PRECISE = "SCQ, 8 bits"  # its gradients are nearly those of full precision
SCRATCH = PRECISE + ", from scratch"
RECORD_EVERY = 25

# `before` is what a run changes that makes the weights with which the others begin. `layers` are those of the first
# figure, all if it is empty. `middle` and `compared` are the layer and the runs of the second one.
Task = collections.namedtuple("Task", "file input set before layers middle compared")
TASKS = {
    "sections": Task("gradient_groups.csv", "inputs/fine_tune.yaml",
                     {"checkpoint.initialize_from": '""', "optimizer.algorithm": "adam"}, None,
                     (), "encoder.1.attention.qkv", (PRECISE, "FQT, b = 2", "FQT, b = 4", "FQT, b = 8")),
    "images": Task("image_groups.csv", "inputs/images/fqt_resnet18.yaml",
                   {"train.steps": 150, "train.validate_every": 150, "train.validation_batch": 896,
                    "optimizer.lr": 3e-3, "images.training": "[corpus/digits_train_images.idx]",
                    "images.validation": "[corpus/digits_held_out_images.idx]"},
                   {"model.quantization.kind": "qat", "train.validate_every": 300},
                   tuple(f"layer{stage}.1.conv2" for stage in (1, 2, 3, 4)), "layer2.1.conv2",
                   (PRECISE, SCRATCH, "FQT, b = 4")),
}
AXES = ("rows", "columns")
QUANTILES = {"range_max": (COLORS[2], "-", "greatest"), "range_p99": (COLORS[2], "--", "99 %"),
             "range_p90": (COLORS[1], "--", "90 %"), "range_p50": (COLORS[0], "-", "median"),
             "range_p10": (COLORS[1], ":", "10 %")}
ERRORS = {"variance": "exact", "paper_variance": "Eq. 4", "drawn_error": "drawn"}


def train(arguments, directory, settings):
    """The results of one run whose output is the directory."""
    settings = {"run.output": directory, **settings}
    command = [arguments.onebit, "train", ROOT / arguments.task.input, *launch.overrides(settings),
               *launch.overrides(arguments.set)]
    subprocess.run(list(map(str, command)), check=True, cwd=ROOT, stdout=subprocess.DEVNULL,
                   env={"OMP_NUM_THREADS": "1", **os.environ})
    results, = read_csv(f"{directory}/run.csv")
    return results


def measure(arguments):
    origin = {**provenance.of_program(arguments.onebit, arguments.output), "runs": 1}
    task, rows = arguments.task, []
    with tempfile.TemporaryDirectory() as directory:
        runs, settings = dict(RUNS), {**task.set, "model.quantization.record_every": RECORD_EVERY}
        if task.before:
            train(arguments, f"{directory}/before", {**task.before, "run.dump_parameters": "parameters.h5"})
            runs[SCRATCH] = runs[PRECISE]
        for name, (kind, bits) in runs.items():
            if task.before:
                start = '""' if name == SCRATCH else f"{directory}/before/parameters.h5"
                settings["checkpoint.initialize_from"] = start
            output = f"{directory}/{len(rows)}"
            results = train(arguments, output,
                            {**settings, "model.quantization.kind": kind, "model.quantization.bits": bits})
            accuracy = results["final_validation_accuracy"]
            rows += [{"run": name, "final_validation_accuracy": accuracy,
                      **{key: f"{float(value):.5g}" if "." in value and key != "layer" else value
                         for key, value in row.items()}, **origin} for row in read_csv(f"{output}/gradient_groups.csv")]
            print(f"{name}: accuracy {accuracy}", flush=True)
    write_csv(arguments.output, rows)


def series(rows, column):
    """(steps, values) of the rows of one gradient, without values that are no number or zero: the axes are
    logarithmic."""
    points = [(int(row["step"]), number(row[column])) for row in rows if number(row[column]) > 0]
    return tuple(zip(*points)) if points else ((), ())


def draw_ranges(axes, rows):
    """Ranges of one gradient's groups over the steps."""
    for column, (color, dashes, label) in QUANTILES.items():
        axes.plot(*series(rows, column), color=color, linestyle=dashes, label=label)
    axes.set_yscale("log")
    axes.grid(alpha=0.25)


def finish(figure, grid, label, path):
    figure.supxlabel("step", fontsize=9)
    figure.supylabel(label, fontsize=9)
    figure.legend(*grid[0][0].get_legend_handles_labels(), loc="lower center", bbox_to_anchor=(0.5, 1),
                  ncols=5, frameon=False, fontsize=9)
    save(figure, path, bbox_inches="tight", pad_inches=0)


def ranges_figure(panels, path):
    """A panel for each (title, rows)."""
    lines = -(-len(panels) // 4)
    figure, grid = pyplot.subplots(lines, 4, figsize=(WIDTH, 2 * lines + 0.5), sharex=True, sharey=True,
                                   squeeze=False, constrained_layout=True)
    for axes, (title, rows) in zip(grid.flat, panels.items()):
        draw_ranges(axes, rows)
        axes.set_title(title, fontsize=9)
    finish(figure, grid, "range R of a group", path)


def layers_of(rows):
    return sorted({row["layer"] for row in rows})


def scratch_table(rows, layers):
    """A row for each layer and kind of groups: mean ranges from random weights over those of fine-tuning."""
    found = []
    for layer in layers:
        for axis in AXES:
            scratch, tuned = ({int(row["step"]): number(row["range_mean"]) for row in rows
                               if (row["run"], row["layer"], row["axis"]) == (name, layer, axis)}
                              for name in (SCRATCH, PRECISE))
            steps = sorted(scratch)
            ratios = [scratch[step] / tuned[step] for step in steps]
            found.append([layer, axis, middle(ratios[:1]), middle(ratios[-1:]), middle(ratios)])
    return markdown(["layer", "groups", f"step {steps[0]}", f"step {steps[-1]}", "median"], found)


def sums(rows, column):
    """{step: Σ column / Σ ‖G‖²} over the gradients of a step."""
    above, below = collections.Counter(), collections.Counter()
    for row in rows:
        above[int(row["step"])] += number(row[column])
        below[int(row["step"])] += number(row["norm_squared"])
    return {step: above[step] / below[step] for step in above if below[step] > 0}


def variance_figure(rows, path):
    figure, grid = pyplot.subplots(2, 3, figsize=(WIDTH, 4.6), sharex=True, sharey=True, constrained_layout=True)
    for axes, name in zip(grid.flat, RUNS):
        mine = [row for row in rows if row["run"] == name]
        for (column, label), format_of in zip(ERRORS.items(), ("-", "--", "o")):
            found = sums(mine, column)
            axes.plot(list(found), list(found.values()), format_of, markersize=3.5, label=label, fillstyle="none",
                      color=COLORS[list(ERRORS).index(column)])
        axes.set_title(name, fontsize=9)
        axes.set_yscale("log")
        axes.grid(alpha=0.25)
    finish(figure, grid, "‖Q − G‖² / ‖G‖²", path)


def middle(values, digits=3):
    """The median of the numbers in words; empty without any."""
    values = [value for value in values if value == value]
    return f"{statistics.median(values):.{digits}g}" if values else ""


def ratio(row, above, below):
    return number(row[above]) / number(row[below]) if number(row[below]) > 0 else float("nan")


def ranges_table(rows, layers):
    """A row for each gradient of the precise run, medians over its steps."""
    found = []
    for layer in layers:
        for axis in AXES:
            mine = [row for row in rows if (row["run"], row["layer"], row["axis"]) == (PRECISE, layer, axis)]
            found.append([layer, axis, mine[0]["groups"],
                          *(middle(ratio(row, f"range_{column}", "range_p50") for row in mine)
                            for column in ("p10", "p90", "p99", "max")),
                          middle(100 * number(row["share_of_greatest"]) for row in mine) + " %"])
    return markdown(["layer", "groups", "number", "10 %", "90 %", "99 %", "greatest", "share of the greatest eighth"],
                    found)


def variance_table(rows):
    """A row for each run and kind of groups."""
    found = []
    for name in RUNS:
        for axis in AXES:
            mine = [row for row in rows if (row["run"], row["axis"]) == (name, axis)]
            if not mine:
                continue
            exact, paper, drawn = (sums(mine, column) for column in ERRORS)
            greatest = middle(100 * number(row["share_of_greatest"]) for row in mine)
            found.append([name, axis, middle(exact.values()), middle(paper.values()), middle(drawn.values()),
                          middle(exact[step] / paper[step] for step in exact),
                          middle((drawn[step] / exact[step] for step in exact), 4),
                          middle(100 * int(row["kept"]) / int(row["groups"]) for row in mine) + " %", greatest + " %",
                          f"{100 * number(mine[0]['final_validation_accuracy']):.1f} %"])
    return markdown(["run", "groups", "exact", "Eq. 4", "drawn", "exact / Eq. 4", "drawn / exact", "kept",
                     "share of the greatest 1/b", "accuracy"], found)


def gradients(rows, names, layers):
    """{title of three lines: rows} of each gradient, those by rows first."""
    return {f"{name}, {axis}\n" + re.sub(r"(?<=\d)\.", "\n", layer):
            [row for row in rows if (row["run"], row["layer"], row["axis"]) == (name, layer, axis)]
            for axis in AXES for name in names for layer in layers}


def draw(rows, task, output):
    def beside(figure):
        return output.with_name(f"{output.stem}_{figure}.svg")

    ranges_figure(gradients(rows, [PRECISE], task.layers or layers_of(rows)), beside("layers"))
    ranges_figure(gradients(rows, task.compared, [task.middle]), beside("middle"))
    variance_figure(rows, beside("variance"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--onebit", type=launch.program, default=launch.ONEBIT)
    parser.add_argument("--output", type=pathlib.Path, metavar="FILE.csv",
                        help="default: the task's in docs/results/quantized_training")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the input")
    parser.add_argument("--draw-only", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    arguments.output = arguments.output or RESULTS / TASKS[arguments.task].file
    arguments.task = TASKS[arguments.task]
    if not arguments.draw_only:
        measure(arguments)
    rows = read_csv(arguments.output)
    draw(rows, arguments.task, arguments.output)
    layers = arguments.task.layers or layers_of(rows)
    tables = [ranges_table(rows, layers), variance_table(rows)]
    if arguments.task.before:
        tables.append(scratch_table(rows, layers))
    print(*tables, sep="\n\n")


if __name__ == "__main__":
    main()
