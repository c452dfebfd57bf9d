#!/usr/bin/env python3
"""Runs the inputs of a study, keeps what their figures need as small CSV files, and makes a page of it.

A study file (inputs/study) names an ordinary input and what each run changes in it:

    page:   heading of the page, where this study is its first
    title:  heading of the panel
    text:   what is run, as a paragraph
    base:   input, relative to the study file
    seeds:  [1, 2, 3]
    set:    {section.key: value}                       of all runs
    runs:
      NAME: {label: TEXT, set: {…}, seeds: […]}        seeds: only where they differ
    accuracy: true                                     where accuracies are to be shown
    figures:
      NAME: {kind: KIND, runs: [PATTERN, …], caption: TEXT}
    claims:
      - {text: TEXT, run: NAME, against: NAME, at_most: NUMBER}

`{NAME}` in a value stands for the output directory of the run NAME with the same seed, `{NAME/seed1}` with that one, and
`{STUDY/NAME/seed1}` for that of another study of the same call, which comes first. Kinds of figures are the
functions draw_KIND. A claim is on the final validation loss of `run` minus that of `against`, means over the seeds that
both have (or, with `of: bytes_sent`, on their ratio; with `of: final_validation_accuracy`, on the difference of medians), and asks at_most, at_least or within (of zero). A run that ends
because of NaN is a result: its loss counts as infinite. A run whose results are complete is not run again.
"""

import argparse
import collections
import concurrent.futures
import datetime
import fnmatch
import hashlib
import json
import math
import os
import pathlib
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import time

from results import (COLORS, ROOT, in_environment, mean, number, read_csv, require, style, table, with_unit,
                     write_csv)

require("study", {"matplotlib": "matplotlib", "yaml": "PyYAML"})
import matplotlib  # noqa: E402
import yaml  # noqa: E402
matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402  (the backend has to be chosen first)
from PIL import Image  # noqa: E402  (matplotlib needs it too)

RUN_COLUMNS = ["run", "seed", "identity", "settings", "status", "failed_step", "algorithm", "lr", "parameters", "ranks",
               "threads_per_rank", "steps", "batch", "validation_samples", "final_validation_loss", "final_validation_accuracy", "variance_frozen_at_step", "bytes_sent",
               "bytes_dense_fp32", "reduction", "wall_s", "date", "machine", "git", "compiler", "kokkos", "mpi", "blas",
               "blas_core"]
STEP_COLUMNS = ["run", "seed", "step", "loss", "validation_loss", "lr", "variance_l1", "variance_ratio", "bytes_sent"]
WINDOW = 10  # steps that a kept training loss is the mean of


# --- a study file and its cells ----------------------------------------------


