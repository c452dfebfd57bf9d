#!/usr/bin/env python3
"""Times training steps beside PyTorch's, and checkpoints, and makes docs/results/performance.md of what was measured.

Usage: performance.py measure [--onebit PROGRAM] [--peer NAME=PYTHON]... [--gpt2-peer NAME=COMMAND] [--runs N] [--models M,...]
       performance.py threads [--onebit PROGRAM] [--runs N]
       performance.py checkpoints [--onebit PROGRAM] [--runs N]
       performance.py render

All write into docs/results/performance, or into --output. A command replaces the rows of this machine and keeps those of
others. Run them on an idle machine, with a program built from committed sources: every row names the commit and the machine
(ONEBIT_MACHINE, in words).

`measure` writes kernels.csv and steps.csv. Each PYTHON has some PyTorch. Models of inputs/performance take turns with
tests/reference/step_time.py and optimizer_time.py in every PYTHON, eager and, from PyTorch 2 on, compiled. COMMAND is a
further peer for GPT-2; what it prints last ends in `median N ms`. OMP_NUM_THREADS threads on all sides. `threads` writes
threads.csv, `checkpoints` checkpoints.csv, a row for each checkpoint; they go to the disk of TMPDIR, 2 GB each. `render`
makes the page from these files and notes.md.

MKL, which PyTorch's wheels multiply with, uses AVX-512 on Intel's processors alone. On others `measure` preloads a library
that answers MKL's question whether this is one of Intel's with yes, as PyTorch's users on AMD do. The column `mode` of
steps.csv says so; --as-installed measures the wheels without it too.
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
REFERENCE = ROOT / "tests/reference"
sys.path[:0] = [str(ROOT / "scripts"), str(REFERENCE)]
import results  # noqa: E402
import step_models  # noqa: E402

DIRECTORY = ROOT / "docs/results/performance"
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
COLUMNS = ["model", "program", "version", "mode", "precision", "threads", "run", "runs", "steps", "median_ms", "gflop_per_s",
           "peak_share", "git", "machine"]
STEPS_OF_WARM_UP = 3  # of a PyTorch process; the first one compiles
MKL_AVX512 = " with AVX-512 in MKL"  # how a mode says that the library below is preloaded
MKL_SOURCE = "int mkl_serv_intel_cpu_true(void) { return 1; }\n"
CHECKPOINTS = 2  # of a run; the first one takes the memory that all copy to
CHECKPOINT_EVERY = 12  # steps, in which one must become complete


def threads():
    return os.environ.get("OMP_NUM_THREADS", "2")


def timed_lines(command, variables=None):
    """What a command prints: pairs of the time at which a line came, in seconds, and the line."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")}
    environment.update(variables or {})
    environment.setdefault("OMP_NUM_THREADS", threads())
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as run:
        lines = [(time.monotonic(), line) for line in run.stdout]
    if run.returncode != 0:
        sys.exit(f"performance.py: {shlex.join(command)} ended with status {run.returncode}")
    return lines


def output_of(command, variables=None):
    return "".join(line for _, line in timed_lines(command, variables))


# --- rows ---------------------------------------------------------------------


def provenance_of(arguments, file):
    """Columns of every row: the commit of the program, and of the peers in tests/reference, and the machine."""
    path = arguments.output / file
    return results.provenance(results.program_version(arguments.onebit, path), path)


def replace_rows(path, columns, rows):
    """Writes rows of this machine in place of earlier ones. Rows of other machines stay if their commit can be built."""
    kept = [row for row in (results.read_csv(path) if path.exists() else [])
            if row.get("machine") and row["machine"] != rows[0]["machine"] and not row["git"].endswith("-dirty")]
    results.write_csv(path, columns, [{column: row.get(column, "") for column in columns} for row in kept + rows])


def gflop(model):
    """10⁹ operations of a step's products of matrices, the same for all programs; None for the optimiser, which has none."""
    return step_models.step_flop(step_models.MODELS[model]) / 1e9 if model in step_models.MODELS else None


def row_of(model, program, mode, precision, run, measured, peak, provenance):
    """A row of steps.csv or threads.csv. `peak` is in GFLOP/s, or None where it was not measured."""
    version, steps, median = measured
    rate = gflop(model) / (1e-3 * median) if gflop(model) else None
    return {**dict(zip(COLUMNS, (model, program, version, mode, precision, threads(), run))), **provenance, "steps": steps,
            "median_ms": f"{median:.2f}", "gflop_per_s": f"{rate:.1f}" if rate else "",
            "peak_share": f"{rate / peak:.3f}" if rate and peak else ""}


