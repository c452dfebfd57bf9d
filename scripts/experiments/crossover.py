#!/usr/bin/env python3
"""Below which bandwidth does each method beat a 16-bit average that overlaps with the backward pass?

scripts/predict.py answers for BERT-Base and BERT-Large at 8 to 1024 ranks (inputs/predict/crossover_*.yaml). A method
is how many bits it sends for an element, how often, whether its exchange overlaps, and what its servers do. Each takes
its best collective.
Writes PAGE.md and PAGE.csv beside it.
"""

import argparse
import math
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from validate_model import prediction_of, with_numbers

from lib import ROOT, launch, provenance, tables
from lib.predict import report

# A model's input, and its hidden size.
MODELS = {
    "BERT-Base": ("inputs/predict/crossover_bert_base.yaml", 768),
    "BERT-Large": ("inputs/predict/crossover_bert_large.yaml", 1024),
}
# Operations a second of the passes of both inputs: 6 for each of the layers' parameters and of 2048 tokens.
OPERATIONS_PER_S = 38.5e12
# Of Newton–Schulz, for each element of a layer: five iterations of 4 D K s + 2 s³ for matrices D × K, s the smaller
# side, four of which are h × h and two h × 4 h.
ITERATIONS = 5


def muon(hidden):
    """1-bit Muon's servers. Only a flat average has servers of tensors."""
    operations = ITERATIONS * (4 * 6 + 2 * 18) * hidden**3 / (12 * hidden**2)
    return {"server_ns": 1e9 * operations / OPERATIONS_PER_S, "largest_tensor": 4 * hidden**2,
            "collectives": "[ring, rabenseifner, hierarchical, grid_bf16, pairwise_bf16, hierarchical_bf16, "
                           "compressed, grid_compressed, pairwise_compressed]"}


METHODS = {  # settings for a hidden size
    "1-bit Adam": lambda hidden: {},
    "1-bit Adam, overlapped": lambda hidden: {"compressed_buckets": 32},
    "4 bits, overlapped": lambda hidden: {"compressed_bits": 4, "compressed_buckets": 32},
    "0/1 Adam, every 4th step": lambda hidden: {"steps_per_exchange": 4},
    "one bit, every 16th step": lambda hidden: {"steps_per_exchange": 16},
    "1-bit Muon": muon,
}
COLUMNS = ["model", "method", "ranks", "hosts", "parameters", "bits", "steps_per_exchange", "collective",
           "pays_below_bit_per_s", "least_bit_per_s", "greatest_bit_per_s", "runs", "machine", "git"]


def best_of(rows):
    """For each rank count the row of the collective that pays up to the highest rate."""
    best = {}
    for row in rows:
        if row["pays_below_bit_per_s"] >= best.get(row["ranks"], {"pays_below_bit_per_s": -1})["pays_below_bit_per_s"]:
            best[row["ranks"]] = row
    return best.values()


def rows_of(origin):
    """A row for each model, method and rank count."""
    for model, (path, hidden) in MODELS.items():
        for method, settings in METHODS.items():
            prediction = prediction_of(ROOT / path, **settings(hidden))
            for row in best_of(with_numbers(report.texts(prediction.limits))):
                yield {**{key: row.get(key, "") for key in COLUMNS}, "model": model, "method": method, "runs": 1,
                       **{key: f"{row[key]:.0f}" for key in ("ranks", "hosts", "parameters", "bits",
                                                             "steps_per_exchange")}, **origin}


def rate(bits_per_second):
    if bits_per_second == 0:
        return "never"
    if math.isinf(bits_per_second):
        return "always"
    return f"{bits_per_second / 1e9:.3g}"


def page(rows):
    parts = [
        "# Where compression begins to pay",
        "<!-- Made by scripts/experiments/crossover.py. -->",
        "Below the line rates of these tables a step of the method is at least 5 % shorter than one with 16-bit "
        "gradients. The 16-bit average is the fastest of a ring, halving and doubling, a hierarchical, two direct "
        "averages and one on a grid of ranks, in the number of buckets that suits it best, and it overlaps with the "
        "backward pass. Rates are of a host's link, in Gbit/s; hosts have 4 GPUs. In brackets: every average of the "
        "method takes 10 % longer and every 16-bit one 10 % less time, and the other way round. "
        "[prediction.md](prediction.md) says how far predictions are from measurements. Half of the laboratory's "
        "predictions were farther off than 10 %, up to 36 %, and none was above 4 hosts or 1 Gbit/s. The brackets are "
        "no error bars. \"never\" means at no rate.",
        "Predicted by `scripts/predict.py` from closed forms ([the model](../reference/prediction/model.md)); nothing "
        "here was measured on a GPU. A step counts after the variance is frozen; the steps before it are those of the "
        "16-bit average. The tables compare steps, and say nothing about how many steps a method needs. The step's "
        "own times are those of a V100 with 16 sequences of 128 tokens. Where bandwidth limits a step, halving its "
        "computing time doubles the limits, and accumulating four batches divides them by four.",
        "1-bit Muon's servers orthogonalise at the rate of the passes, after the backward pass and before signs come "
        "back; the 16-bit step is Adam's, which does not. A matrix has one server, so from 93 ranks on in BERT-Base "
        "and 160 in BERT-Large averages move to their servers in float, and back. The 4 % of 1-bit Muon's bytes that "
        "are scales of rows do not count."]
    for model, (path, _) in MODELS.items():
        own = [row for row in rows if row["model"] == model]
        ranks = sorted({int(row["ranks"]) for row in own})
        lines = []
        for method in METHODS:
            cells = {int(row["ranks"]): row for row in own if row["method"] == method}
            lines.append([method] + [
                f"{rate(float(cells[n]['pays_below_bit_per_s']))} ({rate(float(cells[n]['least_bit_per_s']))} – "
                f"{rate(float(cells[n]['greatest_bit_per_s']))})" for n in ranks])
        parts += [f"## {model}, {float(own[0]['parameters']) / 1e6:.4g} million parameters",
                  f"`scripts/predict.py {path}`; Gbit/s over ranks.",
                  tables.markdown(["method", *map(str, ranks)], lines)]
    parts += ["`scripts/predict.py` prints such a table for any input and writes it to `pays_below.csv`: set the times "
              "of your step, your hosts and your ranks, and measure with `onebit bench collective` "
              "([how](../reference/prediction.md#for-your-network))."]
    return tables.page(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onebit", type=launch.program, default=launch.ONEBIT, metavar="PROGRAM",
                        help="the program of this checkout, whose commit the rows name")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "docs/results/crossover.md", metavar="PAGE.md",
                        help="default: docs/results/crossover.md")
    parser.add_argument("--draw-only", action="store_true", help="make the page from the CSV file")
    arguments = parser.parse_args()
    path = arguments.output.with_suffix(".csv")
    if not arguments.draw_only:
        origin = provenance.of_program(arguments.onebit, path)
        tables.write_csv(path, list(rows_of(origin)), COLUMNS)
    arguments.output.write_text(page(tables.read_csv(path)))


if __name__ == "__main__":
    main()