class Cell:
    """One run with one seed."""

    def __init__(self, study, name, run, seed, arguments):
        self.study, self.name, self.seed = study, name, seed
        self.output = pathlib.Path(arguments.results) / study.name / name / f"seed{seed}"
        self.settings = {**study.set, **run.get("set", {}), **dict(pair.split("=", 1) for pair in arguments.set)}
        sibling = re.compile(r"\{(?:(\w+)/)??(\w+)(?:/seed(\d+))?\}")

        def cell_of(found):
            return found[1] or study.name, found[2], int(found[3] or seed)

        self.needs = [cell_of(found) for value in self.settings.values() for found in sibling.finditer(value)]
        self.command = [arguments.mpiexec, "-n", str(arguments.ranks), arguments.onebit, "train",
                        os.path.relpath(study.base, ROOT)]
        for key, value in {**self.settings, "run.seed": seed, "run.output": self.output}.items():
            value = sibling.sub(lambda found: "{}/{}/{}/seed{}".format(arguments.results, *cell_of(found)), str(value))
            self.command += ["--set", f"{key}={value}"]
        self.text = " ".join(f"{key}={value}" for key, value in self.settings.items())
        # Two cells with the same identity were asked to do the same, whatever the input's comments say.
        asked = [yaml.load(study.base.read_text(), yaml.BaseLoader), self.settings, arguments.ranks, seed]
        self.identity = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:12]

    def record(self):
        """The row of `runs` that this cell left, or nothing."""
        path = self.output / "study.csv"
        rows = read_csv(path) if path.exists() else []
        return rows[0] if rows and rows[0]["identity"] == self.identity else None

    def run(self, machine):
        """Runs the cell and writes its record; a run that fails leaves one too, bad input ends the study."""
        shutil.rmtree(self.output, ignore_errors=True)
        self.output.mkdir(parents=True)
        start = time.monotonic()
        with open(self.output / "log", "w") as log:
            done = subprocess.run(in_environment(self.command), cwd=ROOT, stdout=log, stderr=subprocess.STDOUT,
                                  check=False, env={"OMP_NUM_THREADS": "1", **os.environ})
        row = dict.fromkeys(RUN_COLUMNS, "")
        row.update(run=self.name, seed=self.seed, identity=self.identity, settings=self.text, machine=machine,
                   wall_s=f"{time.monotonic() - start:.1f}", date=datetime.date.today().isoformat())
        if done.returncode == 0:
            row.update({k: v for k, v in read_csv(self.output / "run.csv")[0].items() if k in RUN_COLUMNS})
            row.update(status="complete")
        else:
            log = (self.output / "log").read_text()
            nonfinite = re.search(r"step (\d+): .* not finite", log)
            if done.returncode != 1 or not nonfinite:
                sys.exit(f"study: {shlex.join(self.command)}\nended with status {done.returncode}:\n{log[-3000:]}")
            row.update(status="failed", failed_step=nonfinite[1], ranks=self.command[2])
        resolved = next(self.output.glob("input.resolved.yaml*"))
        given = yaml.load(resolved.read_text(), yaml.BaseLoader)
        row.update(algorithm=given["optimizer"]["algorithm"], lr=given["optimizer"]["lr"],
                   steps=given["train"]["steps"], batch=given["train"]["batch"],
                   validation_samples=given["train"]["validation_batch"])
        write_csv(self.output / "study.csv", RUN_COLUMNS, [row])
        return row

    def curves(self):
        """Rows of steps.csv thinned to windows: the training loss' mean, everything else as it is at the end."""
        whole, broken = self.output / "steps.csv", self.output / "steps.csv.partial"
        sent, window = 0, []
        for row in (steps := read_csv(whole if whole.exists() else broken)):
            sent += int(row["bytes_sent"])
            window.append(number(row["loss"]))
            if int(row["step"]) % WINDOW == 0 or row["validation_loss"] or row is steps[-1]:
                kept = {"run": self.name, "seed": self.seed, "step": row["step"], "bytes_sent": sent,
                        "loss": f"{mean(window):.5g}"}
                for name in ("validation_loss", "lr", "variance_l1", "variance_ratio"):
                    kept[name] = f"{float(row[name]):.5g}" if row[name] else ""
                yield kept
                window = []


