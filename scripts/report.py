#!/usr/bin/env python3
"""Makes one page of all runs below a directory: configuration, losses, times, volume, backends, scaling.

The page is one HTML file that needs nothing else, and the same as Markdown, with figures beside it. A number links to
the CSV file that it comes from, and a mean over runs to the rows of these runs. Runs that go on or ended early count as
far as they came, and the page says what is missing.

Runs with the same workload, model and data (a problem) are compared, with any quantisation of the model. Runs of a
problem whose inputs differ in the seed alone are one configuration, which has means over its seeds and their range.

Exit status: 0; 2 where there are no runs or the page cannot be written.
"""

import argparse
import collections
import datetime
import io
import itertools
import math
import os
import pathlib
import re
import statistics
import sys
import textwrap
import warnings

from lib import launch, plots
from lib.document import Figure, Heading, Link, Table, to_html, to_markdown, visible
from lib.plots import matplotlib, pyplot, style
from lib.runs import Run
from lib.tables import mean, number, percent, read_rows, with_unit

matplotlib.rcParams.update({
    "font.size": 9, "axes.grid": True, "grid.alpha": 0.25, "axes.spines.top": False,
    "axes.spines.right": False, "axes.axisbelow": True, "legend.frameon": False, "figure.constrained_layout.use": True})
warnings.filterwarnings("ignore", message="Glyph")  # a name may hold characters that the font lacks

POINTS = 200      # most points of a curve
MOST_LINES = 12   # most lines of a figure for each configuration; beyond, a colour stands for an algorithm
MOST_BARS = 24    # most bars of a figure
PARTS = {"forward": "forward", "backward_everything_else": "backward", "backward_allreduce": "allreduce",
         "step_compress": "compress", "step_all_to_all": "all-to-all", "step_average": "average",
         "step_all_gather": "all-gather", "step_update": "update"}
# Keys of the input that say where a run takes place or how it is watched, and not what it computes.
ASIDE = re.compile(r"run\.(output|seed|dump_parameters|progress_interval_s|check_replicas_every)|checkpoint\.|bench\.")
PLACES = ("backend", "ranks", "threads")
PROBLEM = re.compile(r"(workload|model(?!\.quantization)|data|quadratic|replay)\.")


# --- runs, configurations, problems -------------------------------------------


class Problem:
    """Runs whose losses can be compared, as configurations: {label: [run, …]}."""

    def __init__(self, runs):
        self.runs = runs
        self.names = sorted({pathlib.PurePath(run.run["input"]).stem for run in runs if run.run.get("input")})
        kinds = sorted({run.value("workload.kind") for run in runs} - {""})
        self.name = ", ".join(self.names[:3]) + (" …" if len(self.names) > 3 else "") or ", ".join(kinds) or "unknown"
        keys = list(dict.fromkeys(key for run in runs for key in run.input if not ASIDE.match(key)))
        values = {key: {run.input.get(key) for run in runs if run.input} for key in keys}
        self.shared = {key: next(iter(found)) for key, found in values.items() if len(found) == 1}
        self.varying = [key for key in keys if len(values[key]) > 1 and key != "run.backend"]
        # Labels name the keys that tell configurations apart, and leave out the values that most runs have.
        self.named, self.usual = ["algorithm"], {}
        known = [run for run in runs if run.run and run.input] or [run for run in runs if run.input]

        def told_apart(names):
            return len({tuple(run.value(name) for name in names) for run in known})
        for name in (*PLACES, *self.varying):
            if len(self.named) < 8 and told_apart([*self.named, name]) > told_apart(self.named):
                self.named.append(name)
                value, count = collections.Counter(run.value(name) for run in known).most_common(1)[0]
                if "." in name and 2 * count > len(known):
                    self.usual[name] = value
        groups = collections.defaultdict(list)
        for run in sorted(runs, key=lambda run: not run.run):
            key = self.configuration(run)
            if run.input and not run.run:
                # A run that has not ended does not tell its ranks. It may belong to a configuration of the same input.
                same = [other for other in groups if other[len(PLACES):] == key[len(PLACES):]]
                key = same[0] if len(same) == 1 else key
            groups[key].append(run)
        self.configurations = {}
        for group in groups.values():
            label = self.label(group[0])
            if label in self.configurations:
                numbered = (f"{label} #{n}" for n in itertools.count(2))
                label = next(name for name in numbered if name not in self.configurations)
            self.configurations[label] = group

    def configuration(self, run, without=()):
        """The run's backend, ranks, threads and varying keys, except those in `without`."""
        if not run.input:
            return (run.name,)
        places = [(name, run.value(name)) for name in PLACES if name not in without]
        return (*places, *((key, run.input.get(key)) for key in self.varying if key not in without))

    def label(self, run, without=()):
        if not run.input:
            return run.name
        words = []
        for name in self.named:
            value = run.value(name) or "?"
            if name in ("ranks", "threads"):
                value += f" {name[:-1]}" if value == "1" else f" {name}"
            elif "." in name:
                value = f"{name} {value}"
            # Inputs of an older version may lack the key.
            if name not in without and run.value(name) not in (self.usual.get(name), "" if "." in name else None):
                words.append(value)
        return ", ".join(words)