# --- programs -----------------------------------------------------------------


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


class Peer:
    """A PyTorch in one mode."""

    def __init__(self, name, python, mode, preloaded):
        self.name, self.python, self.mode = name, python, mode + (MKL_AVX512 if preloaded else "")
        self.options = ["--mode", mode]
        self.variables = {"LD_PRELOAD": preloaded} if preloaded else {}

    def time(self, model, precision):
        """(version, steps, median of a step in ms) of one process."""
        steps = MODELS[model][1]
        if model == "optimizer":
            command = [self.python, str(REFERENCE / "optimizer_time.py")]
        else:
            command = [self.python, str(REFERENCE / "step_time.py"), model, "--precision", precision]
            command += ["--dropout", "0.1" if model.startswith("bert") else "0", "--warm-up", str(STEPS_OF_WARM_UP)]
        text = output_of(command + self.options + ["--steps", str(steps)], self.variables)
        return re.search(r"^torch (\S+?),", text, re.M)[1], steps, last_median(text)


def peers_of(arguments, directory):
    """Every PyTorch in each of its modes. `directory` takes the library that is preloaded."""
    preloaded = ""
    if "GenuineIntel" not in pathlib.Path("/proc/cpuinfo").read_text():
        preloaded = f"{directory}/mkl_avx512.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", preloaded], input=MKL_SOURCE, text=True, check=True)
    peers = []
    for text in arguments.peer:
        name, python = text.split("=", 1)
        version = output_of([python, "-c", "import torch; print(torch.__version__)"])
        for mode in ("eager",) if version.startswith("1.") else ("eager", "compile"):
            for library in ("", preloaded) if arguments.as_installed and preloaded else (preloaded,):
                peers.append(Peer(name, python, mode, library))
    return peers


def last_median(text):
    return float(re.findall(r"median ([0-9.]+) ms", text)[-1])


# --- what is measured ---------------------------------------------------------


def measure_kernels(arguments):
    """Writes kernels.csv. Returns the rate of multiply-adds in float, in GFLOP/s."""
    provenance = provenance_of(arguments, "kernels.csv")
    kernels = []
    for precision in ("fp32", "bf16"):
        with tempfile.TemporaryDirectory() as directory:
            output_of([arguments.onebit, "bench", "kernels", "inputs/bench_kernels.yaml", f"--set=run.output={directory}",
                       f"--set=model.precision={precision}"])
            kernels += [{**row, **provenance} for row in results.read_csv(f"{directory}/kernels.csv")
                        if precision == "fp32" or row["precision"] == precision]
    replace_rows(arguments.output / "kernels.csv", list(kernels[0]), kernels)
    return next(1e-9 * float(row["flop"]) / float(row["median_s"]) for row in kernels if row["kernel"] == "fma")


def measure(arguments):
    models = arguments.models.split(",")
    if unknown := set(models) - set(MODELS):
        sys.exit(f"performance.py: no model {', '.join(sorted(unknown))}; remedy: choose from {', '.join(MODELS)}")
    provenance = provenance_of(arguments, "steps.csv")
    peak = measure_kernels(arguments)
    print(f"kernels are measured; peak of multiply-adds {peak:.0f} GFLOP/s", flush=True)
    rows = []

    def add(model, program, mode, precision, run, measured):
        rows.append(row_of(model, program, mode, precision, run, measured, peak, provenance))
        print(f"{model:10} {precision} {program:10} {measured[0]:14} {mode:30} {measured[2]:9.1f} ms", flush=True)

    with tempfile.TemporaryDirectory() as directory:
        peers = peers_of(arguments, directory)
        for run in range(1, arguments.runs + 1):
            for model in models:
                for precision in MODELS[model][2]:
                    add(model, "onebit", "", precision, run, onebit(arguments.onebit, model, precision))
                    for peer in peers:
                        add(model, peer.name, peer.mode, precision, run, peer.time(model, precision))
            for text in arguments.gpt2_peer:
                name, command = text.split("=", 1)
                text = output_of(shlex.split(command))
                add("gpt2", name, "", "fp32", run, ("", text.count("step "), last_median(text)))
            replace_rows(arguments.output / "steps.csv", COLUMNS, rows)