class Study:
    """A study file, its cells, and after `collect` the rows that are kept of them."""

    def __init__(self, path, arguments):
        self.path, self.name = path, path.stem
        given = yaml.load(path.read_text(), yaml.BaseLoader)  # every value as it is written
        self.title, self.text = given["title"], given.get("text", "").strip()
        self.base = (path.parent / given["base"]).resolve()
        self.set, self.runs = given.get("set", {}), given["runs"]
        self.heading, self.accuracy = given.get("page", "Convergence"), given.get("accuracy") == "true"
        self.figures, self.claims = given.get("figures", {}), given.get("claims", [])
        self.cells = [Cell(self, name, run, int(seed), arguments) for name, run in self.runs.items()
                      for seed in run.get("seeds", given["seeds"])]
        self.kept = arguments.page.with_suffix("")
        self.rows, self.curves = [], []

    def label(self, name):
        return self.runs[name].get("label", name)

    def collect(self, from_results):
        """Keeps what complete cells left; of the others, what an earlier call kept, where they still ask the same.

        Without `from_results` it only reads what was kept.
        """
        files = self.kept / f"{self.name}_runs.csv", self.kept / f"{self.name}_steps.csv"
        before = [read_csv(path) if path.exists() else [] for path in files]
        for cell in self.cells:
            if from_results and (row := cell.record()):
                self.rows.append(row)
                self.curves += cell.curves()
            else:
                row, curve = ([row for row in rows if (row["run"], row["seed"]) == (cell.name, str(cell.seed))]
                              for rows in before)
                if row and row[0]["identity"] == cell.identity:
                    self.rows += row
                    self.curves += curve
        if len(self.rows) < len(self.cells):
            print(f"{self.name}: {len(self.cells) - len(self.rows)} of {len(self.cells)} runs have no results, or were "
                  "kept of another input")
        if from_results:
            write_csv(files[0], RUN_COLUMNS, self.rows)
            write_csv(files[1], STEP_COLUMNS, self.curves)
        for row in self.rows + self.curves:
            row["seed"] = str(row["seed"])

    # What was kept, by run. Losses of failed runs are infinite.

    def present(self, patterns=("*",)):
        """Runs that match and have results: in the patterns' order, then in the file's."""
        have = {row["run"] for row in self.rows}
        names = [name for pattern in patterns for name in fnmatch.filter(self.runs, pattern) if name in have]
        return list(dict.fromkeys(names))

    def values(self, name, column):
        """{seed: number} over the run's seeds."""
        rows = [row for row in self.rows if row["run"] == name]
        if column == "final_validation_loss":
            return {r["seed"]: math.inf if r["status"] == "failed" else number(r[column]) for r in rows}
        return {r["seed"]: number(r.get(column)) for r in rows}

    def curve(self, name, column, over="step"):
        """[(x, mean, least, greatest)] of a column over the seeds, where all of them have a value."""
        points = collections.defaultdict(list)
        for row in self.curves:
            if row["run"] == name and row[column]:
                points[int(row["step"])].append((number(row[over]), number(row[column])))
        all_seeds = max(map(len, points.values()), default=0)
        for step in sorted(points):
            x, y = zip(*points[step])
            # Seeds that fail at different steps end the mean at the first failure.
            if len(y) == all_seeds:
                yield mean(x), mean(y), min(y), max(y)

    def first(self, name, column):
        return next(row[column] for row in self.rows if row["run"] == name)

    def untrained(self):
        """About the loss of the untrained model: the study's first run after its first steps."""
        return next(self.curve(self.present()[0], "loss"))[1]


def run_cells(cells, arguments):
    """Runs what is not complete, `jobs` at a time, in the order of the file."""
    todo = [cell for cell in cells if fnmatch.fnmatch(cell.name, arguments.only) and not cell.record()]
    print(f"{len(todo)} of {len(cells)} runs to do", flush=True)
    started = {}

    def work(place, cell):
        for name in cell.needs:
            if before := started.get(name):
                before.result()
        row = cell.run(arguments.machine)
        result = row["final_validation_loss"] or f"failed at step {row['failed_step']}"
        print(f"[{place}/{len(todo)}] {cell.study.name} {cell.name} seed {cell.seed}: {result}, {row['wall_s']} s",
              flush=True)

    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        # Tasks start in this order, so one that waits for another never keeps that from starting.
        for place, cell in enumerate(todo, 1):
            started[cell.study.name, cell.name, cell.seed] = pool.submit(work, place, cell)
        try:
            for task in concurrent.futures.as_completed(started.values()):
                task.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


# --- figures -----------------------------------------------------------------


def nats(loss):
    return f"{loss:.3f}" if loss < 100 else f"{loss:.2g}"


def difference(losses):
    return f"{losses:+.4f}" if abs(losses) < 100 else f"{losses:+.2g}"


def loss_text(study, name):
    """The final validation loss in words: its mean, or at which steps the seeds failed."""
    losses = study.values(name, "final_validation_loss")
    failed = [f"{step:.0f}" for step in study.values(name, "failed_step").values() if step == step]
    if not failed:
        return nats(mean(losses.values()))
    seeds = f"{len(failed)} of {len(losses)} " if len(losses) > 1 else ""
    return f"{seeds}NaN at step {', '.join(failed)}"