class ReportedRun(Run):
    """A run with its name; its values come from run.csv or, where there is none, from the input."""

    INPUT_KEYS = {"algorithm": "optimizer.algorithm", "backend": "run.backend", "seed": "run.seed",
                  "workload.kind": "workload.kind"}

    def __init__(self, directory, top):
        super().__init__(directory)
        self.name = os.path.relpath(directory, top)
        self.links = {}  # {file name: link target}
        self.anchor = ""

    def value(self, name):
        column = {"threads": "threads_per_rank", "workload.kind": "workload"}.get(name, name)
        return self.run.get(column) or self.input.get(self.INPUT_KEYS.get(name, name), "")

    def link(self, text, name, column=""):
        note = f"{os.path.join(self.name, name)}{': ' + column if column else ''}"
        return Link(text, self.links[name], note) if text and name in self.links else text

    def state(self):
        if self.complete:
            return "complete"
        if self.run:
            return "complete, and begun again"
        wanted = self.steps_wanted()
        if self.steps:
            return f"incomplete: {self.steps_done()} of {wanted or '?'} steps"
        return "incomplete: no steps"

    def what_is_missing(self):
        found = list(self.problems)
        if self.run and not self.complete:
            found.append("whole files are an earlier run's; a later one has begun, and does not count here")
        elif self.run and self.unfinished:
            found.append(f"files of a later run that has not ended: {', '.join(self.unfinished)}")
        return found


def find_runs(top, reports):
    """(runs below a directory, sorted by name; files of collective benchmarks)"""
    runs, benches = [], []
    for directory, folders, names in os.walk(top):
        folders.sort()
        if Run.is_one(names) or "arguments" in names:
            runs.append(ReportedRun(pathlib.Path(directory), top))
        if "collective.csv" in names:
            benches.append(pathlib.Path(directory) / "collective.csv")
    for run in runs:
        run.links = {name: os.path.relpath(path, reports) for name, path in run.paths.items()}
    return sorted(runs, key=lambda run: natural(run.name)), benches


def natural(text):
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", text)]


def problems_of(runs):
    groups = collections.defaultdict(list)
    for run in runs:
        groups[tuple(sorted(item for item in run.input.items() if PROBLEM.match(item[0])))].append(run)
    return [Problem(group) for _, group in sorted(groups.items(), key=lambda item: not item[0])]


# --- numbers in cells -----------------------------------------------------------


def finite(values):
    return [value for value in values if math.isfinite(value)]


def loss_text(value):
    return f"{value:.4f}" if 1e-2 <= abs(value) < 1e4 else f"{value:.3g}"


def rate_text(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def time_text(seconds):
    """In milliseconds."""
    if seconds < 5e-7:
        return "0" if seconds >= 0 else ""
    return f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:.0f}"


def ratio_text(value):
    return f"{value:.2f}"


def cell_of(runs, column, text, name="run.csv", value=None):
    """The mean over runs as a link: to the run's file or, for several runs, to their rows of the page."""
    value = value or (lambda run: number(run.run.get(column)))
    pairs = [(run, found) for run in runs if math.isfinite(found := value(run))]
    if not pairs:
        return ""
    words = text(mean(found for _, found in pairs))
    if len(pairs) == 1:
        return pairs[0][0].link(words, name, column)
    return Link(words, f"#{pairs[0][0].anchor}", f"mean of {column} over {len(pairs)} runs")


def complete(runs):
    return [run for run in runs if run.complete]


# --- figures ----------------------------------------------------------------------


