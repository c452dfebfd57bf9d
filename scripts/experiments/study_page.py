"""The figures, the tables and the page of study.py."""

import collections
import math
import os
import re
import shlex
import statistics

from study_claims import EXPLANATION, claims_table

from lib import ROOT, tables
from lib.plots import COLORS, WIDTH, legend_beside, pyplot, save, style
from lib.tables import markdown, mean, number, with_unit
from study_runs import DEFAULT_HEADING, WINDOW

DEFAULT_RANKS = 4
MADE = "<!-- Made by scripts/experiments/study.py from the CSV files of the figures. Do not edit. -->"
MOST_WORDS = 2500  # of a page; a longer one has the panels of its studies on pages of their own
WANTED_REDUCTION, WANTED_LOSS = 30, 0.03  # of draw_reduction: times fewer bytes, nats above the least loss of Adam


def nats(loss):
    return f"{loss:.3f}" if loss < 100 else f"{loss:.2g}"


def difference(losses):
    return f"{losses:+.4f}" if abs(losses) < 100 else f"{losses:+.2g}"


def loss_text(study, name):
    """The mean final validation loss in words, or the steps at which seeds failed."""
    losses = study.values(name, "final_validation_loss")
    failed = [f"{step:.0f}" for step in study.values(name, "failed_step").values() if step == step]
    if not failed:
        return nats(mean(losses.values()))
    seeds = f"{len(failed)} of {len(losses)} " if len(losses) > 1 else ""
    return f"{seeds}NaN at step {', '.join(failed)}"


def accuracy_text(study, name):
    """Median and range in per cent, without runs that failed."""
    shares = [100 * share for share in study.values(name, "final_validation_accuracy").values() if share == share]
    if not shares:
        return ""
    spread = f" ({min(shares):.1f}–{max(shares):.1f})" if len(shares) > 1 else ""
    return f"{statistics.median(shares):.1f} %{spread}"


def distance_text(study, name):
    """Median and range of the distance of generated images from those of the data."""
    values = [value for value in study.values(name, "final_validation_distance").values() if value == value]
    spread = f" ({min(values):.4f}–{max(values):.4f})" if len(values) > 1 else ""
    return f"{statistics.median(values):.4f}{spread}" if values else ""


def reduction_text(study, name, divisor):
    """The mean reduction over a divisor; empty for runs that failed or sent nothing."""
    reduction = mean(study.values(name, "reduction").values())
    return f"{reduction / divisor:.2f}" if math.isfinite(reduction) else ""


def legend(axes, study, lines):
    """Draws the legend beside the axes, best run first."""
    order = sorted(lines, key=lambda name: mean(study.values(name, "final_validation_loss").values()))
    legend_beside(axes, [lines[name] for name in order], [f"{study.label(n)}: {loss_text(study, n)}" for n in order],
                  title="final validation loss", alignment="left", labelspacing=0.7)


def draw_loss(study, names, over, scale, x_label):
    """Smoothed training loss of each run, mean and range over seeds."""
    figure, axes = pyplot.subplots(figsize=(WIDTH, 4.4), constrained_layout=True)
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
    # The axis leaves out the drop of the first steps, which all runs share, and losses above the untrained model's.
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
    figure, (top, bottom) = pyplot.subplots(2, 1, figsize=(WIDTH, 5), sharex=True, constrained_layout=True)
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
    legend_beside(top)
    bottom.text(1.02, 0.95, "\n".join([*chosen, "dotted: 0.96 and 1/0.96"]), transform=bottom.transAxes, va="top",
                fontsize=9)
    return figure


def draw_final(study, names):
    """Final validation losses, best first, as mean and range over seeds; runs that diverged are at the right edge."""
    losses = {name: list(study.values(name, "final_validation_loss").values()) for name in names}
    names = sorted(names, key=lambda name: -mean(losses[name]))
    finite = [v for values in losses.values() for v in values if v < study.untrained()]
    edge = max(finite) + 0.08 * (max(finite) - min(finite) + 1e-6)
    figure, axes = pyplot.subplots(figsize=(WIDTH, 1.2 + 0.24 * len(names)), constrained_layout=True)
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
    return draw_final_over(study, names, "lr", "peak learning rate γ")