def accuracy_text(study, name):
    """Median and range in per cent; a run that failed has none."""
    shares = [100 * share for share in study.values(name, "final_validation_accuracy").values() if share == share]
    if not shares:
        return ""
    spread = f" ({min(shares):.1f}–{max(shares):.1f})" if len(shares) > 1 else ""
    return f"{statistics.median(shares):.1f} %{spread}"


def legend(axes, study, lines):
    """Beside the axes, in the order in which the lines end: best first."""
    order = sorted(lines, key=lambda name: mean(study.values(name, "final_validation_loss").values()))
    axes.legend([lines[name] for name in order], [f"{study.label(n)}: {loss_text(study, n)}" for n in order],
                loc="upper left", bbox_to_anchor=(1.01, 1.02), frameon=False, fontsize=9, title="final validation loss",
                alignment="left", labelspacing=0.7)


def draw_loss(study, names, over, scale, x_label):
    """Smoothed training loss of each run, mean and range over seeds."""
    figure, axes = pyplot.subplots(figsize=(8, 4.4))
    lines, tops, bottoms = {}, [], []
    for place, name in enumerate(names):
        points = list(study.curve(name, "loss", over))
        if not points:  # failed in its first step
            continue
        x, y, low, high = ([scale * point[0] for point in points], *(list(c) for c in list(zip(*points))[1:]))
        lines[name], = axes.plot(x, y, linewidth=1.6, **style(place))
        axes.fill_between(x, low, high, color=style(place)["color"], alpha=0.15, linewidth=0)
        if math.inf in study.values(name, "final_validation_loss").values():
            axes.plot(x[-1], y[-1], marker="x", markersize=8, color=style(place)["color"])
        tops.append(max(y[min(len(y) - 1, 3):]))
        bottoms.append(min(low))
    # Neither the drop of the first steps, which all runs share, nor what is worse than untrained.
    top = min(max(tops), study.untrained())
    margin = 0.04 * (top - min(bottoms)) + 1e-6
    axes.set(xlabel=x_label, ylabel=f"training loss / nats, mean of {WINDOW} steps",
             ylim=(min(bottoms) - margin, top + margin))
    axes.grid(alpha=0.25)
    legend(axes, study, lines)
    return figure, axes


def draw_samples(study, names):
    return draw_loss(study, names, "step", float(study.first(names[0], "batch")), "samples")[0]


def draw_bytes(study, names):
    figure, axes = draw_loss(study, names, "bytes_sent", 1.0, "bytes sent by a rank")
    axes.set_xscale("log")
    return figure


def draw_variance(study, names):
    """‖v‖₁ and r_t, and where the variance was frozen."""
    figure, (top, bottom) = pyplot.subplots(2, 1, figsize=(8, 5), sharex=True)
    chosen, ratios = [], []
    for place, name in enumerate(names):
        frozen = [t for t in study.values(name, "variance_frozen_at_step").values() if t == t]
        for axes, column in ((top, "variance_l1"), (bottom, "variance_ratio")):
            points = list(study.curve(name, column))
            if not points:
                continue
            x, y, low, high = zip(*points)
            axes.plot(x, y, linewidth=1.6, label=study.label(name), **style(place))
            axes.fill_between(x, low, high, color=style(place)["color"], alpha=0.15, linewidth=0)
            if column == "variance_ratio":
                ratios += y
            for step in frozen:
                axes.axvline(step, linewidth=1, **style(place))
        chosen += frozen and [f"T_w = {', '.join(f'{t:.0f}' for t in sorted(frozen))}: {study.label(name)}"]
    for bound in (0.96, 1 / 0.96):
        bottom.axhline(bound, color="0.5", linewidth=0.8, linestyle=":")
    top.set(ylabel="‖v‖₁", ylim=(0, None))
    bottom.set(xlabel="step", ylabel="r_t", ylim=(0, min(3, 1.1 * max(ratios, default=1))))
    for axes in (top, bottom):
        axes.grid(alpha=0.25)
    top.legend(loc="upper left", bbox_to_anchor=(1.01, 1.02), frameon=False, fontsize=9)
    bottom.text(1.02, 0.95, "\n".join([*chosen, "dotted: 0.96 and 1/0.96"]), transform=bottom.transAxes, va="top",
                fontsize=9)
    return figure