def shown(text, width=44, most_lines=3):
    """A label that matplotlib takes literally: not as mathematics, and not as hidden; long ones on several lines."""
    lines = textwrap.wrap(visible(text), width) or [""]
    if len(lines) > most_lines:  # labels differ at their ends as often as at their begins
        lines = [*lines[:most_lines - 2], lines[most_lines - 2][:width - 2] + " …", lines[-1]]
    text = "\n".join(lines).replace("\\", "\\\\").replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def shown_all(labels):
    """All labels as `shown` gives them, numbered where two would look the same."""
    short = [shown(label) for label in labels]
    return [f"{text} #{short[:place].count(text) + 1}" if short.count(text) > 1 else text
            for place, text in enumerate(short)]


def few_ticks(axis):
    """So many marks that labels with units have room."""
    axis.set_major_locator(matplotlib.ticker.MaxNLocator(5))


def save(figure, name, caption):
    data = io.BytesIO()
    plots.save(figure, data, bbox_inches="tight", pad_inches=0.05)
    return Figure(name, data.getvalue(), caption)


def curve(run):
    """[(step, bytes so far, training loss)], where each point is the mean of a few steps."""
    window = max(1, math.ceil(len(run.steps) / POINTS))
    points, sent = [], 0.0
    for first in range(0, len(run.steps), window):
        rows = run.steps[first:first + window]
        sent += sum(finite(number(row.get("bytes_sent")) for row in rows))
        loss = mean(finite(number(row.get("loss")) for row in rows))
        step = number(rows[-1].get("step"))
        if math.isfinite(loss) and math.isfinite(step):
            points.append((step, sent, loss))
    return points


def mean_curve(curves):
    """Yields (step, bytes, mean, least, greatest) at the steps that all curves have."""
    at = collections.defaultdict(list)
    for points in curves:
        for step, sent, loss in points:
            at[step].append((sent, loss))
    for step in sorted(at):
        if len(at[step]) == len(curves):
            losses = [loss for _, loss in at[step]]
            yield step, mean(sent for sent, _ in at[step]), mean(losses), min(losses), max(losses)


