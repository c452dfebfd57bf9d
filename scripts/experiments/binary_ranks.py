#!/usr/bin/env python3
"""Times training steps with 1-bit layers on 1, 2 and 4 ranks of this machine, with Adam and with 1-bit Adam.

A BERT of 4 layers and hidden 256 learns the characters of the default corpus. The runs of a rank count take turns,
--rounds times, with one thread a rank. A row has medians over the steps after the variance is frozen: of the step, of
its passes, of its exchange with compression, and the bytes that a rank sends. Run it on an idle machine, with a program
built from committed sources: every row names the commit and the machine (ONEBIT_MACHINE, in words).
"""

import argparse
import os
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from lib import ROOT, launch, provenance, tables

INPUT = ROOT / "inputs/bert_tiny.yaml"
SETTINGS = {"train.batch": 32, "train.validate_every": 0, "model.layers": 4, "model.hidden": 256, "model.heads": 4,
            "model.feed_forward": 1024, "model.positions": 64, "model.sequence": 64, "run.progress_interval_s": 0,
            "freeze.step": 3, "schedule.warmup_steps": 0}
LAYERS = {"fp32": {}, "fqt, b = 4": {"model.quantization.kind": "fqt", "model.quantization.bits": 4}}
OPTIMIZERS = ("adam", "onebit_adam")
PARTS = {"step_s": ("step_s",), "passes_s": ("forward_s", "backward_s"),
         "exchange_s": ("allreduce_s", "compress_s", "all_to_all_s", "average_s", "all_gather_s"),
         "update_s": ("update_s",), "bytes_sent": ("bytes_sent",)}
NOT_COUNTED = 4  # steps of a run: those with a variance, and the first compressed one


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onebit", type=launch.program, default=launch.ONEBIT, metavar="PROGRAM")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "docs/results/quantized_training/ranks.csv",
                        metavar="FILE.csv", help="default: %(default)s")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=12, help="of a run in a round; default: %(default)s")
    arguments = parser.parse_args()

    origin = provenance.of_program(arguments.onebit, arguments.output)
    rows = []
    for ranks in arguments.ranks:
        kinds = {(layers, optimizer): [] for layers in LAYERS for optimizer in OPTIMIZERS}
        for _ in range(arguments.rounds):
            for (layers, optimizer), steps in kinds.items():
                steps += launch.steps_of(
                    launch.mpirun(ranks, arguments.onebit, "train", INPUT),
                    {**SETTINGS, "train.steps": arguments.steps + NOT_COUNTED, "optimizer.algorithm": optimizer,
                     **LAYERS[layers]}, {**os.environ, "OMP_NUM_THREADS": "1"})[NOT_COUNTED:]
        for (layers, optimizer), steps in kinds.items():
            medians = {part: statistics.median(sum(float(row[column] or 0) for column in columns) for row in steps)
                       for part, columns in PARTS.items()}
            rows.append({"ranks": ranks, "layers": layers, "optimizer": optimizer, "steps": len(steps),
                         **{part: f"{value:.4g}" for part, value in medians.items()}, **origin,
                         "runs": arguments.rounds})
    tables.replace_rows(arguments.output, list(rows[0]), rows)
    print(tables.markdown(["ranks", "layers", "optimizer", "step / s", "passes / s", "exchange / s", "update / s",
                           "bytes sent"],
                          [[row["ranks"], row["layers"], row["optimizer"], *(row[part] for part in PARTS)]
                           for row in rows]))


if __name__ == "__main__":
    main()