def measure_threads(arguments):
    """BERT-Base with one thread and with two."""
    rows = []
    provenance = provenance_of(arguments, "threads.csv")
    for run in range(1, arguments.runs + 1):
        for count in ("1", "2"):
            os.environ["OMP_NUM_THREADS"] = count
            measured = onebit(arguments.onebit, "bert_base", "fp32")
            rows.append(row_of("bert_base", "onebit", "", "fp32", run, measured, None, provenance))
        replace_rows(arguments.output / "threads.csv", COLUMNS, rows)


def measure_checkpoints(arguments):
    """What the steps from each checkpoint on took more than those before the first one, in wall-clock time."""
    beside = CHECKPOINT_EVERY - 2  # steps that count: not the next checkpoint's, nor the run's last, which validates
    rows = []
    provenance = provenance_of(arguments, "checkpoints.csv")
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
                rows.append({"sequence": sequence, "batch": batch, "background": background, "run": run,
                             "checkpoint": checkpoint, "bytes": size,
                             **{name: f"{value:.4f}" for name, value in measured.items()}, **provenance})
                print(", ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
        replace_rows(arguments.output / "checkpoints.csv", list(rows[0]), rows)


# --- the page -----------------------------------------------------------------


def rows_by_machine(arguments, file):
    """{machine: rows}; rows that name no machine or no commit are left out."""
    path = arguments.output / file
    machines = collections.defaultdict(list)
    for row in results.read_csv(path) if path.exists() else []:
        if row.get("machine") and not row["git"].endswith("-dirty"):
            machines[row["machine"]].append(row)
    return machines


def sections(arguments, file, text_of):
    """What a page says of each machine: a heading with commits, and the text of its rows."""
    parts = []
    for machine, rows in rows_by_machine(arguments, file).items():
        commits = ", ".join(f"`{git}`" for git in dict.fromkeys(row["git"] for row in rows))
        parts += [f"### {machine[0].upper() + machine[1:]}, commit {commits}", text_of(rows)]
    return parts or ["No rows of a committed program yet."]


def steps_table(rows):
    """A line for each model and precision: OneBit, and the fastest of the peers."""
    groups = collections.defaultdict(list)
    for row in rows:
        groups[row["model"], row["precision"], row["program"], row["version"], row["mode"]].append(row)

    def median_ms(group):
        return statistics.median(float(row["median_ms"]) for row in group)

    def cells(group):
        rate, share = (statistics.median(results.number(row[column]) for row in group)
                       for column in ("gflop_per_s", "peak_share"))
        return [results.with_range([float(row["median_ms"]) for row in group]),
                f"{rate:.0f} ({100 * share:.0f} %)" if rate == rate else ""]

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
    table = results.table(["step", "precision", "OneBit, ms", "GFLOP/s (of the peak)", "fastest peer", "its ms",
                           "GFLOP/s (of the peak)", "its time over OneBit's"], lines)
    return f"Peers: {'; '.join(peers)}. {processes(rows)}\n\n{table}"


def processes(rows):
    runs = len({row["run"] for row in rows})
    return f"Each number is the median of {runs} processes (least – most)." if runs > 1 else "Each number is of one process."


def threads_line(rows):
    counts = collections.defaultdict(list)
    for row in rows:
        counts[row["threads"]].append(float(row["median_ms"]))
    return (f"BERT-Base in fp32: {results.with_range(counts['1'])} ms with one thread, {results.with_range(counts['2'])} ms with "
            f"two: {statistics.median(counts['1']) / statistics.median(counts['2']):.2f} times as fast.")


def checkpoints_table(rows):
    groups = collections.defaultdict(list)
    for row in rows:
        groups[row["sequence"], row["batch"], row["background"], row["checkpoint"]].append(row)
    lines = []
    for (sequence, batch, background, checkpoint), of_group in groups.items():
        medians = [f"{statistics.median(float(row[column]) for row in of_group):.3g}"
                   for column in ("step_without_s", "step_with_s", "waited_s", "complete_s", "extra_s")]
        lines.append([sequence, batch, f"`{background}`", checkpoint, results.with_unit(int(of_group[0]["bytes"])), *medians,
                      results.with_range([100 * float(row["share_of_50_steps"]) for row in of_group])])
    return results.table(["tokens", "batch", "`checkpoint.background`", "checkpoint", "size", "step without, s", "step with, s",
                          "waited, s", "complete after, s", "costs, s", "% of 50 steps"], lines)


def kernels_table(rows):
    lines = []
    for row in rows:
        share = results.number(row["floor_share"])
        lines.append([row["kernel"], row["shape"], row["precision"], f"{1e3 * float(row['median_s']):.3g}", row["bound"],
                      f"{100 * share:.0f} %" if share == share else ""])
    return results.table(["kernel", "shape", "factors", "ms", "bound by", "of the floor"], lines)


STEPS_TEXT = """\
A step is forward, backward and update. A process gives the median of its steps after the first ones; all programs take
turns, with two threads each. The last column is the time of the fastest peer over OneBit's time, so above 1 OneBit is faster.
steps.csv has the rows of all peers. Every PyTorch runs eagerly and, from version 2 on, with `torch.compile`, with
`scaled_dot_product_attention` and fused Adam where it has them. MKL, which PyTorch's wheels multiply with, uses AVX-512 on
Intel's processors alone. On others the script preloads `mkl_serv_intel_cpu_true`, which tells MKL to use AVX-512 here too:
"with AVX-512 in MKL". The peer of the optimiser checks its results against a plain formulation before it is timed.

GFLOP/s count the products of matrices, by one formula for all programs (`step_flop` in tests/reference/step_models.py). The
peak is the rate of multiply-adds in fp32 that the kernel `fma` reached just before, for bf16 too, which may pass it. bf16 is
PyTorch's autocast; in OneBit's bf16 the factors of the products with weights are rounded, attention stays in fp32."""


def render(arguments):
    notes = arguments.output / "notes.md"
    page = [
        "# Speed of a training step",
        "Made by `scripts/performance.py render` from [steps.csv](performance/steps.csv), "
        "[kernels.csv](performance/kernels.csv), [threads.csv](performance/threads.csv) and "
        "[checkpoints.csv](performance/checkpoints.csv); that script says which of its commands measures what. Each machine "
        "has a table of its own, made of rows whose commit can be built again.",
        "## Beside PyTorch and others",
        STEPS_TEXT,
        *sections(arguments, "steps.csv", steps_table),
        *([notes.read_text().strip()] if notes.exists() else []),
        "## Threads",
        *sections(arguments, "threads.csv", threads_line),
        "## Checkpoints",
        "`scripts/performance.py checkpoints`: BERT-Base with byte tokens on "
        f"two ranks of one thread each, every {CHECKPOINT_EVERY} steps, in the compressed phase "
        "([checkpoint.md](../guide/checkpoint.md)). A step without is the median before the first checkpoint; `complete` "
        "is a mean of "
        f"both; `costs` is the wall-clock time that the {CHECKPOINT_EVERY - 2} steps behind a checkpoint took more than as many "
        "without, waiting and slower steps together. The last column is `costs` over the time of 50 steps.",
        *sections(arguments, "checkpoints.csv", lambda rows: f"{processes(rows)}\n\n{checkpoints_table(rows)}"),
        "## Kernels",
        "`onebit bench kernels inputs/bench_kernels.yaml`; what the columns mean, and what a kernel must move, stands in "
        "[performance.md](../develop/performance.md).",
        *sections(arguments, "kernels.csv", kernels_table),
    ]
    (arguments.output.parent / f"{arguments.output.name}.md").write_text("\n\n".join(page) + "\n")


def main():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(required=True)
    for name, function in (("measure", measure), ("threads", measure_threads), ("checkpoints", measure_checkpoints),
                           ("render", render)):
        command = commands.add_parser(name)
        command.set_defaults(function=function)
        command.add_argument("--output", type=pathlib.Path, default=DIRECTORY)
        if name != "render":
            command.add_argument("--onebit", default=str(ROOT / "build/openmp/onebit"))
            command.add_argument("--runs", type=int, default=2)
        if name == "measure":
            command.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
            command.add_argument("--gpt2-peer", action="append", default=[], metavar="NAME=COMMAND")
            command.add_argument("--models", default=",".join(MODELS), help="default: all")
            command.add_argument("--as-installed", action="store_true", help="also PyTorch's wheels as they are")
    arguments = parser.parse_args()
    arguments.output = arguments.output.resolve()
    arguments.function(arguments)


if __name__ == "__main__":
    main()
