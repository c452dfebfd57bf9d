#!/usr/bin/env python3
"""Times a training step of BERT-Base with 1-bit layers beside the same step in float and in bfloat16.

The runs of inputs/performance/bert_base.yaml take turns, --rounds times, with OMP_NUM_THREADS threads or, without
it, one for each core. A row has the median over all rounds of a step and of its phases, and the least and the greatest
step. Run it on an idle machine, with
a program built from committed sources: every row names the commit and the machine (ONEBIT_MACHINE, in words).
"""

import argparse
import os
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from lib import ROOT, launch, provenance, tables

INPUT = ROOT / "inputs/performance/bert_base.yaml"
KINDS = {"fp32": {}, "bf16": {"model.precision": "bf16"},
         "qat": {"model.quantization.kind": "qat"},
         "scq, 1 bit": {"model.quantization.kind": "scq", "model.quantization.bits": 1},
         "fqt, b = 4": {"model.quantization.kind": "fqt", "model.quantization.bits": 4}}
PHASES = ("step_s", "forward_s", "backward_s", "update_s")
NOT_COUNTED = 2  # steps of a run
THREADS = os.environ.get("OMP_NUM_THREADS") or str(len(os.sched_getaffinity(0)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onebit", type=launch.program, default=launch.ONEBIT, metavar="PROGRAM")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "docs/results/quantized_training/step.csv",
                        metavar="FILE.csv", help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=4, help="of a run in a round; default: %(default)s")
    arguments = parser.parse_args()

    origin = provenance.of_program(arguments.onebit, arguments.output)
    steps = {kind: [] for kind in KINDS}
    for _ in range(arguments.rounds):
        for kind, settings in KINDS.items():
            steps[kind] += launch.steps_of(
                [arguments.onebit, "train", str(INPUT)],
                {"train.steps": arguments.steps + NOT_COUNTED, "run.progress_interval_s": 0, **settings},
                {**os.environ, "OMP_NUM_THREADS": THREADS})[NOT_COUNTED:]
    rows, plain = [], None
    for kind, found in steps.items():
        times = {phase: [float(row[phase]) for row in found] for phase in PHASES}
        median = {phase: statistics.median(values) for phase, values in times.items()}
        plain = plain or median["step_s"]
        rows.append({"model": "BERT-Base", "layers": kind, "threads": THREADS, "steps": len(found),
                     **{phase: f"{value:.4g}" for phase, value in median.items()},
                     "least_step_s": f"{min(times['step_s']):.4g}", "greatest_step_s": f"{max(times['step_s']):.4g}",
                     "times_as_fast_as_fp32": f"{plain / median['step_s']:.3g}", **origin, "runs": arguments.rounds})
    tables.replace_rows(arguments.output, list(rows[0]), rows)
    print(tables.aligned(["layers", "step / s", "forward / s", "backward / s", "update / s", "times as fast as fp32"],
                         [[row["layers"], *(row[phase] for phase in PHASES), row["times_as_fast_as_fp32"]]
                          for row in rows]))


if __name__ == "__main__":
    main()