def draw_ranks(study, names):
    return draw_final_over(study, names, "ranks", "ranks")


def draw_final_over(study, names, column, x_label):
    """Final validation loss over a setting, a line for each grid, row of a table or algorithm, without runs that
    diverged."""
    groups = collections.defaultdict(dict)
    for name in names:
        losses = list(study.values(name, "final_validation_loss").values())
        if max(losses) < study.untrained():
            groups[study.family(name)][float(study.first(name, column))] = losses
    figure, axes = pyplot.subplots(figsize=(WIDTH, 4), constrained_layout=True)
    for place, (line, points) in enumerate(groups.items()):
        settings = sorted(points)
        axes.plot(settings, [mean(points[x]) for x in settings], marker="o", markersize=5, label=line, **style(place))
        for x in settings:
            axes.plot([x] * len(points[x]), points[x], "_", color=style(place)["color"], markersize=9)
    axes.set(xscale="log", xlabel=x_label, ylabel="final validation loss / nats")
    ticks = sorted({x for points in groups.values() for x in points})
    axes.set_xticks(ticks, [f"{x:g}" for x in ticks], fontsize=9, rotation=90 if len(ticks) > 10 else 0)
    axes.minorticks_off()
    axes.grid(alpha=0.25)
    legend_beside(axes)
    return figure


def draw_reduction(study, names):
    """Final validation loss over the reduction of bytes: a mark for each run and a line over its seeds, a colour for
    each algorithm. Runs that diverged are left out. Dense averages of one rank send nothing and stand at 1."""
    groups, adam = collections.defaultdict(list), []
    for name in names:
        losses = list(study.values(name, "final_validation_loss").values())
        reduction = mean(value if value == value else 1 for value in study.values(name, "reduction").values())
        if mean(losses) < study.untrained():
            groups[study.first(name, "algorithm")].append((reduction, losses))
            adam += [mean(losses)] if study.first(name, "algorithm") == "adam" else []
    figure, axes = pyplot.subplots(figsize=(WIDTH, 4.4), constrained_layout=True)
    for place, (algorithm, points) in enumerate(groups.items()):
        color = style(place)["color"]
        for reduction, losses in points:
            axes.plot([reduction] * 2, [min(losses), max(losses)], color=color, linewidth=2, alpha=0.5)
        axes.plot([reduction for reduction, _ in points], [mean(losses) for _, losses in points], linestyle="",
                  marker="osD^vP"[place % 6], markersize=6, alpha=0.8, label=algorithm, color=color)
    if adam:
        axes.axhline(min(adam) + WANTED_LOSS, color="0.5", linewidth=0.8, linestyle="--")
    axes.axvline(WANTED_REDUCTION, color="0.5", linewidth=0.8, linestyle="--")
    axes.set(xscale="log", xlabel="reduction of bytes against dense fp32", ylabel="final validation loss / nats")
    ticks = (1, 2, 4, 8, 16, 32)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.25)
    legend_beside(axes)
    return figure


def draw(study):
    """Draws the study's figures; yields (file, caption)."""
    for name, figure in study.figures.items():
        names = study.present(figure["runs"])
        if not names:
            continue
        path = study.kept / f"{study.name}_{name}.svg"
        save(globals()[f"draw_{figure['kind']}"](study, names), path)
        yield path, figure["caption"]


def spread_text(study, name):
    """Mean and range of the final validation loss, or the steps at which seeds failed."""
    losses = study.values(name, "final_validation_loss").values()
    spread = f" ({nats(min(losses))}–{nats(max(losses))})" if len(losses) > 1 and max(losses) < math.inf else ""
    return loss_text(study, name) + spread