def losses_figure(problem, name):
    """Training losses over steps and over bytes; None where no run has any."""
    curves = {label: [points for run in runs if (points := curve(run))]
              for label, runs in problem.configurations.items()}
    curves = {label: found for label, found in curves.items() if found}
    # The workload `replay` has no loss.
    if not any(loss for found in curves.values() for points in found for _, _, loss in points):
        return None
    has_bytes = any(points[-1][1] > 0 for found in curves.values() for points in found)
    figure, panels = pyplot.subplots(1, 1 + has_bytes, figsize=(10, 3.8), sharey=True, squeeze=False)
    by_algorithm = len(curves) > MOST_LINES
    algorithms = list(dict.fromkeys(problem.configurations[label][0].value("algorithm") for label in curves))
    handles, tops, bottoms, starts = {}, [], [], []
    for place, (label, found) in enumerate(curves.items()):
        runs = problem.configurations[label]
        # Seeds that ended early have lines of their own.
        longest = max(points[-1][0] for points in found)
        whole = [points for points in found if points[-1][0] == longest]
        cut = [list(mean_curve([points])) for points in found if points[-1][0] < longest]
        look = style(algorithms.index(runs[0].value("algorithm")) if by_algorithm else place)
        for points in [list(mean_curve(whole)), *cut]:
            if not points:
                continue
            for axes, column in zip(panels[0], (0, 1)):
                x, y, low, high = ([point[i] for point in points] for i in (column, 2, 3, 4))
                if x[-1] == 0:  # one rank sends nothing
                    continue
                line, = axes.plot(x, y, linewidth=0.8 if by_algorithm else 1.5, **look)
                if not by_algorithm:
                    axes.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)
                if points in cut or not any(run.complete for run in runs):
                    axes.plot(x[-1], y[-1], "x", color=look["color"], markersize=6)
            handles.setdefault(runs[0].value("algorithm") or "unknown" if by_algorithm else label, line)
            losses = [point[2] for point in points]
            starts.append(losses[0])
            tops.append(max(losses[min(len(losses) - 1, len(losses) // 20):]))
            bottoms.append(min(losses))
    top, bottom, start = max(tops), min(bottoms), statistics.median(starts)
    # A loss that falls by orders of magnitude needs a logarithmic scale. A linear one leaves out the drop of the first
    # steps, and losses above the untrained model's.
    if bottom > 0 and start / bottom > 30:
        panels[0][0].set_yscale("log")
    else:
        top = min(top, start)
        margin = 0.04 * (top - bottom) + 1e-9
        panels[0][0].set_ylim(bottom - margin, top + margin)
    panels[0][0].set(xlabel="step", ylabel="training loss / nats")
    if has_bytes:
        panels[0][1].set(xlabel="bytes sent by a rank")
        few_ticks(panels[0][1].xaxis)
        panels[0][1].xaxis.set_major_formatter(lambda x, _: with_unit(x))
    if len(handles) > 1 or by_algorithm:
        above = matplotlib.__version_info__ >= (3, 7)
        figure.legend(list(handles.values()), shown_all(handles),
                      loc="outside upper center" if above else "lower center",
                      bbox_to_anchor=None if above else (0.5, 1.0), ncol=2 if max(map(len, handles)) > 30 else 3)
    kind = "one colour for each algorithm" if by_algorithm else "mean, and range over seeds"
    return save(figure, name, f"Training loss of {problem.name} at {POINTS} points at most; {kind}. A cross ends a run "
                              "that is incomplete. Losses above the untrained model's are cut off.")


def bars(rows, name, caption, x_label, formatter=None):
    """Stacked horizontal bars; `rows` are (label, {part: length}, mark or None)."""
    rows = rows[:MOST_BARS]
    parts = list(dict.fromkeys(part for _, lengths, _ in rows for part in lengths))
    labels = shown_all([row[0] for row in rows])
    height = sum(max(0.27, 0.1 + 0.15 * (1 + label.count("\n"))) for label in labels)
    figure, axes = pyplot.subplots(figsize=(10, max(1.9, 0.9 + height)))
    left = [0.0] * len(rows)
    for place, part in enumerate(parts):
        lengths = [row[1].get(part, 0.0) for row in rows]
        axes.barh(range(len(rows)), lengths, left=left, height=0.72, label=part, color=f"C{place % 10}")
        left = [a + b for a, b in zip(left, lengths)]
    marks = [(row[2], place) for place, row in enumerate(rows) if row[2] is not None]
    if marks:
        axes.plot(*zip(*marks), "|", color="black", markersize=12, markeredgewidth=2, label="dense fp32 every step",
                  clip_on=False)
    axes.set_yticks(range(len(rows)))
    axes.set_yticklabels(labels)
    few_ticks(axes.xaxis)
    axes.set(xlabel=x_label)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    if formatter:
        axes.xaxis.set_major_formatter(formatter)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.02))
    return save(figure, name, caption)


def lines(groups, name, caption, **axes_labels):
    """A line with dots for each of `groups` = {label: [(x, y)]}. Returns the axes and a function that saves."""
    figure, axes = pyplot.subplots(figsize=(8, 3.6))
    for place, (label, points) in enumerate(zip(shown_all(groups), groups.values())):
        axes.plot(*zip(*sorted(points)), marker="o", markersize=4, label=label, **style(place))
    axes.set(**axes_labels)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.02))
    return axes, lambda: save(figure, name, caption)


# --- sections ---------------------------------------------------------------------


def counted(count, noun):
    return f"{count} {noun}{'s' if count != 1 else ''}"


def more(count):
    return f" {count - MOST_BARS} more are in the table." if count > MOST_BARS else ""


def overview(runs, benches, problems):
    whole = complete(runs)
    yield Heading(2, "Overview")
    configurations = sum(len(problem.configurations) for problem in problems)
    yield (f"{counted(len(runs), 'run')}, {len(whole)} of them complete, of "
           f"{counted(configurations, 'configuration')} in {counted(len(problems), 'problem')}. "
           + (f"{counted(len(benches), 'benchmark')} of collectives." if benches else ""))
    columns = {"version": "version", "git": "git", "compiler": "compiler", "kokkos": "Kokkos", "mpi": "MPI",
               "blas": "BLAS", "blas_core": "BLAS kernels", "machine": "machine", "backend": "backends",
               "transport": "transport", "network": "network", "ranks": "ranks",
               "threads_per_rank": "threads of a rank", "slurm_cluster": "Slurm cluster",
               "slurm_partition": "Slurm partition", "slurm_nodelist": "Slurm nodes"}
    rows = []
    for column, name in columns.items():
        found = collections.Counter(run.run[column] for run in whole if run.run.get(column))
        if found:
            words = [f"{value} ({counted(count, 'run')})" if len(found) > 1 else value
                     for value, count in found.most_common(6)]
            rows.append([name, "; ".join(words) + (f"; and {len(found) - 6} more" if len(found) > 6 else "")])
    if rows:
        yield Table(["of complete runs", ""], rows)
    missing = [(run, run.what_is_missing()) for run in runs]
    missing = [(run, words) for run, words in missing if words or not run.complete]
    if missing:
        yield Heading(2, "Incomplete")
        yield ("These runs have no whole results, or those of more than one run. Their rows count in the loss curves "
               "alone. A run that goes on writes to files that end in .partial.")
        yield Table(["run", "state", "what is missing or broken"],
                    [[run.link(run.name, next(iter(run.links), "")), run.state(), "; ".join(words)]
                     for run, words in missing])


