#!/usr/bin/env python3
"""Compares runs of one input on several backends: step times, kernels against each machine's floor, losses.

Each PATH is a directory with the output of `onebit train` (run.csv, profile.csv, steps.csv), of `onebit bench kernels`
(kernels.csv), or of both; several may belong to one backend. NAME=PATH gives it another name than its backend's, for
one backend on several machines. Writes into the output directory

    comparison.md    the tables, and the figures
    phases.csv       mean time of each part of a step, and each backend's speed-up over the baseline
    kernels.csv      each kernel's fraction of the roofline, and its performance portability
    losses.csv       losses of each step, and their differences from the baseline's

Performance portability is the metric of Pennycook, Sewall and Lee (2016, 2019) with the fraction of the roofline as
efficiency: the harmonic mean over all platforms, and 0 where one of them lacks the kernel. A share above 1 counts as 1.
"""

import argparse
import math
import pathlib
import sys

from lib import plots
from lib.plots import pyplot, style
from lib.runs import Run
from lib.tables import markdown, number, percent, read_rows, write_csv

BACKENDS = ["serial", "openmp", "cuda"]  # the first one with results is the baseline
# Kernels that measure the machine and not the program.
MACHINE = ["triad", "copy", "fma", "gemm", "gemm_tf32", "gemm_bf16"]
# Keys that may differ between runs of one input.
FREE = ("run.output", "run.backend", "run.threads", "run.progress_interval_s", "run.dump_parameters", "comm.transport",
        "data.cache", "bench.")


class Platform:
    """The results of one backend on one machine."""

    def __init__(self):
        self.training = None   # Run
        self.kernels = {}      # {(kernel, shape): row}; shape is empty for MACHINE

    def add(self, directory):
        found = False
        if (directory / "run.csv").is_file():
            if self.training:
                fail(directory, f"a second training run of the same name as {self.training.directory}")
            self.training, found = Run(directory), True
            if self.training.problems:
                fail(directory, "; ".join(self.training.problems))
        if (directory / "kernels.csv").is_file():
            if self.kernels:
                fail(directory, "a second kernels.csv of the same name")
            rows, problem = read_rows(directory / "kernels.csv")
            if problem:
                fail(directory / "kernels.csv", problem)
            self.kernels = {(row["kernel"], "" if row["kernel"] in MACHINE else row["shape"]): row for row in rows}
            found = True
        if not found:
            fail(directory, "neither run.csv nor kernels.csv")


def fail(place, what):
    sys.exit(f"compare_backends: {place}: {what}\n"
             "  remedy: name directories of complete results, or call them NAME=PATH")


def backend_of(directory):
    for name in ("run.csv", "kernels.csv"):
        rows, _ = read_rows(directory / name)
        if rows:
            return rows[0].get("backend") or fail(directory / name, "no column backend")
    return fail(directory, "neither run.csv nor kernels.csv")


def read_platforms(paths):
    """{name: Platform} in the order of BACKENDS."""
    platforms = {}
    for text in paths:
        name, _, path = text.rpartition("=")
        directory = pathlib.Path(path)
        platforms.setdefault(name or backend_of(directory), Platform()).add(directory)
    place = {name: i for i, name in enumerate(BACKENDS)}
    return dict(sorted(platforms.items(), key=lambda item: place.get(item[0], len(place))))


def refuse_other_inputs(trained):
    """Ends the program where the runs' inputs differ in other keys than FREE."""
    (first, reference), *others = trained.items()
    for _, platform in others:
        one, other = reference.training.input, platform.training.input
        differing = [key for key in sorted(one.keys() | other.keys())
                     if not key.startswith(FREE) and one.get(key) != other.get(key)]
        if differing:
            fail(platform.training.directory, f"another input than {first}'s: " + ", ".join(
                f"{key} ({one.get(key)}, {other.get(key)})" for key in differing))


def portability(shares):
    """Harmonic mean of the efficiencies, each at most 1; 0 where one is missing."""
    if any(not share > 0 for share in shares):
        return 0.0
    return len(shares) / sum(1 / min(share, 1) for share in shares)