def runs_table(study):
    names = study.present()
    reference = names[0]
    more = {"accuracy: median (min–max)": accuracy_text} if study.accuracy else {}
    if any(row.get("final_validation_distance") for row in study.rows):
        more["distance: median (min–max)"] = distance_text
    rows = []
    for name in names:
        losses = study.values(name, "final_validation_loss")
        failed, base = math.inf in losses.values(), study.values(reference, "final_validation_loss")
        seeds = sorted(losses.keys() & base.keys())
        frozen = sorted({f"{t:.0f}" for t in study.values(name, "variance_frozen_at_step").values() if t == t}, key=int)
        rows.append([
            study.label(name), str(len(losses)), spread_text(study, name),
            "" if failed or name == reference or not seeds else difference(mean(losses[s] - base[s] for s in seeds)),
            *(text_of(study, name) for text_of in more.values()),
            "" if failed else with_unit(mean(study.values(name, "bytes_sent").values())),
            reduction_text(study, name, 1), reduction_text(study, name, 2),
            ", ".join(frozen),
            " ".join(f"`{key}={value}`" for key, value in study.runs[name].get("set", {}).items())])
    return markdown(["run", "seeds", "final validation loss: mean (min–max)", f"− {study.label(reference)}",
                  *more, "bytes sent by a rank", "reduction", "against 16 bits", "T_w", "`--set`"], rows)


def grids_table(study):
    """The best rate of each grid, with a note where it is the grid's edge and a better one may lie beyond."""
    rows = []
    for name, grid in study.grids.items():
        best, present = study.best(name), study.present(grid["runs"])
        if not present:
            continue
        rates = {run: float(study.first(run, "lr")) for run in present}
        edge = len(present) > 1 and rates[best] in (min(rates.values()), max(rates.values()))
        rows.append([grid["label"], ", ".join(study.first(run, "lr") for run in present),
                     study.first(best, "lr") + (", the grid's edge" if edge else ""), spread_text(study, best)])
    return markdown(["algorithm", "γ tried", "best", "final validation loss: mean (min–max)"], rows) if rows else ""


def results_table(study, name):
    """A table of the study file: final validation losses, the least bold."""
    wanted = study.tables[name]
    runs = {place: f"{name}_{place[0]}_{place[1]}" for place in study.places(wanted)}
    present = study.present(runs.values())
    if not present:
        return ""
    least = min(present, key=lambda run: mean(study.values(run, "final_validation_loss").values()))
    seeds = sorted({len(study.values(run, "final_validation_loss")) for run in present})

    def cell(place):
        if place not in runs:
            return "–"
        if runs[place] not in present:
            return ""
        text = spread_text(study, runs[place])
        return f"**{text}**" if runs[place] == least else text

    rows = [[study.words(wanted, "rows", row), *(cell((row, column)) for column in wanted["columns"])]
            for row in wanted["rows"]]
    others = study.present(wanted.get("beside", []))
    beside = "; ".join(f"{study.label(run)}: {spread_text(study, run)}" for run in others)
    return "\n\n".join(part for part in (
        f"{wanted['caption']} Final validation loss as mean (least–greatest) over {' or '.join(map(str, seeds))} "
        "seeds; the least mean is bold.",
        markdown(["", *(study.words(wanted, "columns", column) for column in wanted["columns"])], rows),
        beside and f"For comparison, {beside}.") if part)


def panel(study):
    """The text, figures and tables of a study, but for the table of its runs."""
    first = study.present()[0]
    return "\n\n".join(part for part in (
        study.text,
        f"Input [{os.path.relpath(study.base, ROOT)}]({os.path.relpath(study.base, study.kept.parent)}), "
        f"{study.first(first, 'steps')} steps of {study.first(first, 'batch')} samples, "
        f"{study.first(first, 'validation_samples')} validation samples. "
        + ("In all runs: " + ", ".join(f"`{key}={value}`" for key, value in study.set.items()) + ". "
           if study.set else "")
        + "The last column of the table of runs is what a run adds to that.",
        *(f"![{caption}]({study.kept.name}/{path.name})\n\n{caption}" for path, caption in draw(study)),
        grids_table(study), *(results_table(study, name) for name in study.tables)) if part)


def words(*texts):
    return sum(len(text.split()) for text in texts)


