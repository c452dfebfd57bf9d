#!/usr/bin/env python3
"""Times training steps beside PyTorch's, and checkpoints, and makes docs/results/performance.md from the CSV files.

All commands write into docs/results/performance, or into --output. A command replaces the rows of this machine and
keeps those of others. Run them on an idle machine, with a program built from committed sources: every row names the
commit and the machine (ONEBIT_MACHINE, in words). OMP_NUM_THREADS threads on all sides.

measure      kernels.csv and steps.csv. The models of inputs/performance take turns with step_time.py and
             optimizer_time.py in every PYTHON that --peer names, eager and, from PyTorch 2 on, compiled. --gpt2-peer
             names a further peer for GPT-2, whose output ends in `median N ms`.
threads      threads.csv: BERT-Base with one thread and with two.
algorithms   algorithms.csv: BERT-Base on four ranks of one thread each, with Adam and Muon, dense and with one bit,
             in fp32 and bf16. They take turns. Four ranks take 16 GB.
checkpoints  checkpoints.csv, a row for each checkpoint. They go to the disk of TMPDIR, 2 GB each.
render       the page, from these files and notes.md.

MKL, which PyTorch's wheels multiply with, uses AVX-512 on Intel's processors alone. On others `measure` preloads a
library that tells MKL that this is one of Intel's, as PyTorch's users on AMD do. The column `mode` of steps.csv says
so; --as-installed measures the wheels without it too.
"""

import argparse
import itertools
import os
import pathlib
import shlex
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from products import KERNELS as PRODUCTS

from lib import ROOT, launch, program_name, provenance, tables
from lib.runs import run_here
from performance_page import ALGORITHMS, CHECKPOINT_EVERY, COLUMNS, MODELS, render, row_of, threads
from performance_peers import STEPS_NOT_COUNTED, last_median, onebit, output_of, peers_of, timed_lines

DIRECTORY = ROOT / "docs/results/performance"
CHECKPOINTS = 2  # of a run; the first one takes the memory that all copy to


def provenance_of(arguments, file):
    """Columns of every row: the commit of the program and of its peers, the machine, and one run."""
    return {**provenance.of_program(arguments.onebit, arguments.output / file), "runs": 1}


def highest_peak(kernels):
    """The highest rate of multiply-adds in float beside any kernel, in GFLOP/s. The first kernels have none yet."""
    return 1e-9 * max(float(row["peak_FLOP_per_s"]) for row in kernels
                      if row["precision"] == "fp32" and row["peak_FLOP_per_s"])


def measure_kernels(arguments):
    """Writes kernels.csv and returns highest_peak. Products of bits have another roofline, and a file of their own."""
    origin = provenance_of(arguments, "kernels.csv")
    kernels = []
    for precision in ("fp32", "bf16"):
        with tempfile.TemporaryDirectory() as directory:
            settings = {"run.output": directory, "model.precision": precision}
            output_of([arguments.onebit, "bench", "kernels", "inputs/bench_kernels.yaml", *launch.overrides(settings)])
            kernels += [{**row, **origin} for row in tables.read_csv(f"{directory}/kernels.csv")
                        if (precision == "fp32" or row["precision"] == precision) and row["kernel"] not in PRODUCTS]
    tables.replace_rows(arguments.output / "kernels.csv", [*kernels[0], "note"], kernels)
    return highest_peak(kernels)


def measure(arguments):
    models = arguments.models.split(",")
    if unknown := set(models) - set(MODELS):
        sys.exit(f"performance: no model {', '.join(sorted(unknown))}; remedy: choose from {', '.join(MODELS)}")
    origin = provenance_of(arguments, "steps.csv")
    peak = measure_kernels(arguments)
    print(f"kernels are measured; peak of multiply-adds {peak:.0f} GFLOP/s", flush=True)
    rows = []

    def add(model, program, mode, precision, run, measured):
        rows.append(row_of(model, program, mode, precision, run, measured, peak, origin))
        print(f"{model:10} {precision} {program:10} {measured[0]:14} {mode:30} {measured[2]:9.1f} ms", flush=True)

    with tempfile.TemporaryDirectory() as directory:
        peers = peers_of(arguments.peer, directory, arguments.as_installed)
        for run in range(1, arguments.runs + 1):
            for model in models:
                _, steps, precisions = MODELS[model]
                for precision in precisions:
                    add(model, "onebit", "", precision, run, onebit(arguments.onebit, model, precision))
                    for peer in peers:
                        add(model, peer.name, peer.mode, precision, run, peer.time(model, precision, steps))
            for text in arguments.gpt2_peer:
                name, command = text.split("=", 1)
                text = output_of(shlex.split(command))
                add("gpt2", name, "", "fp32", run, ("", text.count("step "), last_median(text)))
            tables.replace_rows(arguments.output / "steps.csv", COLUMNS, rows)


def measure_threads(arguments):
    """BERT-Base with one thread and with two."""
    rows = []
    origin = provenance_of(arguments, "threads.csv")
    for run in range(1, arguments.runs + 1):
        for count in ("1", "2"):
            os.environ["OMP_NUM_THREADS"] = count
            measured = onebit(arguments.onebit, "bert_base", "fp32")
            rows.append(row_of("bert_base", "onebit", "", "fp32", run, measured, None, origin))
        tables.replace_rows(arguments.output / "threads.csv", COLUMNS, rows)


