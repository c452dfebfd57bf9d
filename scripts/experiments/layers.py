#!/usr/bin/env python3
"""Times 1-bit layers of VGG-16, ResNet-18 and BERT-Base beside float and 8 bits on one core, as table 2 of "1-Bit FQT".

`onebit bench layers inputs/bench_layers.yaml` runs with one thread; the kernels of a layer take turns in it. Its rows
go to layers.csv in docs/results/quantized_training, or in --output, with the commit and the machine (ONEBIT_MACHINE, in
words); rows of other machines stay. The passes of fqt_layer go to layer_passes.csv. Then it prints for each network and
size how many times faster all layers are together (the sum of medians, a shape as often as the network has it), the
layer that gains least, and the share of each pass, without the first convolution, which the paper keeps in float.
--report prints this for files that exist.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from lib import ROOT, launch, provenance
from lib.tables import markdown, number, percent, read_csv, replace_rows, rows_by_machine

OUTPUT = ROOT / "docs/results/quantized_training"
INPUT = ROOT / "inputs/bench_layers.yaml"
# The paper's table 2: speed-up over PyTorch in float on one core of a Hygon processor.
PAPER = {("vgg16", 32): 5.13, ("vgg16", 64): 3.71, ("vgg16", 128): 3.38, ("vgg16", 224): 2.73,
         ("resnet18", 32): 2.93, ("resnet18", 64): 2.88, ("resnet18", 128): 2.62, ("resnet18", 224): 2.15}
FIRST = {"vgg16": "conv1_1", "resnet18": "conv1"}


def measure(arguments):
    """The rows of layers.csv and of passes.csv with their origin.

    Of the passes, those of fqt_layer, for the smallest images and for texts.
    """
    origin = {**provenance.of_program(arguments.onebit, arguments.output), "runs": 1}
    with tempfile.TemporaryDirectory() as directory:
        command = [arguments.onebit, "bench", "layers", INPUT,
                   *launch.overrides([f"run.output={directory}", *arguments.set])]
        subprocess.run(list(map(str, command)), check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        layers, passes = ([{**row, **origin} for row in read_csv(pathlib.Path(directory) / name)]
                          for name in ("layers.csv", "passes.csv"))
    smallest = min((int(row["pixels"]) for row in passes if row["pixels"] != "0"), default=0)
    return layers, [row for row in passes if row["kernel"] == "fqt_layer" and int(row["pixels"]) in (0, smallest)]


def report_passes(rows):
    """A table: a row for each pass with its share of all layers of a network, if it is at least 1 % somewhere."""
    networks = list(dict.fromkeys((row["network"], row["pixels"]) for row in rows))
    seconds = {}
    for row in rows:
        if row["layer"] != FIRST.get(row["network"]):
            key = (row["region"].replace("nn::binary_", "").replace("_", " "), row["pass"])
            times = seconds.setdefault(key, dict.fromkeys(networks, 0))
            times[row["network"], row["pixels"]] += (
                number(row["count"]) * number(row["rows"]) / number(row["measured_rows"]) * number(row["median_s"]))
    totals = {network: sum(times[network] for times in seconds.values()) for network in networks}
    shares = {key: [times[network] / totals[network] for network in networks] for key, times in seconds.items()}
    header = ["part", "pass", *(f"{network}, {pixels} pixels" if pixels != "0" else network
                                for network, pixels in networks)]
    return markdown(header, [[part, f"`{name}`", *(percent(share, 1) for share in of_networks)]
                             for (part, name), of_networks in shares.items() if max(of_networks) >= 0.01])


def seconds(rows, kernel, layer):
    """The median of a kernel of a layer, in seconds; None where it was not measured."""
    found = [row for row in rows if row["kernel"] == kernel and row["layer"] == layer]
    return float(found[0]["median_s"]) if found else None


def speed_ups(rows, kernel, other):
    """How many times faster `kernel` is than `other`: of all layers, the least of a layer, and this layer.

    None where `other` was not measured.
    """
    layers = {row["layer"]: float(row["count"]) * float(row["rows"]) / float(row["measured_rows"]) for row in rows
              if row["layer"] != FIRST.get(row["network"])}
    times = {layer: (seconds(rows, kernel, layer), seconds(rows, other, layer)) for layer in layers}
    if any(None in pair for pair in times.values()):
        return None
    mine, others = (sum(count * times[layer][side] for layer, count in layers.items()) for side in (0, 1))
    least = min(times, key=lambda layer: times[layer][1] / times[layer][0])
    return others / mine, times[least][1] / times[least][0], least


def report(rows):
    """A table: a row for each network and size."""
    cases = list(dict.fromkeys((row["network"], int(row["pixels"])) for row in rows))
    lines = []
    for network, pixels in cases:
        of_case = [row for row in rows if (row["network"], int(row["pixels"])) == (network, pixels)]
        line = [network, pixels or ""]
        for other in ("fp32_layer", "bf16_layer", "int8_layer"):
            gain = speed_ups(of_case, "fqt_layer", other)
            line += [f"{gain[0]:.2f}", f"{gain[1]:.2f} ({gain[2]})"] if gain else ["", ""]
        lines.append([*line, f"{speed_ups(of_case, 'fqt_layer', 'scq_layer')[0]:.2f}",
                      PAPER.get((network, pixels), "")])
    return markdown(["network", "pixels", "all layers over fp32", "least of a layer", "over bf16", "least of a layer",
                     "over int8", "least of a layer", "over 1 bit without pruning", "paper, over fp32"], lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onebit", type=launch.program, default=launch.ONEBIT)
    parser.add_argument("--output", type=pathlib.Path, default=OUTPUT, metavar="DIRECTORY")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the input")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    arguments = parser.parse_args()
    if not arguments.report:
        for name, rows in zip(("layers.csv", "layer_passes.csv"), measure(arguments)):
            replace_rows(arguments.output / name, list(rows[0]), rows)
    for name, make in (("layers.csv", report), ("layer_passes.csv", report_passes)):
        for machine, rows in rows_by_machine(arguments.output / name).items():
            print(f"{machine}:\n\n{make(rows)}\n")


if __name__ == "__main__":
    main()
