#!/usr/bin/env python3
"""Times training steps beside PyTorch's, and checkpoints, and makes docs/results/performance.md of what was measured.

Usage: performance.py measure [--onebit PROGRAM] [--python PYTHON] [--runs N] [--peer NAME=COMMAND]
       performance.py checkpoints [--onebit PROGRAM] [--runs N]
       performance.py render

All write into docs/results/performance. `measure` writes steps.csv and kernels.csv: models of inputs/performance, in turns
with the same model in tests/reference/step_time.py and optimizer_time.py, which PYTHON runs (it needs torch). COMMAND is a
further peer for GPT-2; what it prints last ends in `median N ms`. OMP_NUM_THREADS threads on both sides. `checkpoints` writes
checkpoints.csv, a row for each checkpoint; they go to the disk of TMPDIR, 2 GB each. Run both on an idle machine. `render`
makes the page from these files, threads.csv and machine.txt, a line in words.
"""

import argparse
import collections
import itertools
import os
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

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
CHECKPOINTS = 2  # of a run; the first one takes the memory that all copy to
CHECKPOINT_EVERY = 12  # steps, in which one must become complete


def threads():
    return os.environ.get("OMP_NUM_THREADS", "2")


def timed_lines(command):
    """What a command prints: pairs of the time at which a line came, in seconds, and the line."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")}
    environment.setdefault("OMP_NUM_THREADS", threads())
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as run:
        lines = [(time.monotonic(), line) for line in run.stdout]
    if run.returncode != 0:
        sys.exit(f"performance.py: {shlex.join(command)} ended with status {run.returncode}")
    return lines


def output_of(command):
    return "".join(line for _, line in timed_lines(command))


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
    kernels = []
    for precision in ("fp32", "bf16"):
        with tempfile.TemporaryDirectory() as directory:
            output_of([arguments.onebit, "bench", "kernels", "inputs/bench_kernels.yaml", f"--set=run.output={directory}",
                       f"--set=model.precision={precision}"])
            kernels += [row for row in results.read_csv(f"{directory}/kernels.csv")
                        if precision == "fp32" or row["precision"] == precision]
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


def measure_checkpoints(arguments):
    """What the steps from each checkpoint on took more than those before the first one, in wall-clock time."""
    beside = CHECKPOINT_EVERY - 2  # steps that count: not the next checkpoint's, nor the run's last, which validates
    rows = []
    for run in range(1, arguments.runs + 1):
        for (sequence, batch), background in itertools.product(((64, 4), (128, 8)), ("true", "false")):
            with tempfile.TemporaryDirectory() as directory:
                command = ["mpirun", "-n", "2", arguments.onebit, "train", "inputs/performance/checkpoints.yaml"]
                for key, value in {"run.output": directory, "model.sequence": sequence, "train.batch": batch,
                                   "train.steps": (CHECKPOINTS + 1) * CHECKPOINT_EVERY - 1,
                                   "checkpoint.every": CHECKPOINT_EVERY, "checkpoint.background": background}.items():
                    command.append(f"--set={key}={value}")
                lines = timed_lines(results.in_environment(command))
                of_run = results.read_csv(f"{directory}/run.csv")[0]
                seconds = [float(step["step_s"]) for step in results.read_csv(f"{directory}/steps.csv")]
                size = next(pathlib.Path(directory).glob("checkpoints/*.h5")).stat().st_size
            ends = [at for at, line in lines if line.startswith("step ")]
            times = [end - begin for begin, end in zip(ends, ends[1:])]  # of steps 2, 3, …
            without = statistics.median(times[STEPS_NOT_COUNTED - 1:CHECKPOINT_EVERY - 1])
            for checkpoint in range(1, CHECKPOINTS + 1):
                step = checkpoint * CHECKPOINT_EVERY
                extra = sum(times[step - 1:step - 1 + beside]) - beside * without
                measured = {"step_without_s": without, "step_with_s": statistics.median(seconds[CHECKPOINT_EVERY:]),
                            "waited_s": times[step - 1] - seconds[step],
                            "complete_s": float(of_run["checkpoint_writing_s"]) / int(of_run["checkpoints"]),
                            "extra_s": extra, "share_of_50_steps": extra / (50 * without)}
                rows.append({"sequence": sequence, "batch": batch, "background": background, "version": of_run["git"], "run": run,
                             "checkpoint": checkpoint, "bytes": size,
                             **{name: f"{value:.4f}" for name, value in measured.items()}})
                print(", ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
            results.write_csv(DIRECTORY / "checkpoints.csv", list(rows[0]), rows)


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
        "## Checkpoints",
        "`scripts/performance.py checkpoints`, from [checkpoints.csv](performance/checkpoints.csv): BERT-Base with byte tokens on "
        f"two ranks of one thread each, every {CHECKPOINT_EVERY} steps, in the compressed phase "
        "([checkpoint.md](../checkpoint.md)). A step without is the median before the first checkpoint; `complete` is a mean of "
        f"both; `costs` is the wall-clock time that the {CHECKPOINT_EVERY - 2} steps behind a checkpoint took more than as many "
        "without, waiting and slower steps together. The last column is that over 50 steps: the median of "
        "the processes (least – most), as the others are.",
        checkpoints_table(shown),
        "## Kernels",
        "`onebit bench kernels inputs/bench_kernels.yaml`; what the columns mean, and what a kernel must move, stands in "
        "[performance.md](../performance.md).",
        kernels_table(),
    ]
    (ROOT / "docs/results/performance.md").write_text("\n\n".join(page) + "\n")


def checkpoints_table(shown):
    groups = collections.defaultdict(list)
    for row in results.read_csv(DIRECTORY / "checkpoints.csv"):
        groups[row["sequence"], row["batch"], row["background"], row["checkpoint"]].append(row)
    lines = []
    for (sequence, batch, background, checkpoint), rows in groups.items():
        medians = [f"{statistics.median(float(row[column]) for row in rows):.3g}"
                   for column in ("step_without_s", "step_with_s", "waited_s", "complete_s", "extra_s")]
        lines.append([sequence, batch, f"`{background}`", checkpoint, results.with_unit(int(rows[0]["bytes"])), *medians,
                      shown([100 * float(row["share_of_50_steps"]) for row in rows])])
    return results.table(["tokens", "batch", "`checkpoint.background`", "checkpoint", "size", "step without, s", "step with, s",
                          "waited, s", "complete after, s", "costs, s", "% of 50 steps"], lines)


def kernels_table():
    lines = []
    for row in results.read_csv(DIRECTORY / "kernels.csv"):
        share = results.number(row["floor_share"])
        lines.append([row["kernel"], row["shape"], row["precision"], f"{1e3 * float(row['median_s']):.3g}", row["bound"],
                      f"{100 * share:.0f} %" if share == share else ""])
    return results.table(["kernel", "shape", "factors", "ms", "bound by", "of the floor"], lines)


def main():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(required=True)
    for name, function in (("measure", measure), ("threads", measure_threads), ("checkpoints", measure_checkpoints),
                           ("render", render)):
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
