#!/usr/bin/env python3
"""Times products of signs beside the same products in float on one core, as table 4 of "1-Bit FQT".

`onebit bench kernels` runs with one thread; what it measures besides these products is small here and left out. The
rows go to docs/results/quantized_training/products.csv, or to --output, with the commit and the machine
(ONEBIT_MACHINE, in words); rows of other machines stay. Then it prints each shape beside float and the paper's times.
--report prints this for a file that exists.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from lib import ROOT, launch, provenance
from lib.tables import markdown, read_csv, replace_rows, rows_by_machine

OUTPUT = ROOT / "docs/results/quantized_training/products.csv"
KERNELS = ("binary_product", "average_1_bit_product", "binary_product_with_packing", "fp32_product")
# Milliseconds of table 4 on one core of another processor: with 1 bit, and with an average of 1 bit.
PAPER = {"512x512x512": (8.01, 8.40), "512x1024x512": (14.54, 15.92), "1024x512x512": (15.91, 16.61),
         "1024x1024x512": (29.79, 31.03), "2048x512x512": (29.92, 32.22), "2048x1024x512": (59.94, 61.33)}
SETTINGS = {"bench.smallest": 1 << 18, "bench.largest": 1 << 22, "bench.repetitions": 9, "model.preset": "tiny",
            "model.vocabulary": 1024, "model.sequence": 64}


def measure(arguments):
    origin = {**provenance.of_program(arguments.onebit, arguments.output), "runs": 1}
    with tempfile.TemporaryDirectory() as directory:
        command = [arguments.onebit, "bench", "kernels", ROOT / "inputs/bench_kernels.yaml",
                   *launch.overrides({**SETTINGS, "run.output": directory})]
        subprocess.run(list(map(str, command)), check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        return [{**row, **origin} for row in read_csv(pathlib.Path(directory) / "kernels.csv")
                if row["kernel"] in KERNELS]


def report(rows):
    times = {(row["kernel"], row["shape"]): 1e3 * float(row["median_s"]) for row in rows}

    def text(kernel, shape, over=None):
        if (kernel, shape) not in times:
            return ""
        return f"{over / times[kernel, shape]:.1f}" if over else f"{times[kernel, shape]:.3f}"

    lines = []
    for shape in dict.fromkeys(row["shape"] for row in rows):
        in_float = times.get(("fp32_product", shape))
        signs, average = PAPER.get(shape, (None, None))
        lines.append([shape.replace("x", " × "), text("fp32_product", shape), text("binary_product", shape),
                      text("average_1_bit_product", shape),
                      text("binary_product", shape, in_float) if in_float else "",
                      text("binary_product_with_packing", shape, in_float) if in_float else "",
                      signs or "", text("binary_product", shape, signs) if signs else "",
                      average or "", text("average_1_bit_product", shape, average) if average else ""])
    return markdown(["m × n × k", "float / ms", "signs / ms", "average of 1 bit / ms", "signs over float",
                     "with packing of both factors", "paper, signs / ms", "over it", "paper, average / ms", "over it"],
                    lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onebit", type=launch.program, default=launch.ONEBIT)
    parser.add_argument("--output", type=pathlib.Path, default=OUTPUT)
    parser.add_argument("--report", action="store_true", help="measure nothing")
    arguments = parser.parse_args()
    if not arguments.report:
        measured = measure(arguments)
        replace_rows(arguments.output, list(measured[0]), measured)
    for machine, rows in rows_by_machine(arguments.output).items():
        print(f"{machine}:\n\n{report(rows)}\n")


if __name__ == "__main__":
    main()