def own_pages(study, text, runs):
    """Writes a panel into the folder of its page, and its runs on another page where both are too long for one.
    Returns the rows that lead there."""
    pages = [(study.name, study.title, [text, runs], "text, figures and tables")]
    if words(text, runs) > MOST_WORDS:
        link = f"[All runs]({study.kept.name}/{study.name}_runs.md)."
        pages = [(study.name, study.title, [text, link], "text, figures and tables"),
                 (f"{study.name}_runs", f"{study.title}: all runs", [runs], f"{len(study.present())} runs")]
    for name, title, blocks, _ in pages:
        blocks = [re.sub(r"\]\((?!https?:|#)", "](../", block) for block in blocks]  # links from the folder
        (study.kept / f"{name}.md").write_text(tables.page([MADE, f"# {title}", *blocks]))
    return [[f"[{title}]({study.kept.name}/{name}.md)", what] for name, title, _, what in pages]


def page(studies, arguments):
    rows = [row for study in studies for row in study.rows]

    def distinct(*columns):
        return "; ".join(dict.fromkeys(" ".join(row[c] for c in columns)
                                       for row in rows if row["status"] == "complete"))

    counted = collections.Counter(row["git"] for row in rows)
    commits = ", ".join(f"{commit}: {count} runs" if len(counted) > 1 else commit for commit, count in counted.items())
    data = dict.fromkeys(part for row in rows for part in row.get("data", "").split("; "))
    data = [part for part in data if part and ".h5 (" not in part]
    files = " ".join(os.path.relpath(study.path, ROOT) for study in studies)
    parts = [MADE, f"# {studies[0].heading}",
             "Final losses are validation losses after the last step, in nats a token, as mean (least–greatest) over "
             "seeds; differences are means over the same seeds. Bytes are what a rank sent to other ranks. The "
             "reduction compares them with dense fp32 training of as many steps (docs/reference/output/run.md); "
             "compared with 16 bits it is half as large. T_w is the step at which the variance was frozen. A run that "
             "met a NaN is a result: its loss counts as infinite."]
    if any(study.accuracy for study in studies):
        parts[-1] += (" Accuracies are shares of the validation's predictions, tokens or classes, that are right; "
                      "losses of classes are nats a sample.")
    if any(study.claims for study in studies):
        parts += ["## What was claimed, and what was measured", EXPLANATION]
    for study in studies:
        if study.claims:
            parts += [f"{study.title}:", claims_table(study)]
    panels = [(study, panel(study), runs_table(study)) for study in studies]
    if words(*parts, *(part for _, *blocks in panels for part in blocks)) > MOST_WORDS:
        rows_of_pages = [row for panel_of in panels for row in own_pages(*panel_of)]
        parts += ["## The runs", markdown(["page", "what it shows"], rows_of_pages)]
    else:
        parts += [part for study, *blocks in panels for part in (f"## {study.title}", *blocks)]
    seconds = sum(number(row["wall_s"]) for row in rows)
    options = "".join(f" --set {shlex.quote(pair)}" for pair in arguments.set)
    if arguments.ranks != DEFAULT_RANKS:
        options += f" --ranks {arguments.ranks}"
    if studies[0].heading != DEFAULT_HEADING:
        options += f" --page {os.path.relpath(arguments.page, ROOT)}"
    parts += ["## How it was measured",
              f"Machine: {distinct('machine')}. {distinct('ranks')} ranks, threads of each: "
              f"{distinct('threads_per_rank')}; {commits} (git), {distinct('compiler')}, Kokkos {distinct('kokkos')}, "
              f"{distinct('mpi')}, {distinct('blas', 'blas_core')} kernels; {distinct('date')}. "
              f"{len(rows)} runs in {seconds / 60:.0f} minutes of their own wall time."
              + (f" Read: {', '.join(data)}, with the start of each file's SHA-256." if data else "")
              + "".join(f" Note: {note}." for note in dict.fromkeys(row.get("note", "") for row in rows) if note),
              "Runs what is not complete in `results/study`, and makes this page; with `--draw-only`, only makes it "
              "again from the CSV files:",
              f"```\nscripts/experiments/study.py{options} {files}\n```",
              "Kept of each run: " + ", ".join(f"[{s.name}_{kind}.csv]({s.kept.name}/{s.name}_{kind}.csv)"
                                               for s in studies for kind in ("runs", "steps")) + "."]
    arguments.page.write_text(tables.page(parts))
    print(f"{os.path.relpath(arguments.page)} is made")
