"""The rows that performance.py keeps, and the page that it makes of them."""

import collections
import os
import re
import statistics

from lib import intervals, models, plots, tables

# Model: what it is, steps of the peer, precisions.
MODELS = {
    "bert_small": ("BERT, 4 layers, hidden 256, T 128, vocabulary 8192, batch 16", 20, ("fp32", "bf16")),
    "bert_base": ("BERT-Base, T 128, vocabulary 30522, batch 8", 7, ("fp32", "bf16")),
    "gpt_char": ("character GPT, 4 layers, hidden 128, T 64, batch 12", 40, ("fp32", "bf16")),
    "gpt2": ("GPT-2 124M, T 64, vocabulary 50257, batch 4", 7, ("fp32", "bf16")),
    "resnet18": ("ResNet-18 of 64 channels, images of 32 × 32 pixels in colour, batch 32", 10, ("fp32",)),
    "optimizer": ("1-bit Adam's compressed phase, 25 million parameters, nothing travels", 15, ("fp32",)),
}
COLUMNS = ["model", "program", "version", "mode", "precision", "threads", "run", "runs", "steps", "median_ms",
           "gflop_per_s", "peak_share", "git", "machine", "note"]
ALGORITHMS = {  # their settings
    "Adam": {"optimizer.algorithm": "adam"},
    "1-bit Adam": {"optimizer.algorithm": "onebit_adam", "freeze.step": 1},
    "Muon": {"optimizer.algorithm": "muon"},
    "1-bit Muon": {"optimizer.algorithm": "onebit_muon"},
    "1-bit Muon, three iterations of Newton–Schulz": {"optimizer.algorithm": "onebit_muon", "muon.iterations": 3},
}
CHECKPOINT_EVERY = 12  # steps, in which one must become complete


def threads():
    return os.environ.get("OMP_NUM_THREADS", "2")


def gflop(model):
    """10⁹ operations of a step's matrix products, the same for all programs; None for the optimiser, which has none."""
    if model == "resnet18":
        return models.resnet18_step_flop(models.RESNET18) / 1e9
    return models.step_flop(models.MODELS[model]) / 1e9 if model in models.MODELS else None


def row_of(model, program, mode, precision, run, measured, peak, origin):
    """A row of steps.csv or threads.csv. `peak` is in GFLOP/s, or None where it was not measured."""
    version, steps, median = measured
    rate = gflop(model) / (1e-3 * median) if gflop(model) else None
    return {**dict(zip(COLUMNS, (model, program, version, mode, precision, threads(), run))), **origin, "steps": steps,
            "median_ms": f"{median:.2f}", "gflop_per_s": f"{rate:.1f}" if rate else "",
            "peak_share": f"{rate / peak:.3f}" if rate and peak else ""}


def sections(path, text_of):
    """For each machine of a CSV file a heading with commits, and the text of its rows."""
    parts = []
    for machine, rows in tables.rows_by_machine(path).items():
        commits = ", ".join(f"`{git}`" for git in dict.fromkeys(row["git"] for row in rows))
        notes = dict.fromkeys(row["note"] for row in rows if row.get("note"))
        parts += [f"### {machine[0].upper() + machine[1:]}, commit {commits}", *(f"Note: {note}." for note in notes),
                  text_of(rows)]
    return parts or ["No rows of a committed program yet."]


def steps_table(rows):
    """A line for each model and precision: OneBit, and the fastest of the peers."""
    groups = collections.defaultdict(list)
    for row in rows:
        groups[row["model"], row["precision"], row["program"], row["version"], row["mode"]].append(row)

    def median_ms(group):
        return statistics.median(float(row["median_ms"]) for row in group)

    def cells(group):
        rate, share = (statistics.median(tables.number(row[column]) for row in group)
                       for column in ("gflop_per_s", "peak_share"))
        return [tables.with_range([float(row["median_ms"]) for row in group]),
                f"{rate:.0f} ({tables.percent(share)})" if rate == rate else ""]

    lines = []
    for model, (what, _, precisions) in MODELS.items():
        for precision in precisions:
            of_step = {key[2:]: group for key, group in groups.items() if key[:2] == (model, precision)}
            own = next((group for key, group in of_step.items() if key[0] == "onebit"), None)
            others = {key: group for key, group in of_step.items() if key[0] != "onebit"}
            if not own or not others:
                continue
            fastest = min(others, key=lambda key: median_ms(others[key]))
            lines.append([what, precision, *cells(own), " ".join(filter(None, fastest)), *cells(others[fastest]),
                          f"{median_ms(others[fastest]) / median_ms(own):.2f}"])
    peers = sorted({" ".join(filter(None, key[2:])) for key in groups if key[2] != "onebit"})
    table = tables.markdown(["step", "precision", "OneBit, ms", "GFLOP/s (of the peak)", "fastest peer", "its ms",
                             "GFLOP/s (of the peak)", "its time over OneBit's"], lines)
    return f"Peers: {'; '.join(peers)}. {processes(rows)}\n\n{table}"