def configuration_section(problem, _):
    yield Heading(3, "Configuration")
    resolved = next((run for run in problem.runs if run.input), None)
    if not resolved:
        yield "No run has a resolved input that could be read."
        return
    yield ("In all runs of this problem; every key and its meaning is in docs/reference/input.md. "
           "The values in which runs differ are in the table of results.")
    groups = collections.defaultdict(list)
    for key, value in problem.shared.items():
        section, _, name = key.rpartition(".")
        groups[section].append(f"{name}: {value}" if value else f"{name}: \"\"")
    yield Table(["section", "keys"], [[resolved.link(section, "input.resolved.yaml"), ", ".join(words)]
                                      for section, words in groups.items()])


def results_section(problem, _):
    yield Heading(3, "Results")
    rows = []
    for label, runs in problem.configurations.items():
        whole = complete(runs)
        losses = finite(number(run.run.get("final_validation_loss")) for run in whole)
        spread = f"{loss_text(min(losses))}–{loss_text(max(losses))}" if len(losses) > 1 else ""
        rows.append([
            Link(label, f"#{runs[0].anchor}", "the runs of this configuration"),
            f"{len(whole)} of {len(runs)}" if len(whole) < len(runs) else str(len(runs)),
            cell_of(whole, "final_validation_loss", loss_text),
            Link(spread, f"#{runs[0].anchor}", "") if spread else "", cell_of(whole, "final_loss", loss_text),
            cell_of(whole, "tokens_per_s", rate_text), cell_of(whole, "bytes_sent", with_unit),
            cell_of(whole, "reduction", ratio_text), cell_of(whole, "variance_frozen_at_step", rate_text),
            cell_of(whole, "training_s", rate_text), *(runs[0].input.get(key, "") for key in problem.varying[:8])])
    yield Table(["configuration", "runs", "final validation loss", "least–greatest", "final training loss", "tokens/s",
                 "bytes sent by a rank", "reduction", "T_w", "training / s", *problem.varying[:8]], rows)
    if len(problem.varying) > 8:
        yield (f"The inputs differ in {len(problem.varying)} keys, of which eight are shown; the others: "
               + ", ".join(problem.varying[8:]) + ".")


def losses_section(problem, name):
    if figure := losses_figure(problem, f"{name}_loss"):
        yield Heading(3, "Loss")
        yield figure


def profile_value(phase, measure, column="mean_s"):
    """A function that reads a number from a run's profile.csv."""
    return lambda run: next((number(row.get(column)) for row in run.profile
                             if (row.get("phase"), row.get("measure")) == (phase, measure)), math.nan)


def profile_section(problem, name):
    rows, figure_rows = [], []
    for label, runs in problem.configurations.items():
        for phase in ("dense", "compressed"):
            total = profile_value(phase, "total")
            whole = [run for run in complete(runs) if math.isfinite(total(run))]
            if not whole:
                continue

            def cell(measure, text=time_text, column="mean_s", phase=phase, whole=whole):
                return cell_of(whole, f"{phase} {measure}, {column}", text, "profile.csv",
                               profile_value(phase, measure, column))

            rows.append([label, phase, *map(cell, (*PARTS, "total")), cell("communication", percent, "share_of_total")])
            lengths = {text: 1e3 * mean(finite(map(profile_value(phase, measure), whole)))
                       for measure, text in PARTS.items()}
            lengths["else"] = max(0.0, 1e3 * mean(map(total, whole)) - sum(finite(lengths.values())))
            figure_rows.append((f"{label}: {phase}", {k: v for k, v in lengths.items() if math.isfinite(v)}, None))
    if not rows:
        return
    yield Heading(3, "Phases of a step")
    yield bars(figure_rows, f"{name}_phases", "Mean time of a step of each phase, by its parts, over ranks and seeds."
               + more(len(figure_rows)), "milliseconds")
    yield Table(["configuration", "phase", *(f"{text} / ms" for text in (*PARTS.values(), "total")), "communication"],
                rows)