def draw_final(study, names):
    """Final validation losses, best first: mean and range over seeds; at the right edge what failed or diverged."""
    losses = {name: list(study.values(name, "final_validation_loss").values()) for name in names}
    names = sorted(names, key=lambda name: -mean(losses[name]))
    finite = [v for values in losses.values() for v in values if v < study.untrained()]
    edge = max(finite) + 0.08 * (max(finite) - min(finite) + 1e-6)
    figure, axes = pyplot.subplots(figsize=(8, 1.2 + 0.24 * len(names)))
    for place, name in enumerate(names):
        values = [v for v in losses[name] if v < study.untrained()]
        if values:
            axes.plot([min(values), max(values)], [place, place], color=COLORS[1], linewidth=2, alpha=0.5)
            axes.plot(values, [place] * len(values), "|", color=COLORS[1], markersize=7)
        if len(values) == len(losses[name]):
            axes.plot(mean(values), place, "o", color=COLORS[1], markersize=5)
        else:
            axes.plot(edge, place, "x", color=COLORS[2], markersize=7, clip_on=False)
        axes.text(1.01, place, loss_text(study, name), transform=axes.get_yaxis_transform(), va="center", fontsize=9)
    axes.set(yticks=range(len(names)), ylim=(-0.7, len(names) - 0.3), xlabel="final validation loss / nats")
    axes.set_yticklabels([study.label(name) for name in names], fontsize=9)
    axes.grid(alpha=0.25)
    return figure


def draw_learning_rate(study, names):
    """Final validation loss over the learning rate, a line for each algorithm; rates at which no seed failed."""
    groups = collections.defaultdict(dict)
    for name in names:
        losses = list(study.values(name, "final_validation_loss").values())
        if max(losses) < math.inf:
            groups[study.first(name, "algorithm")][float(study.first(name, "lr"))] = losses
    figure, axes = pyplot.subplots(figsize=(8, 4))
    for place, (algorithm, points) in enumerate(groups.items()):
        rates = sorted(points)
        axes.plot(rates, [mean(points[rate]) for rate in rates], marker="o", markersize=5, label=algorithm,
                  **style(place))
        for rate in rates:
            axes.plot([rate] * len(points[rate]), points[rate], "_", color=style(place)["color"], markersize=9)
    axes.set(xscale="log", xlabel="peak learning rate γ", ylabel="final validation loss / nats")
    ticks = sorted({rate for points in groups.values() for rate in points})
    axes.set_xticks(ticks, [f"{rate:g}" for rate in ticks], fontsize=8)
    axes.minorticks_off()
    axes.grid(alpha=0.25)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.02), frameon=False, fontsize=9)
    return figure


def draw(study):
    """Draws the study's figures; yields (file, caption)."""
    for name, figure in study.figures.items():
        names = study.present(figure["runs"])
        if not names:
            continue
        path = study.kept / f"{study.name}_{name}.png"
        drawn = globals()[f"draw_{figure['kind']}"](study, names)
        drawn.savefig(path, dpi=100, bbox_inches="tight", pad_inches=0.08)
        pyplot.close(drawn)
        # A palette makes the file three times smaller.
        Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)
        yield path, figure["caption"]


# --- the page ----------------------------------------------------------------