def measure_algorithms(arguments):
    """Steps of BERT-Base on four ranks; those with one bit are of the compressed phase."""
    rows = []
    origin = provenance_of(arguments, "algorithms.csv")
    not_counted = 2  # of them the dense step of 1-bit Adam
    settings = {"train.batch": 64, "train.steps": not_counted + 3,
                "optimizer.lr": 1e-6}  # with the variance of one step a larger one may end in infinity
    for run in range(1, arguments.runs + 1):
        for precision, (name, of_algorithm) in itertools.product(("fp32", "bf16"), ALGORITHMS.items()):
            done = run_here(4, arguments.onebit, "inputs/performance/bert_base.yaml",
                            {**settings, "model.precision": precision, **of_algorithm})
            steps = done.steps[not_counted:]
            phases = {f"{phase}_s": statistics.median(float(step[f"{phase}_s"]) for step in steps)
                      for phase in ("step", "forward", "backward", "compress", "update", "all_gather")}
            rows.append({"algorithm": name, "precision": precision, "ranks": 4, "batch": 64, "run": run,
                         "steps": len(steps), **{phase: f"{seconds:.4f}" for phase, seconds in phases.items()},
                         **origin})
            print(f"{run} {name:45} {precision} {phases['step_s']:.2f} s a step", flush=True)
        tables.replace_rows(arguments.output / "algorithms.csv", list(rows[0]), rows)


def checkpointed_run(program, sequence, batch):
    """A run that writes checkpoints: (rows of steps.csv, end of each step, bytes of a checkpoint)."""
    with tempfile.TemporaryDirectory() as directory:
        settings = {"run.output": directory, "model.sequence": sequence, "train.batch": batch,
                    "train.steps": (CHECKPOINTS + 1) * CHECKPOINT_EVERY - 1, "checkpoint.every": CHECKPOINT_EVERY}
        lines = timed_lines(launch.mpirun(2, program, "train", "inputs/performance/checkpoints.yaml",
                                          *launch.overrides(settings)))
        steps = tables.read_csv(f"{directory}/steps.csv")
        size = next(pathlib.Path(directory).glob("checkpoints/*.h5")).stat().st_size
    return steps, [at for at, line in lines if line.startswith("step ")], size


def measure_checkpoints(arguments):
    """What the steps from each checkpoint on took more than those before the first one, in wall-clock time."""
    beside = CHECKPOINT_EVERY - 2  # steps that count: not the next checkpoint's, nor the run's last, which validates
    rows = []
    origin = provenance_of(arguments, "checkpoints.csv")
    for run in range(1, arguments.runs + 1):
        for sequence, batch in ((64, 4), (128, 8)):
            steps, ends, size = checkpointed_run(arguments.onebit, sequence, batch)
            seconds = [float(step["step_s"]) for step in steps]
            times = [end - begin for begin, end in zip(ends, ends[1:])]  # of steps 2, 3, …
            without = statistics.median(times[STEPS_NOT_COUNTED - 1:CHECKPOINT_EVERY - 1])
            for checkpoint in range(1, CHECKPOINTS + 1):
                step = checkpoint * CHECKPOINT_EVERY
                extra = sum(times[step - 1:step - 1 + beside]) - beside * without
                measured = {"step_without_s": without, "step_with_s": statistics.median(seconds[CHECKPOINT_EVERY:]),
                            "waited_s": times[step - 1] - seconds[step],
                            "extra_s": extra, "share_of_50_steps": extra / (50 * without)}
                rows.append({"sequence": sequence, "batch": batch, "run": run,
                             "checkpoint": checkpoint, "bytes": size,
                             **{name: f"{value:.4f}" for name, value in measured.items()}, **origin})
                print(", ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
        tables.replace_rows(arguments.output / "checkpoints.csv", list(rows[0]), rows)


def check_cores():
    """Where OMP_PROC_BIND is set, the OpenMP of a Python module binds this process to a core, and what it starts."""
    cores = len(os.sched_getaffinity(0))
    if cores < int(threads()):
        sys.exit(f"{program_name()}: {threads()} threads would share {cores} core; remedy: unset OMP_PROC_BIND, or "
                 "lower OMP_NUM_THREADS")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, function in (("measure", measure), ("threads", measure_threads),
                           ("algorithms", measure_algorithms), ("checkpoints", measure_checkpoints),
                           ("render", lambda arguments: render(arguments.output))):
        command = commands.add_parser(name)
        command.set_defaults(function=function)
        command.add_argument("--output", type=pathlib.Path, default=DIRECTORY, metavar="DIR",
                             help="default: %(default)s")
        if name != "render":
            command.add_argument("--onebit", type=launch.program, default=launch.ONEBIT, metavar="PROGRAM")
            command.add_argument("--runs", type=int, default=2, metavar="N", help="default: %(default)s")
        if name == "measure":
            command.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
            command.add_argument("--gpt2-peer", action="append", default=[], metavar="NAME=COMMAND")
            command.add_argument("--models", default=",".join(MODELS), metavar="MODEL,…", help="default: all")
            command.add_argument("--as-installed", action="store_true", help="also PyTorch's wheels as they are")
    arguments = parser.parse_args()
    arguments.output = arguments.output.resolve()
    if "onebit" in arguments:
        check_cores()
    arguments.function(arguments)


if __name__ == "__main__":
    main()