def volume_section(problem, name):
    rows, figure_rows = [], []
    for label, runs in problem.configurations.items():
        whole = [run for run in complete(runs) if number(run.run.get("bytes_sent")) > 0]
        if not whole:
            continue
        columns = ("bytes_sent", "bytes_sent_dense_phase", "bytes_sent_compressed_phase", "bytes_sent_allreduce",
                   "bytes_sent_all_to_all", "bytes_sent_all_gather", "bytes_sent_reduce_scatter", "bytes_dense_fp32")
        rows.append([label, *(cell_of(whole, column, with_unit) for column in columns),
                     *(cell_of(whole, column, ratio_text)
                       for column in ("reduction", "reduction_vs_16bit", "reduction_compressed_phase"))])
        *parts, dense = (mean(finite(number(run.run.get(column)) for run in whole)) for column in (
            "bytes_sent_dense_phase", "bytes_sent_compressed_phase", "bytes_dense_fp32"))
        parts = zip(("dense phase", "compressed phase"), parts)
        figure_rows.append((label, {part: sent for part, sent in parts if math.isfinite(sent)},
                            dense if math.isfinite(dense) else None))
    if not rows:
        return
    yield Heading(3, "Volume")
    yield bars(figure_rows, f"{name}_volume", "Bytes that a rank sent in the whole run; the black mark is a dense fp32 "
               "allreduce in every step." + more(len(figure_rows)), "bytes sent by a rank", lambda x, _: with_unit(x))
    yield Table(["configuration", "bytes sent", "in dense phase", "in compressed phase", "by allreduce",
                 "by all-to-all", "by all-gather", "by reduce-scatter", "dense fp32", "reduction", "against 16 bits",
                 "in compressed phase"],
                rows)


def quantization_section(problem, _):
    """What quantised layers made of their gradients; nothing for runs without."""
    def over_steps(column):
        return lambda run: mean(finite(number(row.get(column)) for row in run.steps))

    columns = {"gradient_bits": ratio_text, "pruned_share": percent, "quantizer_variance": ratio_text}
    rows = []
    for label, runs in problem.configurations.items():
        whole = [run for run in complete(runs) if math.isfinite(over_steps("gradient_bits")(run))]
        if whole:
            rows.append([label, *(cell_of(whole, f"{column}, mean over steps", text, "steps.csv", over_steps(column))
                                  for column, text in columns.items())])
    if rows:
        yield Heading(3, "Quantised gradients")
        yield ("Of quantised layers, means over the steps that have a value: bits of an element, with 0 for those that "
               "were pruned; share of rows and columns that were pruned; variance of the quantisers over the square "
               "of the gradients' norm.")
        yield Table(["configuration", "bits", "pruned", "variance"], rows)


def twins(problem, without):
    """{what is the same: [runs of a configuration, …]} of configurations that differ in the keys `without` alone."""
    groups = collections.defaultdict(list)
    for runs in problem.configurations.values():
        whole = [run for run in complete(runs) if math.isfinite(number(run.run.get("tokens_per_s")))]
        if whole:
            groups[problem.configuration(whole[0], without)].append(whole)
    return groups


