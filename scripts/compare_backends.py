#!/usr/bin/env python3
"""Compares two backends that computed one input, for example CUDA with OpenMP: one page and one figure.

Each PATH is a directory with the output of `onebit train` (run.csv, steps.csv, input.resolved.yaml), of `onebit bench
kernels` (kernels.csv), or of both, from any machine and any day. The backend names it, or NAME=PATH does. The first
directory is the baseline. The page has

    sides      machine, commit and libraries of each
    losses     at some steps, with their relative difference; bytes sent; whether the final parameters are the same bits
    step       medians of its parts, without the first step of a phase
    kernels    time and fraction of the roofline of each, and their performance portability

Results of changed sources, unfinished runs and runs of different inputs are refused.

Performance portability is the metric of Pennycook, Sewall and Lee (2016, 2019): the harmonic mean over the platforms
of the efficiency, here the fraction of the roofline. A fraction above 1 counts as 1.
"""

import argparse
import math
import pathlib
import re
import statistics
import sys

from lib import launch, plots, tables
from lib.plots import pyplot
from lib.runs import Run
from lib.tables import number, percent

# Kernels that measure the machine and not the program. Their shapes may differ.
MACHINE = ("triad", "copy", "fma", "gemm", "gemm_tf32", "gemm_bf16")
# Parts of a step, as sums of columns of steps.csv. The rest of the step lies between them.
PARTS = {"forward": ["forward_s"], "backward": ["backward_s"], "compress": ["compress_s", "average_s"],
         "exchange": ["allreduce_s", "all_to_all_s", "all_gather_s"], "update": ["update_s"]}
# Keys that may differ between runs of one input.
FREE = ("run.output", "run.backend", "run.threads", "run.progress_interval_s", "run.dump_parameters", "comm.transport",
        "data.cache", "bench.")
# Columns of run.csv that must not.
SAME = ("workload", "algorithm", "seed", "ranks", "parameters", "steps", "batch")


def fail(place, what, remedy="name two directories of complete results of this version: onebit train, bench kernels"):
    sys.exit(f"compare_backends: {place}: {what}\n  remedy: {remedy}")


def name_and_path(text):
    """(NAME or "", PATH). A directory may have = in its name, as the cells of a sweep do; NAME ends at the first =
    behind which the name of a directory begins."""
    if pathlib.Path(text).is_dir():
        return "", text
    ends = [match.start() for match in re.finditer("=", text)]
    end = next((end for end in ends if pathlib.Path(text[end + 1:]).is_dir()), None)
    return (text[:end], text[end + 1:]) if end is not None else ("", text)


class Side:
    """The results in one directory: `run` (or None), and rows of kernels.csv by name, shape and precision."""

    def __init__(self, text):
        self.name, path = name_and_path(text)
        self.directory = pathlib.Path(path)
        if not self.directory.is_dir():
            fail(path, "no such directory")
        self.run = self.read_run()
        self.rows = self.read_kernels()
        self.kernels = {(row["kernel"], "" if row["kernel"] in MACHINE else row["shape"], row["precision"]): row
                        for row in self.rows}
        if not self.run and not self.rows:
            fail(path, "neither run.csv nor kernels.csv")
        described = [row for row in (self.run and self.run.run, *self.rows[:1]) if row]
        self.about = {**described[-1], **described[0]}
        for column in ("backend", "machine", "git"):
            if len(values := {row.get(column) for row in described}) > 1:
                fail(path, f"run.csv and kernels.csv have different values of {column}: {values}",
                     "make both with one program, on one machine")
            if not self.about.get(column) and column != "git":
                fail(path, f"no column {column}")
        if not re.search(r"[0-9a-f]{7}$", self.about.get("git") or ""):
            fail(path, f"the program was built from changed or unknown sources (git: '{self.about.get('git')}')",
                 "commit, build again in a git checkout, and run again")

    def read_run(self):
        if not Run.is_one([path.name for path in self.directory.iterdir()]):
            return None
        run = Run(self.directory)
        if run.problems or not run.complete:
            fail(self.directory, "; ".join(run.problems or ["a later run has begun here and is not complete"]))
        return run

    def read_kernels(self):
        path = self.directory / "kernels.csv"
        self.kernels_failed = path.with_name("kernels.csv.partial").is_file()
        if not path.is_file():
            return []
        rows, problem = tables.read_rows(path)
        if problem or "fraction_of_roofline" not in rows[0]:
            fail(path, problem or "no column fraction_of_roofline")
        return rows


