#!/usr/bin/env python3
"""Times training steps beside PyTorch's, and makes docs/results/performance.md of what was measured.

Usage: performance.py measure [--onebit PROGRAM] [--python PYTHON] [--runs N] [--peer NAME=COMMAND]
       performance.py render

`measure` writes steps.csv and kernels.csv into docs/results/performance: models of inputs/performance, in turns with the same
model in tests/reference/step_time.py and optimizer_time.py, which PYTHON runs (it needs torch). COMMAND is a further peer
for GPT-2; what it prints last ends in `median N ms`. Run it on an idle machine. `render` makes the page from these files,
threads.csv and machine.txt, a line in words. OMP_NUM_THREADS threads on both sides.
"""

import argparse
import collections
import os
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import results  # noqa: E402

DIRECTORY = ROOT / "docs/results/performance"
REFERENCE = ROOT / "tests/reference"
STEPS_NOT_COUNTED = 4

# Model: what it is, steps of the peer, precisions.
MODELS = {
    "bert_small": ("BERT, 4 layers, hidden 256, T 128, vocabulary 8192, batch 16", 20, ("fp32", "bf16")),
    "bert_base": ("BERT-Base, T 128, vocabulary 30522, batch 8", 7, ("fp32", "bf16")),
    "gpt_char": ("character GPT, 4 layers, hidden 128, T 64, batch 12", 40, ("fp32", "bf16")),
    "gpt2": ("GPT-2 124M, T 64, vocabulary 50257, batch 4", 7, ("fp32", "bf16")),
    "optimizer": ("1-bit Adam's compression stage, 25 million parameters, nothing travels", 15, ("fp32",)),
}
OPTIMIZER_PHASES = ("compress_s", "all_to_all_s", "average_s", "all_gather_s", "update_s")
COLUMNS = ["model", "program", "version", "precision", "threads", "run", "steps", "median_ms"]


def threads():
    return os.environ.get("OMP_NUM_THREADS", "2")


def output_of(command):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")}
    environment.setdefault("OMP_NUM_THREADS", threads())
    run = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    if run.returncode != 0:
        sys.exit(f"performance.py: {shlex.join(command)} ended with status {run.returncode}")
    return run.stdout


def onebit(program, model, precision):
    """(version, steps, median of a step in ms) of one process."""
    with tempfile.TemporaryDirectory() as directory:
        overrides = [f"run.output={directory}/run", f"data.cache={directory}"]
        if model != "optimizer":
            overrides.append(f"model.precision={precision}")
        output_of([program, "train", f"inputs/performance/{model}.yaml"] + [f"--set={text}" for text in overrides])
        run = results.read_csv(f"{directory}/run/run.csv")[0]
        steps = results.read_csv(f"{directory}/run/steps.csv")[STEPS_NOT_COUNTED:]
    phases = OPTIMIZER_PHASES if model == "optimizer" else ("step_s",)
    times = [1e3 * sum(float(step[phase]) for phase in phases) for step in steps]
    return run["git"], len(times), statistics.median(times)


def torch(python, model, precision):
    steps = MODELS[model][1]
    if model == "optimizer":
        command = [python, str(REFERENCE / "optimizer_time.py")]
    else:
        command = [python, str(REFERENCE / "step_time.py"), model, "--precision", precision]
        command += ["--dropout", "0.1" if model.startswith("bert") else "0"]
    text = output_of(command + ["--steps", str(steps)])
    return re.search(r"torch (\S+?),", text)[1], steps, last_median(text)


def last_median(text):
    return float(re.findall(r"median ([0-9.]+) ms", text)[-1])


def measure(arguments):
    rows = []

    def add(model, program, precision, run, measured):
        version, steps, median = measured
        rows.append(dict(zip(COLUMNS, (model, program, version, precision, threads(), run, steps, f"{median:.2f}"))))
        print(f"{model:10} {precision} {program:10} {median:9.1f} ms", flush=True)
        results.write_csv(DIRECTORY / "steps.csv", COLUMNS, rows)

    for run in range(1, arguments.runs + 1):
        for model, (_, _, precisions) in MODELS.items():
            for precision in precisions:
                add(model, "onebit", precision, run, onebit(arguments.onebit, model, precision))
                if arguments.python:
                    add(model, "torch", precision, run, torch(arguments.python, model, precision))
        for peer in arguments.peer:
            name, command = peer.split("=", 1)
            text = output_of(shlex.split(command))
            add("gpt2", name, "fp32", run, ("", text.count("step "), last_median(text)))
    with tempfile.TemporaryDirectory() as directory:
        output_of([arguments.onebit, "bench", "kernels", "inputs/bench_kernels.yaml", f"--set=run.output={directory}"])
        kernels = results.read_csv(f"{directory}/kernels.csv")
    results.write_csv(DIRECTORY / "kernels.csv", list(kernels[0]), kernels)


