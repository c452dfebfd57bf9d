#!/usr/bin/env python3
"""Times a training step of a network with 1-bit layers beside the same step in float.

TASK is `bert`, BERT-Base, or `images`, ResNet-18 and VGG-16 on images of 32 x 32 to 224 x 224 random pixels, fewer of
them in a batch where they are larger. The runs of inputs/performance take turns, --rounds times, with OMP_NUM_THREADS
threads or, without it, one for each core. --peer adds the networks of images in a PyTorch, in float and in bfloat16;
its fastest mode and memory format counts. A row has the median over all rounds of a step and of its phases, and the
least and the greatest step. Run it on an idle machine, with a program built from committed sources: every row names the
commit and the machine (ONEBIT_MACHINE, in words).
"""

import argparse
import collections
import itertools
import math
import os
import pathlib
import random
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from image_tasks import idx

from lib import ROOT, launch, provenance, tables
from lib.models import RESNET18
from performance_peers import peers_of

PLAIN = {precision: {"model.precision": precision} for precision in ("fp32", "bf16")}
QAT = {"model.quantization.kind": "qat"}
FQT = {"model.quantization.kind": "fqt", "model.quantization.bits": 4}
KINDS = {
    "bert": {**PLAIN, "qat": QAT,
             "scq, 1 bit": {"model.quantization.kind": "scq", "model.quantization.bits": 1}, "fqt, b = 4": FQT},
    "images": {**PLAIN, "qat": QAT, "fqt, b = 4": FQT},
}
NETWORKS = {"ResNet-18": "resnet18", "VGG-16": "vgg16"}  # of images, and their names in inputs
BATCHES = {32: 32, 64: 16, 128: 8, 224: 4}  # images of a step, by their pixels on a side
FILES = {"bert": "step.csv", "images": "networks.csv"}
PHASES = ("step_s", "forward_s", "backward_s", "update_s")
NOT_COUNTED = 2  # steps of a run
THREADS = os.environ.get("OMP_NUM_THREADS") or str(len(os.sched_getaffinity(0)))


def random_images(directory, pixels, batch):
    """Writes a batch of images and their labels as IDX files. \returns the settings that name them"""
    count = max(batch, RESNET18.classes)
    extents = (count, pixels, pixels, RESNET18.channels)
    path = pathlib.Path(directory) / f"random_{pixels}_images.idx"
    path.write_bytes(idx(extents, random.Random(1).randbytes(math.prod(extents))))
    path.with_name(f"random_{pixels}_labels.idx").write_bytes(
        idx((count,), bytes(i % RESNET18.classes for i in range(count))))
    return {"images.training": f"[{path}]", "images.validation": f"[{path}]"}


def cases_of(arguments, directory):
    """What is timed: (columns that name it, input, settings, arguments of image_step_time.py)."""
    if arguments.task == "bert":
        yield {"model": "BERT-Base"}, "bert_base.yaml", {}, []
        return
    for name, network in NETWORKS.items():
        for pixels in arguments.pixels:
            batch = BATCHES[pixels]
            settings = {"images.network": network, "images.norm_samples": batch, "train.batch": batch,
                        "train.validation_batch": batch, **random_images(directory, pixels, batch)}
            yield ({"model": name, "pixels": pixels, "batch": batch}, "resnet18.yaml", settings,
                   ["--pixels", str(pixels), "--batch", str(batch)])


def steps_of(arguments, file, settings):
    """The rows of steps.csv of one run."""
    length = {"train.steps": arguments.steps + NOT_COUNTED, "run.progress_interval_s": 0}
    return launch.steps_of([arguments.onebit, "train", str(ROOT / "inputs/performance" / file)],
                           {**length, **settings}, {**os.environ, "OMP_NUM_THREADS": THREADS})[NOT_COUNTED:]


def measure(arguments, case, peers):
    """{layers: rows with the PHASES that were measured} of a network, all of them in turns."""
    names, file, settings, options = case
    found = collections.defaultdict(list)
    for _ in range(arguments.rounds):
        for kind, own in KINDS[arguments.task].items():
            found[kind] += steps_of(arguments, file, {**settings, **own})
        for precision, peer in itertools.product(PLAIN, peers):
            _, _, median = peer.time(NETWORKS[names["model"]], precision, arguments.steps, options)
            found[f"{precision}, {peer.name}, {peer.mode}"].append({"step_s": 1e-3 * median})
    return found


def rows_of(names, found, rounds, origin):
    rows, plain = [], None
    for kind, steps in found.items():
        times = {phase: [float(row[phase]) for row in steps if phase in row] for phase in PHASES}
        median = {phase: statistics.median(values) for phase, values in times.items() if values}
        plain = plain or median["step_s"]
        rows.append({**names, "layers": kind, "threads": THREADS, "steps": len(steps),
                     **{phase: f"{median[phase]:.4g}" if phase in median else "" for phase in PHASES},
                     "least_step_s": f"{min(times['step_s']):.4g}", "greatest_step_s": f"{max(times['step_s']):.4g}",
                     "times_as_fast_as_fp32": f"{plain / median['step_s']:.3g}", **origin, "runs": rounds})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=KINDS, metavar="TASK")
    parser.add_argument("--onebit", type=launch.program, default=launch.ONEBIT, metavar="PROGRAM")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "docs/results/quantized_training", metavar="DIR",
                        help="takes step.csv (bert) or networks.csv (images); default: %(default)s")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON",
                        help="a Python with PyTorch; may be given several times")
    parser.add_argument("--pixels", type=int, nargs="+", choices=BATCHES, default=list(BATCHES),
                        help="on a side of an image; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=4, help="of a run in a round; default: %(default)s")
    arguments = parser.parse_args()
    if arguments.peer and arguments.task != "images":
        parser.error("--peer is for images: performance.py times BERT-Base in PyTorch")
    os.environ["OMP_NUM_THREADS"] = THREADS

    output = arguments.output / FILES[arguments.task]
    origin = provenance.of_program(arguments.onebit, output)
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        peers = peers_of(arguments.peer, directory)
        for case in cases_of(arguments, directory):
            rows += rows_of(case[0], measure(arguments, case, peers), arguments.rounds, origin)
    tables.replace_rows(output, list(rows[0]), rows)
    print(tables.aligned([*case[0], "layers", "step / s", "forward / s", "backward / s", "update / s",
                          "times as fast as fp32"],
                         [[*(str(row[name]) for name in case[0]), row["layers"], *(row[phase] for phase in PHASES),
                           row["times_as_fast_as_fp32"]] for row in rows]))


if __name__ == "__main__":
    main()