def read_sides(paths):
    """Both sides, named by their backends or, where these are the same, by their directories."""
    sides = [Side(text) for text in paths]
    backends = [side.about["backend"] for side in sides]
    for side in sides:
        side.name = side.name or (side.about["backend"] if backends[0] != backends[1] else str(side.directory))
    if sides[0].name == sides[1].name:
        fail(sides[1].directory, f"both sides are called {sides[0].name}", "call one of them NAME=PATH")
    return sides


def refuse_other_input(one, other):
    """Ends the program where the runs' inputs differ, except for FREE keys and the directories of files."""
    def values(side):
        keys = {key: re.sub(r"[^\s\[,]*/", "", value) for key, value in side.run.input.items()
                if not key.startswith(FREE)}
        return {**{column: side.run.run.get(column) for column in SAME}, **keys}
    first, second = values(one), values(other)
    differing = [f"{key} ({first.get(key)}, {second.get(key)})" for key in [*first, *(second.keys() - first.keys())]
                 if first.get(key) != second.get(key)]
    if differing:
        fail(other.directory, f"another input than {one.directory}'s: " + ", ".join(differing),
             "train both with the same input, or copy input.resolved.yaml and change run.backend alone")


def about_table(sides):
    lines = [[label, *(side.about.get(column, "") for side in sides)] for label, column in (
        ("backend", "backend"), ("machine", "machine"), ("commit", "git"), ("compiler", "compiler"),
        ("Kokkos", "kokkos"), ("MPI", "mpi"), ("transport", "transport"), ("ranks", "ranks"),
        ("threads of each", "threads_per_rank"), ("host's products", "blas"))]
    lines.append(["directory", *(f"`{side.directory}`" for side in sides)])
    return tables.markdown(["", *(side.name for side in sides)], [line for line in lines if any(line[1:])])


# --- the training run ---------------------------------------------------------


def losses(side):
    return {int(row["step"]): number(row["loss"]) for row in side.run.steps}


def relative(value, base):
    return abs(value - base) / abs(base) if base else (0.0 if value == base else math.inf)


def loss_section(one, other, wanted):
    first, second = losses(one), losses(other)
    if first.keys() != second.keys():
        fail(other.directory, f"steps.csv has other steps than {one.directory}'s")
    steps = [step for step in wanted or (10 ** k for k in range(9)) if step in first]
    if wanted and steps != wanted:
        fail(other.directory, f"no step {', '.join(str(step) for step in wanted if step not in first)} in steps.csv",
             f"--steps takes steps from 1 to {max(first)}")
    differences = {step: relative(second[step], first[step]) for step in first}
    worst = max(differences, key=differences.get)
    lines = [[step, f"{first[step]:.7g}", f"{second[step]:.7g}", f"{differences[step]:.1e}"]
             for step in sorted({*steps, max(first)})]

    def compared(label, column):
        values = [side.run.run.get(column, "") for side in (one, other)]
        return [label, *values, "the same" if values[0] == values[1] else
                "other bits" if "hash" in column else f"× {number(values[1]) / number(values[0]):.3g}"
                if number(values[0]) > 0 else "**differ**"]
    whole = [compared(label, column) for label, column in (
        ("bytes sent by a rank", "bytes_sent"), ("in the dense phase", "bytes_sent_dense_phase"),
        ("in the compressed phase", "bytes_sent_compressed_phase"), ("variance frozen at step",
        "variance_frozen_at_step"), ("last validation loss", "final_validation_loss"), ("tokens/s", "tokens_per_s"),
        ("peak of all arrays, bytes", "peak_view_bytes"), ("final parameters", "parameters_hash"))]
    names = [one.name, other.name]
    return ["## Losses", tables.markdown(["step", *names, "relative difference"], lines),
            f"The greatest difference of {len(first)} steps is {differences[worst]:.1e}, at step {worst}.",
            "## The whole run", tables.markdown(["", *names, ""], [line for line in whole if any(line[1:3])])]


