"""Stage 2: the sanitizer over small tests, and a training run on OpenMP and on CUDA."""

import os
import pathlib
import re
import sys
import tempfile

from gpu_check import installation, units
from gpu_check.verdicts import Failed, Skipped
from lib import ROOT, launch, tables

TOOLS = ("memcheck", "initcheck", "synccheck")
# Program and tests: kernels of each folder, of which a process takes seconds.
SANITIZED = {
    "base_test": "Parallel/cuda.ordered_sum_equals_reference:Parallel/cuda.maxima_of_blocks",
    "compress_test": "Sign/cuda.*:OtherCodecs/cuda.*_by_hand",
    "linalg_test": "Gemm/cuda.without_terms_scales_c:Gemm/cuda.of_no_elements_does_nothing",
    "nn_test": "Layer/cuda.bias_equals_reference:Layer/cuda.embeddings_equal_reference:"
               "Layer/cuda.rows_are_gathered_and_scattered:Layer/cuda.residual_layer_norm_equals_reference",
    "quantize_test": "Quantize/cuda.levels_are_exact",
}
SANITIZER_LIMIT_S = 90
NO_TOOL = "compute-sanitizer is not here", "install the CUDA toolkit's compute-sanitizer"
STEPS, TRAINING_LIMIT_S = 100, 150
# The learning rates of the input's first steps. Higher ones make rounding errors grow beyond any tolerance.
FIRST_STEPS = {"schedule.warmup_steps": STEPS, "optimizer.lr": 4.0e-3}
# Greatest relative differences of a loss on CUDA from the same on OpenMP, by step.
TOLERANCES = {1: 1e-6, STEPS: 1e-3}
# Checks that train, and the directories of their runs.
RUNS = {"bert_tiny": "openmp", "bert_tiny:cuda": "cuda", "bert_tiny:cuda:again": "cuda_again"}


def sanitize(report, here, tool, program, tests):
    sanitizer = installation.find_tool("compute-sanitizer", here.environment)
    if not sanitizer:
        raise Skipped(*NO_TOOL)
    command = [sanitizer, "--tool", tool, "--error-exitcode", "86", here.test(program), f"--gtest_filter={tests}"]
    done = report.run(command, SANITIZER_LIMIT_S, {**here.environment, "OMP_NUM_THREADS": "1"}, here.root)
    if "Device not supported" in done.output:
        raise Skipped("compute-sanitizer says that it does not support this device", "run it on the host's own kernel")
    if done.status == 86:
        errors = [line for line in done.output.splitlines() if line.startswith("=========") and line.strip("= ")]
        raise Failed(next((line.strip("= ") for line in errors if "COMPUTE-SANITIZER" not in line), "errors"),
                     "see the log, which names source lines")
    return units.judge(done)


def train(report, here, name, backend, directory):
    """Trains into directory/NAME."""
    settings = {"run.output": directory / name, "run.backend": backend, "train.steps": STEPS,
                "train.validate_every": 0, **FIRST_STEPS, "data.cache": directory}
    command = here.on_ranks(1, here.program, "train", "inputs/bert_tiny.yaml", *launch.overrides(settings))
    threads = str(os.cpu_count() or 1)
    report.run(command, TRAINING_LIMIT_S, {**here.environment, "OMP_NUM_THREADS": threads}, here.root).expect()
    losses = losses_of(directory / name)
    first, last = losses[1], losses[STEPS]
    if not last < first:
        raise Failed(f"the loss does not fall: {first:.6f} at step 1, {last:.6f} at step {STEPS}",
                     "compare steps.csv with another backend's")
    run, = tables.read_csv(directory / name / "run.csv")
    return (f"loss {first:.6f} at step 1, {last:.6f} at step {STEPS}, {float(run['tokens_per_s']):.0f} tokens/s, "
            f"parameters {run['parameters_hash']}")


def losses_of(directory):
    return {int(row["step"]): float(row["loss"]) for row in tables.read_csv(directory / "steps.csv")}


def compare_losses(openmp, cuda, step):
    """Compares the losses {step: loss} of a step."""
    difference = abs(cuda[step] - openmp[step]) / abs(openmp[step])
    words = f"{cuda[step]:.8f} on CUDA, {openmp[step]:.8f} on OpenMP: {difference:.1e} apart, at most " \
            f"{TOLERANCES[step]:.0e}"
    if not difference <= TOLERANCES[step]:
        raise Failed(words, "find the first step that differs in steps.csv; the unit tests of stage 1 say which kernel")
    return words


def compare_hashes(directory):
    hashes = [tables.read_csv(directory / name / "run.csv")[0]["parameters_hash"] for name in ("cuda", "cuda_again")]
    if len(set(hashes)) > 1:
        raise Failed(f"two runs on CUDA end in other parameters: {' and '.join(hashes)}",
                     "a kernel adds in an order that varies: atomics, or a library's product")
    return hashes[0]


def compare_pages(report, places, output):
    """scripts/compare_backends.py over directories of results."""
    done = report.run([sys.executable, ROOT / "scripts/compare_backends.py", *places, "--output", output], 60)
    if lacking := re.search(r"^compare_backends: (.*)\. Install", done.output, re.M):
        raise Skipped(lacking[1], "run scripts/compare_backends.py over the results on another machine")
    done.expect()
    return f"{output}/comparison.md"


def compare_runs(report, directory):
    """What the runs on OpenMP and CUDA must have in common."""
    done = {name for name in RUNS.values() if (directory / name / "run.csv").is_file()}
    if {"openmp", "cuda"} <= done:
        openmp, cuda = losses_of(directory / "openmp"), losses_of(directory / "cuda")
        for step in TOLERANCES:
            report.check(f"bert_tiny:cuda:loss_at_step_{step}", compare_losses, openmp, cuda, step)
        report.check("bert_tiny:cuda:compare_backends", compare_pages, report,
                     [directory / "openmp", directory / "cuda"], report.output / "bert_tiny")
    if {"cuda", "cuda_again"} <= done:
        report.check("bert_tiny:cuda:again:same_bits", compare_hashes, directory)


def run_stage(report, here, options):
    if not options.without_gpu:
        report.check_all([(f"{tool}:{program}", sanitize, report, here, tool, program, tests)
                          for tool in TOOLS for program, tests in SANITIZED.items() if program in here.units],
                         units.JOBS)
    with tempfile.TemporaryDirectory() as scratch:
        directory = pathlib.Path(scratch)
        for check, name in RUNS.items():
            if name == "openmp" or not options.without_gpu:
                report.check(check, train, report, here, name, name.split("_")[0], directory)
        report.keep(directory)
        if not options.without_gpu:
            compare_runs(report, directory)
