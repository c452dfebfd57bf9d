#!/usr/bin/env python3
"""How long does a step of training take on 4 to 256 ranks of a simulated network?

`onebit train` runs under SimGrid's SMPI (lib/smpi.py): a small GPT really trains, and its messages cross a simulated
network. Computing a gradient takes a given time, other work none.

Writes PAGE.csv beside PAGE.md. Needs build/smpi/onebit_smpi (scripts/setup.sh --smpi; cmake --preset smpi;
cmake --build --preset smpi).
"""

import argparse
import itertools
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from lib import ROOT, launch, smpi, tables
from lib.predict import model

INPUT = "inputs/gpt_small.yaml"
RANKS = (4, 16, 64, 256)
PLATFORM = smpi.Platform("flat", 1, 1e9, 20e-6, 2e-6)
COMPUTING_S = 0.005
SETTINGS = {"train.steps": 6, "train.batch": 256, "train.validate_every": 0, "schedule.warmup_steps": 0,
            "schedule.decay": "constant", "freeze.step": 3, "run.check_replicas_every": 0,
            "workload.compute_time_ms": 1000 * COMPUTING_S}
# Of the model: its parameters, those of them in vectors, the elements of its largest matrix and of the shortest row.
PARAMETERS, IN_VECTORS, LARGEST, SHORTEST_ROW = 106_176, 1_792, 16_384, 64
SIGNS = model.Width()
DENSE = ("ring", "tree", "rabenseifner", "pairwise")
COLUMNS = ["algorithm", "exchange", "ranks", "step_s", "exchange_s", "agree_s", "bytes_sent", "loss", "runs", "machine",
           "git"]


def dense_s(cluster, elements, machine):
    return min(float(model.total_seconds(form, cluster, elements, model.Width(), machine)) for form in DENSE)


def compressed_s(cluster, elements, machine, width=SIGNS, form="compressed"):
    return float(model.total_seconds(form, cluster, elements, width, machine))


def muon_s(cluster, machine):
    """Vectors travel densely; every row of a matrix has a scale, and a server has whole matrices."""
    width = model.Width(compressed_bits=1 + 32 / SHORTEST_ROW, largest_tensor=LARGEST)
    return (dense_s(cluster, IN_VECTORS, machine)
            + compressed_s(cluster, PARAMETERS - IN_VECTORS, machine, width))


# Of each algorithm and comm.exchange, its name for people and what the model of predictions says of a step's exchange.
CASES = {
    ("adam", "collective"): ("Adam", lambda cluster, machine: dense_s(cluster, PARAMETERS, machine)),
    ("onebit_adam", "collective"): ("1-bit Adam", lambda cluster, machine: compressed_s(cluster, PARAMETERS, machine)),
    ("onebit_adam", "grid"): ("1-bit Adam on a grid", lambda cluster, machine: compressed_s(
        cluster, PARAMETERS, machine, form="grid_compressed")),
    ("onebit_muon", "collective"): ("1-bit Muon", muon_s),
}


def case_of(row):
    return CASES[row["algorithm"], row["exchange"]]


def simulated(program, algorithm, exchange, ranks):
    """The last step of a training. Dense steps send as many bytes as there are parameters."""
    step = smpi.train(program, PLATFORM, ranks, INPUT,
                      {"optimizer.algorithm": algorithm, "comm.exchange": exchange, **SETTINGS})[-1]
    if algorithm == "adam" and float(step["bytes_sent"]) != 2 * 4 * PARAMETERS * (ranks - 1) // ranks:
        sys.exit(f"simulated_training: {INPUT} has not the {PARAMETERS} parameters that predictions are made with")
    seconds, agreement = float(step["step_s"]), float(step["agree_s"])
    return {"algorithm": algorithm, "exchange": exchange, "ranks": ranks, "step_s": f"{seconds:.6g}",
            "exchange_s": f"{seconds - agreement - COMPUTING_S:.6g}", "agree_s": f"{agreement:.6g}",
            "bytes_sent": step["bytes_sent"], "loss": step["loss"], "runs": 1}


def predicted_s(row):
    ranks = int(row["ranks"])
    return case_of(row)[1](model.Cluster(ranks, 1), PLATFORM.machine(ranks))