def judge(study, claim):
    """(what was measured in words, whether the claim holds)."""
    run, against = claim["run"], claim["against"]
    if missing := [name for name in (run, against) if name not in study.present()]:
        return f"no results of {', '.join(missing)}", False
    column = claim.get("of", "final_validation_loss")
    mine, theirs = study.values(run, column), study.values(against, column)
    seeds = sorted(mine.keys() & theirs.keys())
    if column == "bytes_sent":
        measured = mean(mine[s] for s in seeds) / mean(theirs[s] for s in seeds)
        words = f"{measured:.3f} times"
    elif column == "final_validation_accuracy":
        measured = statistics.median(mine[s] for s in seeds) - statistics.median(theirs[s] for s in seeds)
        words = f"{100 * measured:+.1f} points"
    elif any(mine[s] == math.inf for s in seeds):
        measured, words = math.inf, loss_text(study, run)
    else:
        measured = mean(mine[s] - theirs[s] for s in seeds)
        words = difference(measured)
    bound = float(claim.get("at_most") or claim.get("at_least") or claim["within"])
    # NaN, where there is nothing to compare, holds in none.
    holds = measured >= bound if "at_least" in claim else (abs(measured) if "within" in claim else measured) <= bound
    return words, holds


def claims_table(study):
    rows = []
    for claim in study.claims:
        kind = next(kind for kind in ("within", "at_most", "at_least") if kind in claim)
        words, holds = judge(study, claim)
        of = {"bytes_sent": "ratio of bytes sent", "final_validation_accuracy": "difference of median accuracy"}.get(claim.get("of"), "difference of loss")
        rows.append([claim["text"], f"{of} {kind.replace('_', ' ')} {claim[kind]}", words, "yes" if holds else "**no**"])
    return table(["claim", "asked", "measured", "holds"], rows)


def runs_table(study):
    names = study.present()
    reference = names[0]
    rows = []
    for name in names:
        losses = study.values(name, "final_validation_loss")
        failed, base = math.inf in losses.values(), study.values(reference, "final_validation_loss")
        seeds = sorted(losses.keys() & base.keys())
        spread = f" ({nats(min(losses.values()))}–{nats(max(losses.values()))})" if not failed and len(losses) > 1 else ""
        frozen = sorted({f"{t:.0f}" for t in study.values(name, "variance_frozen_at_step").values() if t == t}, key=int)
        rows.append([
            study.label(name), str(len(losses)), loss_text(study, name) + spread,
            "" if failed or name == reference or not seeds else difference(mean(losses[s] - base[s] for s in seeds)),
            *([accuracy_text(study, name)] if study.accuracy else []),
            "" if failed else with_unit(mean(study.values(name, "bytes_sent").values())),
            "" if failed else f"{mean(study.values(name, 'reduction').values()):.2f}",
            ", ".join(frozen),
            " ".join(f"`{key}={value}`" for key, value in study.runs[name].get("set", {}).items())])
    return table(["run", "seeds", "final validation loss: mean (min–max)", f"− {study.label(reference)}",
                  *(["accuracy: median (min–max)"] if study.accuracy else []),
                  "bytes sent by a rank", "reduction", "T_w", "`--set`"], rows)