def step_parts(side):
    """{phase: {part: median seconds}}, with `rest` and `step`, without the first step of a phase if there are more."""
    of_phase = {}
    for row in side.run.steps:
        parts = {part: sum(number(row[column]) for column in columns) for part, columns in PARTS.items()}
        whole = number(row["step_s"])
        of_phase.setdefault(row["phase"], []).append({**parts, "rest": whole - sum(parts.values()), "step": whole})
    return {phase: {part: statistics.median(step[part] for step in steps[len(steps) > 1:]) for part in steps[0]}
            for phase, steps in of_phase.items()}


def step_section(one, other):
    first, second = step_parts(one), step_parts(other)
    lines = [[phase, part, *(f"{1e3 * seconds:.4g}" for seconds in (first[phase][part], second[phase][part])),
              f"{first[phase][part] / second[phase][part]:.3g}" if second[phase][part] > 0 < first[phase][part] else ""]
             for phase in first if phase in second for part in first[phase]]
    return ["## Parts of a step",
            "Medians in ms of rank 0, without the first step of each phase. `compress` has the server's part too, "
            "`exchange` is what the rank waits for, and `rest` lies between the parts. Each row has a median of its "
            "own, so the parts do not add up to the step.",
            tables.markdown(["phase", "part", one.name, other.name, f"times as fast as {one.name}"], lines)]


# --- kernels ------------------------------------------------------------------


def portability(efficiencies):
    """Harmonic mean of the efficiencies, each at most 1."""
    return len(efficiencies) / sum(1 / min(efficiency, 1) for efficiency in efficiencies)


def kernel_section(one, other):
    ranks = [side.rows[0]["ranks"] for side in (one, other)]
    if ranks[0] != ranks[1]:
        fail(other.directory, f"kernels.csv of another number of ranks than {one.directory}'s ({', '.join(ranks)})",
             "run onebit bench kernels on as many ranks")
    common = [key for key in one.kernels if key in other.kernels]
    if all(key[0] in MACHINE for key in common):
        fail(other.directory, f"kernels.csv has no kernel of the shape and precision of {one.directory}'s",
             "run onebit bench kernels with the same sections model, train and bench")

    def cells(key):
        rows = [side.kernels[key] for side in (one, other)]
        times, fractions = ([number(row[column]) for row in rows] for column in ("median_s", "fraction_of_roofline"))
        of_sides = [(f"{1e3 * time:.4g}", percent(fraction)) for time, fraction in zip(times, fractions)]
        return [*key, f"{number(rows[0]['arithmetic_intensity']):.3g}", *of_sides[0], *of_sides[1],
                f"{times[0] / times[1]:.3g}", percent(portability(fractions))]

    def rates(side, kernel, column, unit):
        row = side.kernels.get((kernel, "", kernel.partition("_")[2] or "fp32"))
        return f"{1e-9 * number(row[column]) / number(row['median_s']):.4g} {unit}" if row else ""
    machine = [[kernel, *(rates(side, kernel, *column) for side in (one, other))] for kernel in MACHINE
               for column in [("bytes", "GB/s") if kernel in ("triad", "copy") else ("flop", "GFLOP/s")]]
    names = [one.name, other.name]
    text = ["## Machines", "Rates of a rank, measured by `onebit bench kernels` itself.",
            tables.markdown(["", *names], [line for line in machine if any(line[1:])]),
            "## Kernels", "Medians in ms. The roofline is that of the kernel's own machine; the last column is the "
            "performance portability over both.",
            tables.markdown(["kernel", "shape", "factors", "FLOP/byte", *(cell for name in names for cell in (
                f"{name}, ms", "of roofline")), f"times as fast as {one.name}", "portability"],
                [cells(key) for key in common if key[0] not in MACHINE])]
    above = [f"`{key[0]}` ({key[1]}; {side.name})" for key in common for side in (one, other)
             if key[0] not in MACHINE and number(side.kernels[key]["fraction_of_roofline"]) > 1]
    text += [f"Above 100 %: {', '.join(above)}. The roofline is of the machine's memory (`triad`) and products. A "
             "kernel passes it where its data are in a cache, or where other work slowed the measurement of the "
             "machine, so such a fraction says nothing about the kernel."] * bool(above)
    for side, missing in ((one, other), (other, one)):
        lacking = [" ".join(key) for key in side.kernels if key not in missing.kernels and key[0] not in MACHINE]
        text += [f"Only {side.name} has: {', '.join(lacking)}."] * bool(lacking)
    return text