def error_of(row):
    return predicted_s(row) / float(row["exchange_s"]) - 1


def page(rows):
    errors = sorted(map(error_of, rows), key=abs)
    lines = [[case_of(row)[0], row["ranks"], f"{1000 * float(row['step_s']):.3g}",
              f"{1000 * float(row['exchange_s']):.3g}", f"{1000 * predicted_s(row):.3g}",
              f"{100 * error_of(row):+.0f} %", f"{1000 * float(row['agree_s']):.3g}",
              tables.with_unit(float(row["bytes_sent"])), f"{float(row['loss']):.4f}"] for row in rows]
    return tables.page([
        "# Training, simulated",
        "<!-- Made by scripts/experiments/simulated_training.py. -->",
        f"How long does a step of training take on {RANKS[0]} to {RANKS[-1]} ranks, and do predictions of it hold? "
        f"`onebit train` ran under SimGrid's SMPI: the small GPT of `{INPUT}` trained with "
        f"{SETTINGS['train.batch']} samples a step, and its messages crossed a simulated network. Nothing here was "
        "measured on a network.",
        f"Each host has one rank and a link of {PLATFORM.bit_per_s / 1e9:g} Gbit/s to a switch that never blocks. A "
        f"message has a latency of {PLATFORM.latency_s * 1e6:g} µs, and an overhead of "
        f"{PLATFORM.overhead_s * 1e6:g} µs at its sender and at its receiver. A gradient takes "
        f"{1000 * COMPUTING_S:g} ms, which `workload.compute_time_ms` sets; other work takes no time. The library "
        "takes the algorithms that Open MPI takes. Step "
        f"{SETTINGS['train.steps']} of each run, in ms:",
        tables.markdown(["algorithm", "ranks", "step", "exchange", "predicted", "error", "agreement", "sent",
                         "loss"], lines),
        "The exchange is all of a step but the gradient and the agreement of the ranks on its loss and its norm. "
        "1-bit Muon's exchange averages vectors in float and matrices with one bit, and moves averages to the servers "
        "of whole matrices where these are few. The predictions are `scripts/predict.py`'s closed forms with nothing "
        f"fitted: {tables.percent(statistics.median(map(abs, errors)))} off in the median, and "
        f"{100 * errors[-1]:+.0f} % at worst.",
        "Adam's losses do not depend on the ranks. Those of one bit do, because each rank compresses what it has; "
        "[convergence](convergence/ranks.md) has whole runs. On [a grid of ranks]"
        "(../reference/algorithms/averages.md#on-a-grid-of-ranks) losses are the same to the last digit.",
        "One thread overlaps nothing, so that averages begin after the backward pass. More ranks need more than 24 GB: "
        "each has the program, its state and the text of its own.",
        "`scripts/setup.sh --smpi; cmake --preset smpi; cmake --build --preset smpi; "
        "scripts/experiments/simulated_training.py` makes this page and [simulated_training.csv]"
        "(simulated_training.csv) ([columns](../reference/output/results.md)).",
    ])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=launch.program, default=smpi.PROGRAM, metavar="PROGRAM",
                        help="default: build/smpi/onebit_smpi")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "docs/results/simulated_training.md",
                        metavar="PAGE.md", help="default: docs/results/simulated_training.md")
    parser.add_argument("--draw-only", action="store_true", help="make the page from the CSV file")
    arguments = parser.parse_args()
    path = arguments.output.with_suffix(".csv")
    if not arguments.draw_only:
        origin = smpi.origin_of(arguments.program, arguments.output)
        rows = []
        for case, ranks in itertools.product(CASES, RANKS):
            rows.append({**simulated(arguments.program, *case, ranks), **origin})
            print(f"simulated_training: {', '.join(case)}, {ranks} ranks: {rows[-1]['step_s']} s", flush=True)
        of_bits = {(row["algorithm"], row["ranks"], row["loss"]) for row in rows}
        if len(of_bits) != len({row[:2] for row in of_bits}):
            sys.exit("simulated_training: another comm.exchange led to another loss")
        tables.write_csv(path, rows, COLUMNS)
    arguments.output.write_text(page(tables.read_csv(path)))


if __name__ == "__main__":
    try:
        main()
    except smpi.Failed as error:
        sys.exit(f"simulated_training: {error}")