def compare_phases(trained, baseline):
    """Rows of phases.csv: the parts of a step that all platforms have."""
    times = {name: {(row["phase"], row["measure"]): number(row["mean_s"]) for row in platform.training.profile}
             for name, platform in trained.items()}
    rows = []
    for phase, measure in times[baseline]:
        if not all((phase, measure) in of for of in times.values()):
            continue
        row = {"phase": phase, "measure": measure}
        for name in trained:
            seconds, base = times[name][phase, measure], times[baseline][phase, measure]
            row[f"{name}_s"] = seconds
            row[f"{name}_speedup"] = base / seconds if seconds > 0 else math.nan
        rows.append(row)
    return rows


def compare_kernels(benched, wanted):
    """Rows of kernels.csv. `wanted` are the platforms of the portability."""
    keys = dict.fromkeys(key for platform in benched.values() for key in platform.kernels if key[0] not in MACHINE)
    rows = []
    for kernel, shape in keys:
        row = {"kernel": kernel, "shape": shape}
        for name in wanted:
            found = benched[name].kernels.get((kernel, shape)) if name in benched else None
            row[f"{name}_s"] = number(found["median_s"]) if found else math.nan
            row[f"{name}_fraction_of_roofline"] = number(found["fraction_of_roofline"]) if found else math.nan
        row["portability"] = portability([row[f"{name}_fraction_of_roofline"] for name in wanted])
        rows.append(row)
    return rows


def compare_losses(trained, baseline):
    """Rows of losses.csv: the steps that all platforms have."""
    losses = {name: {int(row["step"]): number(row["loss"]) for row in platform.training.steps}
              for name, platform in trained.items()}
    rows = []
    for step in losses[baseline]:
        if all(step in of for of in losses.values()):
            row = {"step": step}
            for name in trained:
                row[name] = losses[name][step]
                row[f"{name}_difference"] = losses[name][step] - losses[baseline][step]
            rows.append(row)
    return rows


def save(figure, path):
    figure.tight_layout()
    plots.save(figure, path, dpi=120)


def bars(path, rows, label, columns, y_label):
    """A group of bars for each row, a bar for each {name: column}."""
    figure, axes = pyplot.subplots(figsize=(max(6, 0.35 * len(rows) * max(2, len(columns)) / 2 + 2), 4.2))
    width = 0.8 / len(columns)
    for place, (name, column) in enumerate(columns.items()):
        axes.bar([i + (place - (len(columns) - 1) / 2) * width for i in range(len(rows))],
                 [row[column] if math.isfinite(row[column]) else 0 for row in rows], width, label=name,
                 color=style(place)["color"])
    axes.set_xticks(range(len(rows)), [label(row) for row in rows], rotation=60, ha="right", fontsize=7)
    axes.set_ylabel(y_label)
    axes.legend()
    return figure, axes, path


def draw_losses(path, rows, names, baseline):
    figure, (upper, lower) = pyplot.subplots(2, 1, figsize=(7, 5.5), sharex=True, gridspec_kw={"height_ratios": (2, 1)})
    steps = [row["step"] for row in rows]
    for place, name in enumerate(names):
        upper.plot(steps, [row[name] for row in rows], label=name, linewidth=1.2, color=style(place)["color"],
                   linestyle=["-", "--", ":"][place % 3])
        if name != baseline:
            lower.plot(steps, [abs(row[f"{name}_difference"]) for row in rows], color=style(place)["color"],
                       label=f"|{name} − {baseline}|")
    upper.set_ylabel("training loss / nats")
    upper.legend()
    lower.set(xlabel="step", ylabel="difference / nats")
    if any(abs(row[f"{name}_difference"]) > 0 for row in rows for name in names):
        lower.set_yscale("log")
    if len(names) > 1:
        lower.legend()
    save(figure, path)


def machine_table(benched):
    def rate(platform, kernel, unit, digits):
        row = platform.kernels.get((kernel, ""), {})
        seconds = number(row.get("median_s"))
        return f"{number(row.get(unit)) / seconds / 1e9:.{digits}f}" if seconds > 0 else ""
    rows = []
    for name, platform in benched.items():
        row = next(iter(platform.kernels.values()))
        rows.append([name, row["ranks"], row["threads_per_rank"], rate(platform, "triad", "bytes", 1),
                     rate(platform, "copy", "bytes", 1), rate(platform, "fma", "flop", 0),
                     rate(platform, "gemm", "flop", 0), f"{row['blas']} {row['blas_core']}".strip()])
    return markdown(["platform", "ranks", "threads of each", "triad / GB/s", "copy / GB/s", "FMA / GFLOP/s",
                  "GEMM / GFLOP/s", "host's BLAS"], rows)