def backend_section(problem, name):
    names = sorted({run.value("backend") for run in complete(problem.runs)} - {""})
    if len(names) < 2:
        return
    rows, speeds_of = [], []
    for sets in twins(problem, ("backend",)).values():
        found = {runs[0].value("backend"): runs for runs in sets}
        if len(found) < 2:
            continue
        label = problem.label(sets[0][0], ("backend",))
        speeds = {b: mean(number(run.run["tokens_per_s"]) for run in runs) for b, runs in found.items()}
        base = next(iter(b for b in names if b in found))
        hashes = {run.run.get("parameters_hash") for runs in found.values() for run in runs
                  if run.value("seed") == found[base][0].value("seed")}
        rows.append([label, *(cell_of(found.get(b, []), "tokens_per_s", rate_text) for b in names),
                     *(ratio_text(speeds[b] / speeds[base]) if b in found and speeds[base] else "" for b in names[1:]),
                     "equal" if len(hashes) == 1 else "differ"])
        speeds_of += [(f"{label}: {b}", {"tokens/s": speeds[b]}, None) for b in names if b in found]
    if not rows:
        return
    yield Heading(3, "Backends")
    yield ("Configurations that differ in the backend alone. The hash of the final parameters is equal where both "
           "backends ended in the same bits.")
    yield Table(["configuration", *(f"tokens/s, {b}" for b in names), *(f"{b} ÷ {names[0]}" for b in names[1:]),
                 "final bits"], rows)
    yield bars(speeds_of, f"{name}_backends", "Tokens per second on each backend." + more(len(speeds_of)), "tokens/s")


def scaling_section(problem, name):
    without = ("ranks", "threads", "train.batch")
    rows, groups = [], {}
    for sets in twins(problem, without).values():
        points = []
        for runs in sets:
            ranks, threads = number(runs[0].value("ranks")), number(runs[0].value("threads"))
            if math.isfinite(ranks * threads):
                points.append((ranks, threads, mean(number(run.run["tokens_per_s"]) for run in runs), runs))
        if len({point[:2] for point in points}) < 2:
            continue
        points.sort(key=lambda point: point[:3])
        label = problem.label(sets[0][0], without)
        cores, base = points[0][0] * points[0][1], points[0][2]
        for ranks, threads, speed, runs in points:
            gain = speed / base if base else math.nan
            rows.append([label, f"{ranks:.0f}", f"{threads:.0f}", cell_of(runs, "batch", rate_text),
                         cell_of(runs, "tokens_per_s", rate_text), ratio_text(gain) if base else "",
                         percent(gain * cores / (ranks * threads))])
        groups[label] = [(point[0] * point[1], point[2]) for point in points]
    if not rows:
        return
    yield Heading(3, "Scaling")
    axes, finish = lines(dict(list(groups.items())[:MOST_LINES]), f"{name}_scaling",
                         "Tokens per second over ranks × threads; grey: as many times more as there are cores."
                         + (f" {len(groups) - MOST_LINES} more are in the table." if len(groups) > MOST_LINES else ""),
                         xlabel="ranks × threads of each", ylabel="tokens/s")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    places = sorted({x for points in groups.values() for x, _ in points})
    # Marks at the numbers of cores that were used, as far as their labels have room.
    room, marks = (places[-1] / places[0]) ** 0.08, places[:1]
    for x in places:
        if x > room * marks[-1]:
            marks.append(x)
    axes.set_xticks(marks)
    axes.set_xticklabels([f"{x:.0f}" for x in marks])
    axes.xaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    axes.yaxis.set_major_formatter(lambda y, _: rate_text(y))
    first = max((points[0] for points in groups.values()), key=lambda point: point[1])
    axes.plot(places, [first[1] * x / first[0] for x in places], color="0.7", linewidth=1, linestyle=":", zorder=0)
    yield finish()
    yield Table(["configuration", "ranks", "threads", "batch", "tokens/s", "speed-up", "efficiency"], rows)
    yield ("Speed-up and efficiency are against the configuration's first row. Efficiency falls where ranks × threads "
           "exceed the cores.")


def all_runs_section(problems):
    rows, anchors = [], []
    columns = (("final_validation_loss", loss_text), ("final_loss", loss_text), ("tokens_per_s", rate_text),
               ("bytes_sent", with_unit), ("reduction", ratio_text), ("variance_frozen_at_step", rate_text),
               ("skipped_steps", rate_text), ("training_s", rate_text))
    for problem in problems:
        for label, runs in problem.configurations.items():
            for run in runs:
                files = [Link(name.split(".")[0], run.links[name], run.paths[name].name) for name in Run.FILES
                         if name in run.links]
                rows.append([run.name, label, run.state(), run.link(run.value("seed"), "run.csv", "seed"),
                             *(cell_of([run] if run.run else [], column, text) for column, text in columns),
                             run.link(run.run.get("slurm_job_id", ""), "run.csv", "slurm_job_id"), files])
                anchors.append(run.anchor)
    yield Heading(2, "All runs")
    yield Table(["run", "configuration", "state", "seed", "final validation loss", "final training loss", "tokens/s",
                 "bytes sent by a rank", "reduction", "T_w", "skipped steps", "training / s", "Slurm job", "files"],
                rows, anchors)