def page(studies, arguments):
    rows = [row for study in studies for row in study.rows]

    def distinct(*columns):
        return "; ".join(dict.fromkeys(" ".join(row[c] for c in columns) for row in rows if row["status"] == "complete"))

    files = " ".join(os.path.relpath(study.path, ROOT) for study in studies)
    parts = ["<!-- Made by scripts/study.py from the CSV files beside the figures. Do not edit. -->",
             f"# {studies[0].heading}",
             "Final losses are validation losses after the last step, in nats a token, as mean (least–greatest) over "
             "seeds; differences are means over the same seeds. Bytes are those that a rank handed over to others, and "
             "the reduction is against dense fp32 training of as many steps (docs/output.md). T_w is the step at "
             "which the variance was frozen. A run that met a NaN is a result: its loss counts as infinite.",
             "## What was claimed, and what was measured"]
    for study in studies:
        if study.claims:
            parts += [f"{study.title}:", claims_table(study)]
    for study in studies:
        batch, steps = study.first(study.present()[0], "batch"), study.first(study.present()[0], "steps")
        parts += [f"## {study.title}", study.text,
                  f"Input [{os.path.relpath(study.base, ROOT)}]({os.path.relpath(study.base, study.kept.parent)}), "
                  f"{steps} steps of {batch} samples, {study.first(study.present()[0], 'validation_samples')} "
                  "validation samples. In all runs: "
                  + ", ".join(f"`{key}={value}`" for key, value in study.set.items())
                  + ". The last column of the table is what a run adds to that."]
        for path, caption in draw(study):
            parts.append(f"![{caption}]({study.kept.name}/{path.name})\n\n{caption}")
        parts.append(runs_table(study))
    seconds = sum(number(row["wall_s"]) for row in rows)
    options = "".join(f" --set {shlex.quote(pair)}" for pair in arguments.set)
    parts += ["## How it was measured",
              f"Machine: {distinct('machine')}. {distinct('ranks')} ranks, threads of each: {distinct('threads_per_rank')}; {distinct('git')} (git), "
              f"{distinct('compiler')}, Kokkos {distinct('kokkos')}, {distinct('mpi')}, {distinct('blas', 'blas_core')} "
              f"kernels; {distinct('date')}. {len(rows)} runs in {seconds / 60:.0f} minutes of their own wall time.",
              "Runs what is not complete in `results/study`, and makes this page; with `--draw-only`, only makes it again from "
              "the CSV files:",
              f"```\nscripts/study.py{options} {files}\n```",
              "Kept of each run: " + ", ".join(f"[{s.name}_{kind}.csv]({s.kept.name}/{s.name}_{kind}.csv)"
                                               for s in studies for kind in ("runs", "steps")) + "."]
    arguments.page.write_text("\n\n".join(part for part in parts if part) + "\n")
    print(f"{os.path.relpath(arguments.page)} is made")


def this_machine():
    """The processor's name and its cores, as Linux tells them."""
    try:
        name = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())[1]
    except (OSError, TypeError):
        name = "unknown processor"
    return f"{name}, {os.cpu_count()} cores"


def main():
    summary, _, format_text = __doc__.partition("\n")
    parser = argparse.ArgumentParser(description=summary, epilog=format_text,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="+", type=pathlib.Path, metavar="STUDY.yaml")
    parser.add_argument("--onebit", default="build/openmp/onebit", metavar="PROGRAM", help="default: %(default)s")
    parser.add_argument("--mpiexec", default="mpirun", metavar="PROGRAM", help="default: %(default)s")
    parser.add_argument("--ranks", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time; default: %(default)s")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="runs whose name matches, as the shell matches")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="in all runs, last of all")
    parser.add_argument("--results", default="results/study", metavar="DIR",
                        help="what the runs write; to run them again, with another program, remove it; "
                             "default: %(default)s")
    parser.add_argument("--page", type=pathlib.Path, default=ROOT / "docs/results/convergence.md", metavar="FILE.md",
                        help="the page; CSV files and figures lie in a folder of its name; default: %(default)s")
    parser.add_argument("--machine", default=this_machine(), metavar="TEXT", help="default: %(default)s")
    parser.add_argument("--draw-only", action="store_true", help="run nothing: the page from the CSV files")
    parser.add_argument("--check", action="store_true", help="exit with status 1 where a claim does not hold")
    arguments = parser.parse_args()
    arguments.results = os.path.abspath(arguments.results)
    arguments.page = arguments.page.resolve()
    if os.path.exists(arguments.onebit):
        arguments.onebit = os.path.abspath(arguments.onebit)

    studies = [Study(path.resolve(), arguments) for path in arguments.studies]
    if not arguments.draw_only:
        run_cells([cell for study in studies for cell in study.cells], arguments)
    for study in studies:
        study.collect(from_results=not arguments.draw_only)
    if not any(study.rows for study in studies):
        sys.exit("study: there are no results to make a page of")
    page([study for study in studies if study.rows], arguments)
    broken = [claim["text"] for study in studies for claim in study.claims if not judge(study, claim)[1]]
    for text in broken:
        print(f"does not hold: {text}")
    return 1 if arguments.check and broken else 0


if __name__ == "__main__":
    sys.exit(main())