def processes(rows):
    runs = len({row["run"] for row in rows})
    return (f"Each number is the median of {runs} processes (least – most)." if runs > 1 else
            "Each number is of one process.")


def threads_line(rows):
    one, two = ([float(row["median_ms"]) for row in rows if row["threads"] == count] for count in ("1", "2"))
    return (f"BERT-Base in fp32: {tables.with_range(one)} ms with one thread, {tables.with_range(two)} ms with "
            f"two: {statistics.median(one) / statistics.median(two):.2f} times as fast.")


def algorithms_table(rows):
    """Times by precision and algorithm. The ratio is the mean of those of the turns, with a 95 % interval."""
    seconds = {(row["precision"], row["algorithm"], row["run"]): float(row["step_s"]) for row in rows}
    lines = []
    for precision, name in sorted(dict.fromkeys((row["precision"], row["algorithm"]) for row in rows),
                                  key=lambda of_line: of_line[0], reverse=True):
        of_line = [row for row in rows if (row["precision"], row["algorithm"]) == (precision, name)]
        ratios = [float(row["step_s"]) / seconds[precision, "1-bit Adam", row["run"]] for row in of_line]
        lines.append([name, precision, tables.with_range([float(row["step_s"]) for row in of_line]),
                      *(f"{statistics.median(float(row[column]) for row in of_line):.2f}"
                        for column in ("compress_s", "update_s", "all_gather_s")),
                      f"{statistics.mean(ratios):.3f} ± {intervals.half_width(ratios):.3f}"])
    return tables.markdown(["algorithm", "precision", "step, s", "of it compression, s", "update, s",
                            "all-gather, s", "its step over 1-bit Adam's"], lines)


def checkpoints_table(rows):
    groups = collections.defaultdict(list)
    for row in rows:
        groups[row["sequence"], row["batch"], row["checkpoint"]].append(row)
    lines = []
    for (sequence, batch, checkpoint), of_group in groups.items():
        medians = [f"{statistics.median(float(row[column]) for row in of_group):.3g}"
                   for column in ("step_without_s", "step_with_s", "waited_s", "extra_s")]
        lines.append([sequence, batch, checkpoint, tables.with_unit(int(of_group[0]["bytes"])),
                      *medians, tables.with_range([100 * float(row["share_of_50_steps"]) for row in of_group])])
    return tables.markdown(["tokens", "batch", "checkpoint", "size", "step without, s",
                            "step with, s", "waited, s", "costs, s", "% of 50 steps"], lines)


# Parts of a step: the names of their kernels, in fp32.
AIMS = {
    "passes over the optimiser's vectors, of triad": r"momentum_compress|compress|decompress_update|adam",
    "the server's average and recompression, of triad": r"average_recompress",
    "products of linear layers, of multiply-adds": r"(qkv|attention_output|feed_forward_in|feed_forward_out|head)_\w+",
    "a square product, of multiply-adds": r"gemm",
    "attention, of multiply-adds, without what the backward pass computes again": r"attention_(forward|backward)",
    "GELU and LayerNorm, of triad": r"(gelu|layer_norm)_(forward|backward)",
    "convolutions of 3 × 3 pixels, of multiply-adds": r"convolution_\w+",
    "the copies that a convolution without oneDNN makes, of triad": r"unfold|fold",
    "batch normalisation, of triad": r"batch_norm_forward",
}


def aims_table(rows):
    """The fraction of the roofline for each part of a step: of its kernels together, of the least and the best one."""
    lines = []
    for part, pattern in AIMS.items():
        kernels = [row for row in rows if row["precision"] == "fp32" and re.fullmatch(pattern, row["kernel"])]
        if not kernels:  # the rows are of a program that did not have them
            continue
        fractions = [float(row["fraction_of_roofline"]) for row in kernels]
        times = [float(row["median_s"]) for row in kernels]
        together = sum(fraction * time for fraction, time in zip(fractions, times)) / sum(times)
        lines.append([part, tables.percent(together), " – ".join(map(tables.percent, (min(fractions), max(fractions))))
                      if len(fractions) > 1 else ""])
    return tables.markdown(["part of a step in fp32", "together", "single kernels"], lines)


def kernels_table(rows):
    return tables.markdown(["kernel", "shape", "factors", "ms", "FLOP/byte", "bound by", "of the roofline"], [
        [row["kernel"], row["shape"], row["precision"], f"{1e3 * float(row['median_s']):.3g}",
         f"{intensity:.3g}" if intensity == intensity else "", row["bound"],
         tables.percent(tables.number(row["fraction_of_roofline"]))]
        for row in rows for intensity in [tables.number(row["arithmetic_intensity"])]])


