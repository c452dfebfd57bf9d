#!/usr/bin/env python3
"""Do two programs compute the same bits? For a change that must not change a result (CONTRIBUTING.md).

Usage: same_bits.py make FIXTURE.csv [--onebit PROGRAM] [--rename NEW=OLD]...
       same_bits.py check FIXTURE.csv [--onebit PROGRAM]

`make` trains a few steps of every algorithm on three workloads, of every compressor, grouping and exchange with 1-bit
Adam, and both inputs of the quick start, and writes the hash of the parameters of each run. `check` trains the same and
ends with status 1 where a hash differs. Hashes are those of one machine: its BLAS and its compiler round their own way.
--rename gives a key its name in an older program.
"""

import argparse
import itertools
import os
import pathlib
import subprocess
import sys
import tempfile

import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
from lib import launch
from lib.tables import read_csv, write_csv

RANKS = 3
SMALL_MODEL = {"model.layers": 2, "model.hidden": 32, "model.heads": 2, "model.feed_forward": 64, "model.positions": 16,
               "model.sequence": 16}
STEPS = {"train.steps": 12, "train.batch": 6, "train.validate_every": 6, "train.validation_batch": 6,
         "optimizer.lr": 0.002, "freeze.step": 5}
WORKLOADS = {
    "gpt": {"model.architecture": "gpt", "data.tokenizer": "characters", "model.dropout": 0.1, **SMALL_MODEL},
    "classification": {"workload.kind": "classification", "data.labelled": "{scratch}/train.tsv",
                       "data.labelled_validation": "{scratch}/held_out.tsv", "model.pooling": "mean", **SMALL_MODEL},
    "quadratic": {"workload.kind": "quadratic", "quadratic.dimension": 1000},
}
ALGORITHMS = ["adam", "onebit_adam", "onebit_adam_32bit", "adam_1bit_naive", "adam_nbit_variance", "adam_lazy_variance",
              "sgd", "momentum_sgd", "double_squeeze", "ef_momentum_sgd", "local_sgd", "local_momentum_sgd",
              "onebit_sgd", "zero_one_adam", "onebit_lamb", "onebit_lion", "signum",
              "distributed_lion", "diloco", "efficient_adam", "sharded_adam", "sharded_onebit_adam",
              "server_onebit_adam"]
COMPRESSORS = ["sign", "sign_ternary", "column", "nbit", "fp8"]
GROUPS = ["vector", "chunk", "tensor", 64]
VARIANTS = [
    {"comm.exchange": "pairwise"},
    {"comm.collective": "hierarchical"},
    {"compression.scale": "l2"},
    {"compression.error_feedback": "false"},
    {"compression.scale_residual_by_lr": "true", "schedule.decay": "linear"},
    {"optimizer.bias_correction": "true"},
    {"optimizer.weight_decay": 0.01, "optimizer.clip": 0.5},
    {"train.accumulation": 2},
    {"model.architecture": "bert", "data.tokenizer": "bytes"},
    {"comm.bucket_bytes": 4096},
]
SHORT_QUICK_START = {"train.steps": 30, "freeze.step": 10, "train.batch": 30, "train.validate_every": 15,
                     "train.validation_batch": 30, "schedule.warmup_steps": 5}


def quick_start(name):
    """The settings of the quick start's input, by dotted keys, but for its lists, which are the defaults."""
    sections = yaml.safe_load((ROOT / f"inputs/quickstart_{name}.yaml").read_text())
    settings = {f"{section}.{key}": value for section, keys in sections.items() for key, value in keys.items()}
    settings = {key: str(value).lower() for key, value in settings.items() if not isinstance(value, list)}
    return {**settings, **SHORT_QUICK_START}


def cases():
    """(name, settings) of each run."""
    for algorithm, workload in itertools.product(ALGORITHMS, WORKLOADS):
        yield f"{algorithm}/{workload}", {**STEPS, **WORKLOADS[workload], "optimizer.algorithm": algorithm}
    onebit_adam = {**STEPS, **WORKLOADS["gpt"], "optimizer.algorithm": "onebit_adam"}
    for compressor, group in itertools.product(COMPRESSORS, GROUPS):
        if compressor != "column" or group == "vector":  # columns are groups of their own
            yield (f"onebit_adam/{compressor}/{group}",
                   {**onebit_adam, "compression.compressor": compressor, "compression.group": group})
    for variant in VARIANTS:
        yield "onebit_adam/" + " ".join(f"{key}={value}" for key, value in variant.items()), {**onebit_adam, **variant}
    for name in ("adam", "onebit_adam"):
        yield f"quickstart_{name}", quick_start(name)


def write_labelled_texts(scratch):
    words = ["alpha", "beta", "gamma", "delta"]
    for name, first in (("train", 0), ("held_out", 1000)):
        lines = [f"{words[i % 3]}\t{words[i % 4]} {words[i * i % 4]} {i}" for i in range(first, first + 60)]
        (scratch / f"{name}.tsv").write_text("\n".join(lines) + "\n")


def hash_of(program, settings, scratch, old_names):
    """The hash of the parameters at the end of a run, or how it ended."""
    output = scratch / "run"
    settings = {**settings, "run.output": output, "run.threads": 1, "data.cache": scratch}
    settings = {old_names.get(key, key): str(value).format(scratch=scratch) for key, value in settings.items()}
    command = launch.mpirun(RANKS, program, "train", scratch / "empty.yaml", *launch.overrides(settings))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        remark = next((line for line in done.stderr.splitlines() if "error" in line.lower()), "")
        return f"status {done.returncode} {remark}"
    return read_csv(output / "run.csv")[0]["parameters_hash"]


def hashes(program, old_names):
    with tempfile.TemporaryDirectory() as directory:
        scratch = pathlib.Path(directory)
        (scratch / "empty.yaml").write_text("run: {}\n")
        write_labelled_texts(scratch)
        return {name: hash_of(program, settings, scratch, old_names) for name, settings in cases()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["make", "check"])
    parser.add_argument("fixture", type=pathlib.Path)
    parser.add_argument("--onebit", default=launch.ONEBIT, type=launch.program)
    parser.add_argument("--rename", action="append", default=[], metavar="NEW=OLD")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found = hashes(arguments.onebit, dict(pair.split("=") for pair in arguments.rename))
    if arguments.action == "make":
        write_csv(arguments.fixture, [{"case": name, "parameters_hash": of_run} for name, of_run in found.items()])
        return 0
    wanted = {row["case"]: row["parameters_hash"] for row in read_csv(arguments.fixture)}
    different = [name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)]
    for name in sorted(different):
        print(f"{name}: {found.get(name)} instead of {wanted.get(name)}")
    print(f"{len(wanted) - len(different)} of {len(wanted)} runs have the same parameters")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