def bench_sections(benches, top, reports):
    for place, path in enumerate(benches):
        rows, problem = read_rows(path)
        relative = os.path.relpath(path, reports)
        yield Heading(2, f"Collectives: {os.path.relpath(path.parent, top)}")
        if problem:
            yield f"{path.name}: {problem}"
        groups, cells = collections.defaultdict(list), []
        for row in rows:
            size, seconds = number(row.get("logical_bytes")), number(row.get("p50_s"))
            if size > 0 and seconds > 0:
                groups[row.get("collective", "")].append((size, seconds))
                texts = {"ranks": row.get("ranks", ""), "hosts": row.get("hosts", ""), "logical_bytes": with_unit(size),
                         "wire_bytes": with_unit(number(row.get("wire_bytes"))), "p50_s": time_text(seconds),
                         "p99_s": time_text(number(row.get("p99_s"))),
                         "busbw_B_per_s": f"{with_unit(number(row.get('busbw_B_per_s')))}/s"}
                cells.append([row.get("collective", ""), *(Link(text, relative, f"{path.name}: {column}")
                                                           for column, text in texts.items())])
        if not cells:
            continue
        axes, finish = lines(groups, f"collective{place}",
                             "Median time of a call over the vector's length; the slowest rank's.",
                             xlabel="bytes of the fp32 vector", ylabel="seconds")
        axes.set(xscale="log", yscale="log")
        axes.xaxis.set_major_locator(matplotlib.ticker.LogLocator(numticks=7))
        axes.xaxis.set_major_formatter(lambda x, _: with_unit(x))
        yield finish()
        yield Table(["collective", "ranks", "hosts", "vector", "on the wire", "median / ms", "p99 / ms",
                     "bus bandwidth"], cells)


def report(runs, benches, top, reports):
    """Blocks of the page."""
    for place, run in enumerate(runs):
        run.anchor = f"run{place}"
    problems = problems_of(runs)
    yield f"{datetime.date.today().isoformat()}, from {top} by scripts/report.py. A number leads to its CSV file."
    yield from overview(runs, benches, problems)
    for place, problem in enumerate(problems, 1):
        yield Heading(2, f"Problem {place}: {problem.name}" if len(problems) > 1 else f"Problem: {problem.name}")
        for section in (results_section, losses_section, profile_section, volume_section,
                        quantization_section, backend_section, scaling_section, configuration_section):
            yield from section(problem, f"problem{place}")
    yield from bench_sections(benches, top, reports)
    if runs:
        yield from all_runs_section(problems)


def write(path, text):
    partial = path.with_name(path.name + ".writing")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def main():
    first, _, rest = __doc__.partition("\n")
    parser = argparse.ArgumentParser(description=first, epilog=rest,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path, metavar="RESULTS_DIR")
    parser.add_argument("--output", type=launch.path, metavar="FILE.html",
                        help="Markdown and figures get the same name; default: RESULTS_DIR/report.html")
    parser.add_argument("--title", help="default: OneBit, and the directory's name")
    arguments = parser.parse_args()
    top = arguments.results
    output = (arguments.output or top / "report.html").absolute()
    runs, benches = find_runs(top, output.parent)
    if not runs and not benches:
        print(f"report: {top}: there are no runs here\n  remedy: name a directory that is, or holds, a run.output",
              file=sys.stderr)
        return 2
    title = arguments.title or f"OneBit: {top.resolve().name}"
    blocks = list(report(runs, benches, top, output.parent))
    figures = output.with_name(f"{output.stem}_figures")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        figures.mkdir(exist_ok=True)
        for old in figures.glob("*.svg"):
            old.unlink()
        for block in blocks:
            if isinstance(block, Figure):
                (figures / f"{block.name}.svg").write_bytes(block.svg)
        write(output, to_html(title, blocks))
        write(output.with_suffix(".md"), to_markdown(title, blocks, figures.name))
    except OSError as error:
        print(f"report: {error}\n  remedy: name a file that you may write with --output", file=sys.stderr)
        return 2
    whole = len(complete(runs))
    print(f"{output}: {len(runs)} runs, {whole} complete; the same in {output.with_suffix('.md').name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