def draw_rooflines(path, machines):
    """A roofline with its kernels for each of `machines` = {name: rows of kernels.csv}."""
    figure, panels = plots.pyplot.subplots(len(machines), 1, figsize=(plots.WIDTH, 4.2 * len(machines)), squeeze=False,
                                           constrained_layout=True)
    for axes, (machine, rows) in zip(panels[:, 0], machines.items()):
        plots.roofline(axes, rows, rows[0]["backend"])
        axes.set(title=machine.partition(" (")[0], xlabel="arithmetic intensity / (FLOP/byte)", ylabel="GFLOP/s")
        axes.grid(alpha=0.3)
        plots.legend_beside(axes)
    plots.save(figure, path)


def kernels_sections(directory):
    """The figure, the parts of a step on each machine, and the kernels on the first one, which was measured last."""
    machines = tables.rows_by_machine(directory / "kernels.csv")
    summaries = sections(directory / "kernels.csv", aims_table)
    if not machines:
        return summaries
    draw_rooflines(directory / "roofline.svg", machines)
    return ["![rooflines](roofline.svg)", *summaries, "### Each kernel on the first of these machines",
            kernels_table(next(iter(machines.values())))]


STEPS_TEXT = """\
A step is forward, backward and update. A process gives the median of its steps after the first ones; all programs take
turns, with two threads each. The last column is the time of the fastest peer over OneBit's time: above 1 OneBit is
faster. steps.csv has the rows of all peers. Every PyTorch runs eagerly and, from version 2 on, with `torch.compile`,
with `scaled_dot_product_attention` and fused Adam where it has them. MKL, which PyTorch's wheels multiply with, uses
AVX-512 on Intel's processors alone. On others the script preloads `mkl_serv_intel_cpu_true`, which tells MKL to use
AVX-512 here too: "with AVX-512 in MKL". Of PyTorch's two memory formats for images the faster one counts. The peer
of the optimiser checks its results against a plain formulation before it is timed.

GFLOP/s count the products of matrices, by one formula for all programs (`step_flop` in scripts/lib/models.py). The peak
is the highest rate of multiply-adds in fp32 that was measured with any kernel, also for bf16, which may exceed it.
Other virtual machines on the same host halve that rate at times, and the shares with it. bf16 is PyTorch's autocast. In
OneBit's bf16 the factors of the products with weights are rounded, and attention stays in fp32."""


def render(directory):
    """Writes the page next to the directory of the CSV files, and the page of the kernels into it."""
    notes = directory / "notes.md"
    page = [
        "# Speed of a training step",
        "Made by `scripts/experiments/performance.py render` from [steps.csv](performance/steps.csv), "
        "[kernels.csv](performance/kernels.csv), [threads.csv](performance/threads.csv), "
        "[algorithms.csv](performance/algorithms.csv) and "
        "[checkpoints.csv](performance/checkpoints.csv); that script says which of its commands measures what. Each "
        "machine has a table of its own, made of rows whose commit can be built again.",
        tables.markdown(["page", "what"], [["[performance/kernels.md](performance/kernels.md)",
                                            "each kernel of a step against the roofline of the machine"]]),
        "## Compared with PyTorch and others",
        STEPS_TEXT,
        *sections(directory / "steps.csv", steps_table),
        *([notes.read_text().strip()] if notes.exists() else []),
        "## Threads",
        *sections(directory / "threads.csv", threads_line),
        "## Algorithms",
        "`scripts/experiments/performance.py algorithms`: BERT-Base with 128 tokens, batch 64, on four ranks of one "
        "thread each. A process gives the median of its steps after the first ones. With one bit these are compressed. "
        "Times within a step are rank 0's, whose chunk is the tables: it waits in the all-gather for the Newton–Schulz "
        "iterations of the others ([muon.md](../reference/algorithms/muon.md)).",
        *sections(directory / "algorithms.csv", lambda rows: f"{processes(rows)}\n\n{algorithms_table(rows)}"),
        "## Checkpoints",
        "`scripts/experiments/performance.py checkpoints`: BERT-Base with byte tokens on "
        f"two ranks of one thread each, every {CHECKPOINT_EVERY} steps, in the compressed phase "
        "([checkpoint.md](../guide/checkpoint.md)). A step without is the median before the first checkpoint; "
        "`costs` is the wall-clock time that the "
        f"{CHECKPOINT_EVERY - 2} steps behind a checkpoint "
        "took more than as many without, waiting and slower steps together. The last column is `costs` over the time "
        "of 50 steps.",
        *sections(directory / "checkpoints.csv", lambda rows: f"{processes(rows)}\n\n{checkpoints_table(rows)}"),
    ]
    kernels = [
        "# Kernels against the roofline",
        "Made by `scripts/experiments/performance.py render` from [kernels.csv](kernels.csv), which `onebit bench "
        "kernels inputs/bench_kernels.yaml` writes. [kernels.md](../../develop/performance/kernels.md) says what a "
        "kernel must move. The table of a machine has the fraction of the roofline, weighted by time. The figure has "
        "all kernels; its lines are the medians of the measured bandwidths and peaks.",
        *(part.replace("### ", "## ", 1) for part in kernels_sections(directory)),
    ]
    directory.with_suffix(".md").write_text(tables.page(page))
    (directory / "kernels.md").write_text(tables.page(kernels))