def measure_threads(arguments):
    """BERT-Base with one thread and with two."""
    rows = []
    for run in range(1, arguments.runs + 1):
        for count in ("1", "2"):
            os.environ["OMP_NUM_THREADS"] = count
            version, steps, median = onebit(arguments.onebit, "bert_base", "fp32")
            rows.append(dict(zip(COLUMNS, ("bert_base", "onebit", version, "fp32", count, run, steps, f"{median:.2f}"))))
            results.write_csv(DIRECTORY / "threads.csv", COLUMNS, rows)


def render(_):
    groups = collections.defaultdict(list)
    versions = collections.defaultdict(set)
    for row in results.read_csv(DIRECTORY / "steps.csv"):
        groups[row["model"], row["precision"], row["program"]].append(float(row["median_ms"]))
        versions[row["program"]].add(row["version"])

    def shown(times):
        return f"{statistics.median(times):.4g} ({min(times):.4g} – {max(times):.4g})" if times else ""

    lines = []
    for model, (what, _, precisions) in MODELS.items():
        for precision in precisions:
            own = groups[model, precision, "onebit"]
            for (other_model, other_precision, program), times in groups.items():
                if (other_model, other_precision) == (model, precision) and program != "onebit":
                    ratio = statistics.median(times) / statistics.median(own)
                    lines.append([what, precision, shown(own), program, shown(times), f"{ratio:.2f}"])
    runs = max(len(times) for times in groups.values())
    page = [
        "# Speed of a training step",
        "Made by `scripts/performance.py render` from [steps.csv](performance/steps.csv), "
        "[kernels.csv](performance/kernels.csv) and [threads.csv](performance/threads.csv), which `performance.py measure` "
        "wrote; the commands are in that script. " + (DIRECTORY / "machine.txt").read_text().strip(),
        "## Beside PyTorch and others",
        f"Milliseconds of a step, forward, backward and update: median of {runs} processes (least – most), each the median "
        "of its steps after the first four or five; the programs took turns. PyTorch "
        f"{', '.join(sorted(versions['torch']))} runs eagerly with `scaled_dot_product_attention` and fused Adam; bf16 is its "
        "autocast. In OneBit's bf16 the factors of the products with weights are rounded, attention stays in fp32. The last "
        "column is the other's time over OneBit's.",
        results.table(["step", "precision", "OneBit", "beside", "its time", "ratio"], lines),
    ]
    notes = DIRECTORY / "notes.md"
    if notes.exists():
        page.append(notes.read_text().strip())
    counts = collections.defaultdict(list)
    for row in results.read_csv(DIRECTORY / "threads.csv"):
        counts[row["threads"]].append(float(row["median_ms"]))
    page += [
        "## Threads",
        f"BERT-Base in fp32: {shown(counts['1'])} ms with one thread, {shown(counts['2'])} ms with two: "
        f"{statistics.median(counts['1']) / statistics.median(counts['2']):.2f} times as fast.",
        "## Kernels",
        "`onebit bench kernels inputs/bench_kernels.yaml`; what the columns mean, and what a kernel must move, stands in "
        "[performance.md](../performance.md).",
        kernels_table(),
    ]
    (ROOT / "docs/results/performance.md").write_text("\n\n".join(page) + "\n")


def kernels_table():
    lines = []
    for row in results.read_csv(DIRECTORY / "kernels.csv"):
        share = results.number(row["floor_share"])
        lines.append([row["kernel"], row["shape"], f"{1e3 * float(row['median_s']):.3g}", row["bound"],
                      f"{100 * share:.0f} %" if share == share else ""])
    return results.table(["kernel", "shape", "ms", "bound by", "of the floor"], lines)


def main():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(required=True)
    for name, function in (("measure", measure), ("threads", measure_threads), ("render", render)):
        command = commands.add_parser(name)
        command.set_defaults(function=function)
        command.add_argument("--onebit", default=str(ROOT / "build/openmp/onebit"))
        command.add_argument("--runs", type=int, default=3)
        command.add_argument("--python", help="a Python with PyTorch")
        command.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND")
    arguments = parser.parse_args()
    arguments.function(arguments)


if __name__ == "__main__":
    main()