def missing_kernels(sides):
    """What is to be said of `kernels.csv` that is not there or not complete, as paragraphs."""
    text = []
    for side in sides:
        if side.kernels_failed:
            text.append(f"**`bench kernels` of {side.name} is not complete**: it failed or goes on "
                        f"(`{side.directory / 'kernels.csv.partial'}`).")
        elif not side.rows and any(each.rows for each in sides):
            text.append(f"{side.name} has no `kernels.csv`, so kernels are not compared.")
    for paragraph in text:
        print(f"compare_backends: warning: {paragraph.replace('*', '').replace('`', '')}", file=sys.stderr)
    return text


# --- the figure ---------------------------------------------------------------


def draw_losses(axes, sides):
    for place, side in enumerate(sides):
        axes.plot(*zip(*losses(side).items()), plots.DASHES[place], color=plots.COLORS[place + 1], label=side.name)
    axes.set(xlabel="step", ylabel="training loss / nats")
    axes.legend()


def draw_parts(axes, sides):
    """A bar of length 1 for each phase and side, because the sides may differ a hundredfold."""
    bars = [(f"{phase}, {side.name}: {1e3 * parts['step']:.3g} ms", parts)
            for phase in ("compressed", "dense") for side in reversed(sides)
            for parts in [step_parts(side).get(phase)] if parts]
    left = [0.0] * len(bars)
    for place, part in enumerate([*PARTS, "rest"]):
        widths = [parts[part] / sum(parts[each] for each in [*PARTS, "rest"]) for _, parts in bars]
        axes.barh([label for label, _ in bars], widths, left=left, label=part, color=plots.COLORS[place])
        left = [begin + width for begin, width in zip(left, widths)]
    axes.set(xlabel="fraction of the sum of the parts", xlim=(0, 1))
    axes.legend(ncol=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def draw_rooflines(axes, sides):
    for place, side in enumerate(sides):
        plots.roofline(axes, side.rows, side.name, place + 1)
    axes.set(xlabel="arithmetic intensity / (FLOP/byte)", ylabel="GFLOP/s of a rank")
    axes.legend(ncol=2, loc="upper right", bbox_to_anchor=(1, -0.2), frameon=False)


def draw(path, sides, drawers):
    figure, panels = pyplot.subplots(len(drawers), 1, figsize=(plots.WIDTH, 4.6 * len(drawers)), squeeze=False,
                                     constrained_layout=True)
    for axes, drawer in zip(panels[:, 0], drawers):
        axes.grid(alpha=0.3)
        drawer(axes, sides)
    plots.save(figure, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs=2, metavar="[NAME=]PATH")
    parser.add_argument("--output", type=launch.path, default=pathlib.Path("results/backends.md"), metavar="PAGE.md",
                        help="the figure has the same name with .svg; default: %(default)s")
    parser.add_argument("--steps", type=lambda text: [int(step) for step in text.split(",")], metavar="STEP,…",
                        help="steps whose losses the page lists; default: 1, 10, 100, … and the last")
    arguments = parser.parse_args()

    sides = one, other = read_sides(arguments.paths)
    text, drawers = [f"# {other.name} against {one.name}", about_table(sides)], []
    if one.about["git"] != other.about["git"]:
        text.append("The commits differ, so a difference may come from the program and not from the backend.")
    if one.run and other.run:
        refuse_other_input(one, other)
        text += [*loss_section(one, other, arguments.steps), *step_section(one, other)]
        drawers += [draw_losses, draw_parts]
    if one.rows and other.rows:
        text += kernel_section(one, other)
        drawers.append(draw_rooflines)
    text += missing_kernels(sides)
    if not drawers:
        fail(other.directory, f"no files of the kinds that {one.directory} has (run.csv; kernels.csv)")
    figure = arguments.output.with_suffix(".svg")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    draw(figure, sides, drawers)
    arguments.output.write_text(tables.page([*text, f"![{other.name} against {one.name}]({figure.name})"]))
    print(f"{arguments.output}: {other.name} against {one.name}")


if __name__ == "__main__":
    main()