def training_section(trained, baseline, directory):
    """Compares step times and losses; returns the paragraphs, and leaves CSV files and figures."""
    phases, losses = compare_phases(trained, baseline), compare_losses(trained, baseline)
    write_csv(directory / "phases.csv", phases)
    write_csv(directory / "losses.csv", losses)
    names, others = list(trained), [name for name in trained if name != baseline]
    hashes = {name: platform.training.run.get("parameters_hash") for name, platform in trained.items()}

    def phase_cells(row):
        speedups = (row[f"{name}_speedup"] for name in others)
        return [row["phase"], row["measure"].replace("_", " "), *(f"{1e3 * row[f'{name}_s']:.3f}" for name in names),
                *(f"{speedup:.2f}" if math.isfinite(speedup) else "" for speedup in speedups)]

    def loss_cells(name):
        worst = max(losses, key=lambda row: abs(row[f"{name}_difference"]))
        return [name, f"{losses[-1][name]:.6f}", f"{abs(worst[f'{name}_difference']):.1e}", worst["step"],
                "the same bits" if hashes[name] == hashes[baseline] else "other bits"]

    figure, axes, path = bars(directory / "phases.png",
                              [row for row in phases if any(row[f"{name}_s"] > 0 for name in names)],
                              lambda row: f"{row['phase']}: {row['measure'].replace('_', ' ')}",
                              {name: f"{name}_s" for name in names}, "time / s")
    axes.set_yscale("log")
    save(figure, path)
    draw_losses(directory / "losses.png", losses, names, baseline)
    return ["## Step times\n", f"Means over the steps of a phase, in ms; × is the speed-up over {baseline}.\n",
            markdown(["phase", "part", *names, *(f"{name} ×" for name in others)], map(phase_cells, phases)),
            "\n![step times](phases.png)\n", "## Losses\n",
            markdown(["platform", "last loss", "greatest difference", "at step", "final parameters"],
                     map(loss_cells, names)),
            f"\nDifferences from {baseline}, over {len(losses)} steps.\n", "![losses](losses.png)\n"]


def kernel_section(benched, wanted, directory):
    """Compares kernels; returns the paragraphs, and leaves a CSV file and a figure."""
    kernels = compare_kernels(benched, wanted)
    write_csv(directory / "kernels.csv", kernels)
    figure, axes, path = bars(directory / "kernels.png", kernels, lambda row: f"{row['kernel']} {row['shape']}",
                              {name: f"{name}_fraction_of_roofline" for name in wanted}, "fraction of the roofline")
    axes.axhline(1, color="0.5", linewidth=0.8)
    save(figure, path)
    return ["## Kernels\n", machine_table(benched),
            "\nFraction of the roofline of each machine (docs/develop/performance.md), and performance portability over "
            + ", ".join(wanted) + ".\n",
            markdown(["kernel", "shape", *wanted, "portability"], [
                [row["kernel"], row["shape"], *(percent(row[f"{name}_fraction_of_roofline"]) for name in wanted),
                 percent(row["portability"])] for row in kernels]), "\n![kernels](kernels.png)\n"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", metavar="[NAME=]PATH")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("results/backends"), metavar="DIR",
                        help="default: %(default)s")
    parser.add_argument("--baseline", metavar="NAME", help="default: the first of " + ", ".join(BACKENDS))
    parser.add_argument("--platforms", metavar="NAME,…",
                        help="platforms of the portability, also without results; default: those with kernels.csv")
    arguments = parser.parse_args()

    platforms = read_platforms(arguments.paths)
    trained = {name: platform for name, platform in platforms.items() if platform.training}
    benched = {name: platform for name, platform in platforms.items() if platform.kernels}
    text = ["# Backends compared\n"]
    if trained:
        refuse_other_inputs(trained)
        baseline = arguments.baseline or next(iter(trained))
        if baseline not in trained:
            fail(baseline, f"no training run; there are {', '.join(trained)}")
        text += training_section(trained, baseline, arguments.output)
    if benched:
        wanted = arguments.platforms.split(",") if arguments.platforms else list(benched)
        text += kernel_section(benched, wanted, arguments.output)
    (arguments.output / "comparison.md").write_text("\n".join(text))
    print(f"{arguments.output / 'comparison.md'}: {', '.join(platforms)}")


if __name__ == "__main__":
    main()
