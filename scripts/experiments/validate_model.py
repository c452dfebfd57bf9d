#!/usr/bin/env python3
"""Compares scripts/predict.py with the 1-bit Adam paper and with measurements in the network laboratory.

The paper (docs/results/paper/*.csv): for each of its two clusters two numbers are fitted, the bandwidth of a host's
link on the allreduce of 64 GPUs (batch 16, no accumulation) and the bandwidth inside a host on the allreduce of one
host. All other rows of Table 1 and all figures are predicted with them. Nothing is fitted on the figures.

LABORATORY.csv: rows of validation.py or figure9.py. A row is fitted on where its hosts are the fewest or most, its rate
the lowest or highest, and its vector the shortest or longest. All others are held out and predicted.

Prints Markdown, or writes it; beside PAGE.md, PAGE.csv has the held-out rows.
"""

import argparse
import pathlib
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from lib import ROOT, launch, program_name, provenance, tables
from lib.predict import inputs, report

PAPER = ROOT / "docs/results/paper"
NETWORKS = {"ethernet": 4.1, "infiniband": 100.0}  # the paper's own bandwidths of a link, Gbit/s
LIMIT = 0.25  # of the paper's numbers
# Of PAGE.csv. `git` is the commit of this checkout, as its program names it.
TABLE = ["collective", "hosts", "ranks", "rate", "parameters", "measured_s", "predicted_s", "repetitions",
         "measured_git", "machine", "git"]


def prediction_of(input_file, **settings):
    """What scripts/predict.py would predict. Settings are keys of section `predict`."""
    try:
        return report.Prediction(inputs.read_input(
            input_file, [f"predict.{key}={value}" for key, value in settings.items()]))
    except inputs.InputError as error:
        raise SystemExit(f"{program_name()}: {error}") from None


def predict(input_file, **settings):
    """Rows of predict.csv with numbers as numbers."""
    return with_numbers(report.texts(prediction_of(input_file, **settings).steps))


def number_or_text(text):
    try:
        return float(text)
    except ValueError:
        return text


def with_numbers(rows):
    """Rows of a CSV file, whose cells are numbers where they can be."""
    return [{key: value if key in provenance.COLUMNS else number_or_text(value) for key, value in row.items()}
            for row in rows]


def read(path):
    return with_numbers(tables.read_csv(path))


def one(rows, **wanted):
    found = [row for row in rows if all(row[k] == v for k, v in wanted.items())]
    assert len(found) == 1, (wanted, len(found))
    return found[0]


def solve(function, target, low, high):
    """x in [low, high] for which the falling function is `target`."""
    for _ in range(40):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if function(middle) > target else (low, middle)
        if high / low < 1.0005:
            break
    return (low * high) ** 0.5


def percent(predicted, measured):
    return f"{100 * (predicted / measured - 1):+.0f} %"


def input_of(network):
    return ROOT / f"inputs/predict/paper_{network}.yaml"


def fit_table1(rows, network, paper_gbit):
    """Fits a cluster's two bandwidths and predicts its rows of Table 1. Returns ({key: fitted value}, lines)."""
    rows = [row for row in rows if row["network"] == network]
    alone, large = one(rows, hosts=1), one(rows, gpus=64, batch_per_gpu=16, accumulation=1)

    def allreduce_ms(gpus, link, inside):
        return 1e3 * predict(input_of(network), ranks=f"[{gpus:.0f}]", bandwidths_gbit_per_s=f"[{link}]",
                             inside_bandwidth_gbyte_per_s=inside, collectives="[ring]")[0]["allreduce_s"]

    inside = solve(lambda x: allreduce_ms(alone["gpus"], 1, x), alone["allreduce_ms"], 0.1, 1000)
    link = solve(lambda x: allreduce_ms(64, x, inside), large["allreduce_ms"], 0.1, 1000)
    lines = []
    for row in rows:
        predicted, measured = allreduce_ms(row["gpus"], link, inside), row["allreduce_ms"]
        own = allreduce_ms(row["gpus"], paper_gbit, inside)
        use = "fitted" if row in (alone, large) else "held out"
        if use == "held out" and abs(predicted / measured - 1) > LIMIT:
            use += ", **missed**"
        lines.append([network, f"{row['gpus']:.0f}", f"{row['hosts']:.0f}",
                      f"{row['batch_per_gpu']:.0f} × {row['accumulation']:.0f}", f"{measured:.0f}", f"{predicted:.0f}",
                      percent(predicted, measured), use, "" if row is alone else percent(own, measured)])
    return {"bandwidths_gbit_per_s": f"[{link:.4g}]", "inside_bandwidth_gbyte_per_s": f"{inside:.4g}"}, lines


def speedup(rows, ranks, gbit=None):
    """The fastest dense step over the compressed one, at one of the rows' bandwidths."""
    rows = [row for row in rows if gbit is None or abs(row["link_bit_per_s"] / 1e9 / gbit - 1) < 1e-6]
    dense, sign = (one(rows, ranks=ranks, collective=c) for c in ("ring", "compressed"))
    return dense["step_s"] / sign["step_s"]


def figures_4_5_9(table, fitted, shaped):
    """Lines that compare the paper's figures with predictions; `shaped` is predicted for 256 ranks at three rates."""
    figures = {row["name"]: row for row in read(PAPER / "figures.csv")}
    ethernet, lines = input_of("ethernet"), []

    def compare(name, what, predicted, form="{:.2f}"):
        paper_value = figures[name]["value"]
        missed = "" if abs(predicted / paper_value - 1) <= LIMIT else "**missed**"
        lines.append([what, form.format(paper_value), form.format(predicted), percent(predicted, paper_value), missed])

    for name, gbit in (("speedup_50mbit", 0.05), ("speedup_1gbit", 1), ("speedup_2gbit", 2)):
        compare(name, f"Fig. 9: speed-up on 256 GPUs at {gbit:g} Gbit/s", speedup(shaped, 256, gbit))
    best = max(speedup(predict(ethernet, **fitted), n) for n in (8, 16, 32, 64, 128, 256))
    compare("speedup_pretraining", "Fig. 5(a): highest speed-up", best)

    # 96 samples of 384 tokens on 32 GPUs: 1152 tokens each, between Table 1's 128 and 2048.
    compute = one(table, network="ethernet", gpus=64, batch_per_gpu=16, accumulation=1)
    small = one(table, network="ethernet", gpus=64, batch_per_gpu=1)
    share = (1152 - 128) / (2048 - 128)
    squad = predict(ethernet, **fitted, **{key: small[key] + share * (compute[key] - small[key])
                                           for key in ("forward_ms", "backward_ms")})
    compare("speedup_squad", "Fig. 5(c): highest speed-up, SQuAD (computing time interpolated by tokens from Table 1)",
            max(speedup(squad, n) for n in (8, 16, 32)))

    # A batch of 4096, accumulated.
    step_s = {"ring": {}, "compressed": {}}
    for n in (4, 8, 16, 32, 64, 128, 256):
        rounds = 4096 / 16 / n
        rows = predict(ethernet, ranks=f"[{n}]", forward_ms=rounds * compute["forward_ms"],
                       backward_ms=rounds * compute["backward_ms"], **fitted)
        for collective, of_ranks in step_s.items():
            of_ranks[n] = one(rows, collective=collective)["step_s"]
    compare("adam_peak", "Fig. 5(b): Adam's throughput peaks at", min(step_s["ring"], key=step_s["ring"].get), "{:.0f}")
    compare("onebit_adam_grows_to", "Fig. 5(b): 1-bit Adam's throughput grows up to",
            min(step_s["compressed"], key=step_s["compressed"].get), "{:.0f}")
    dense, sign = step_s["ring"][64], step_s["compressed"][64]
    compare("adam_hours", "Fig. 4(b): hours of Adam", 152e3 * dense / 3600, "{:.1f}")
    compare("onebit_adam_hours", "Fig. 4(b): hours of 1-bit Adam", (23e3 * dense + 129e3 * sign) / 3600, "{:.1f}")
    return lines


def paper():
    """Paragraphs of the page."""
    table = read(PAPER / "table1.csv")
    fitted, lines = {}, []
    for network, paper_gbit in NETWORKS.items():
        fitted[network], more = fit_table1(table, network, paper_gbit)
        lines += more
    held = [line for line in lines if line[7] != "fitted"]
    inside = {network: fitted[network]["inside_bandwidth_gbyte_per_s"] for network in NETWORKS}
    shaped = predict(input_of("ethernet"), ranks="[256]", bandwidths_gbit_per_s="[0.05, 1, 2]",
                     inside_bandwidth_gbyte_per_s=inside["ethernet"])
    resnet = predict(input_of("infiniband"), ranks="[8, 16, 32, 64]", parameters="60.2e6",
                     bandwidths_gbit_per_s="[1, 10]", inside_bandwidth_gbyte_per_s=inside["infiniband"])
    collectives = ("ring", "tree", "hierarchical", "compressed", "hierarchical_compressed")
    return [
        "## The paper (Tang et al., ICML 2021)",
        "### Table 1: allreduce of BERT-Large",
        "Fitted: Ethernet {} Gbit/s a link and {} GB/s inside a host, InfiniBand {} Gbit/s and {} GB/s.".format(
            *(value.strip("[]") for of_network in fitted.values() for value in of_network.values())),
        tables.markdown(["network", "GPUs", "hosts", "batch", "paper ms", "predicted ms", "error", "row",
                         "error with the paper's bandwidth (4.1, 100 Gbit/s), nothing fitted"], lines),
        f"{sum('missed' not in line[7] for line in held)} of {len(held)} held-out rows are within 25 %.",
        "### Figures 4, 5 and 9, nothing fitted on them",
        tables.markdown(["what", "paper", "predicted", "error", ""],
                        figures_4_5_9(table, fitted["ethernet"], shaped)),
        "### Figure 7: ResNet-152 on hosts of 8 GPUs, in words",
        "The paper: compression \"could potentially speed up the training especially when the bandwidth is limited\". "
        "Its computing times are not given; with Table 1's as a stand-in, and the 60.2 million parameters of "
        "ResNet-152:",
        tables.markdown(["GPUs", "speed-up at 1 Gbit/s", "at 10 Gbit/s"],
                        [[n, *(f"{speedup(resnet, n, gbit):.2f}" for gbit in (1, 10))] for n in (8, 16, 32, 64)]),
        "### The same networks with other collectives: seconds of an average over 256 ranks",
        tables.markdown(["Gbit/s", *collectives], [
            [f"{gbit:g}", *(f"{one(shaped, collective=name, link_bit_per_s=gbit * 1e9)['call_s']:.2f}"
                            for name in collectives)] for gbit in (0.05, 1, 2)])]


def split(rows):
    """(rows at the ends of hosts, rates and lengths, which are fitted on; all others)."""
    bits = {row["rate"]: row["link_bit_per_s"] for row in rows}
    ends = {key: (min(row[key] for row in rows), max(row[key] for row in rows)) for key in ("hosts", "parameters")}
    ends["rate"] = (min(bits, key=bits.get), max(bits, key=bits.get))
    fit = [row for row in rows if all(row[key] in ends[key] for key in ends)]
    return fit, [row for row in rows if row not in fit]


def predict_held_out(fit, held, scratch):
    """(pairs of a held-out row and its predicted seconds, rows of the last fit.csv). Writes into the directory
    `scratch`."""
    tables.write_csv(scratch / "fit_rows.csv", [
        {key: int(value) if isinstance(value, float) and value.is_integer() else value for key, value in row.items()}
        for row in fit])
    (scratch / "laboratory.yaml").write_text("predict: {collectives: [ring], simulate_up_to: 0}\n")
    known, pairs, fits = {}, [], []
    for row in held:
        setting = {"parameters": row["parameters"], "ranks": f"[{row['ranks']:.0f}]",
                   "ranks_per_host": int(row["ranks"] / row["hosts"]),
                   "bandwidths_gbit_per_s": f"[{row['link_bit_per_s'] / 1e9}]",
                   "measurements": f"[{scratch / 'fit_rows.csv'}]",
                   "shared_cores": int(row.get("shared_cores", 0) or 0), "burst_kbyte": row.get("burst_bytes", 0) / 1e3}
        key = str(setting)
        if key not in known:
            prediction = prediction_of(scratch / "laboratory.yaml", **setting)
            known[key], fits = (with_numbers(report.texts(rows)) for rows in (prediction.steps, prediction.fits))
        found = [r for r in known[key] if r["collective"] == row["collective"] and r["numbers"] == "measured"]
        if found:  # its collective was measured where fits are made
            pairs.append((row, found[0]["call_s"]))
    return pairs, fits


def error_of(row, predicted):
    return predicted / row["p50_s"] - 1


def laboratory(paths):
    """(paragraphs of the page, pairs of a held-out row and its predicted seconds)"""
    fit, held = split([row for path in paths for row in read(path) if row["ranks"] > 1])
    parts = ["## The network laboratory"]
    if not fit or not held:
        parts.append("These rows cannot be split into fitted and held-out ones: measure more hosts, rates or lengths.")
        return parts, []
    with tempfile.TemporaryDirectory(prefix="onebit-validate.") as scratch:
        pairs, fits = predict_held_out(fit, held, pathlib.Path(scratch))
    errors = {}
    for row, predicted in pairs:
        errors.setdefault(row["collective"], []).append(abs(error_of(row, predicted)))
    everything = [error for some in errors.values() for error in some]
    count = len({(row["hosts"], row["rate"], row["parameters"]) for row in held})
    parts += [
        "Fits of `scripts/predict.py` on the rows at the ends:",
        tables.markdown(["collective", "rows", "α µs", "share of line rate", "median residual", "largest"], [
            [row["collective"], f"{row['rows']:.0f}", f"{1e6 * row['latency_s']:.0f}", f"{row['line_rate_share']:.3f}",
             tables.percent(row["median_error"], 1), tables.percent(row["largest_error"], 1)]
            for row in fits]),
        f"Held out: {count} configurations (hosts × rate × parameters), {len(everything)} rows. Median error "
        f"**{tables.percent(statistics.median(everything), 1)}**, largest {tables.percent(max(everything))}.",
        tables.markdown(["collective", "rows", "median error", "largest"], [
            [name, len(some), tables.percent(statistics.median(some), 1), tables.percent(max(some))]
            for name, some in errors.items()]),
        tables.markdown(
            ["collective", "hosts", "ranks", "rate", "million parameters", "measured s", "predicted s", "error"], [
                [row["collective"], f"{row['hosts']:.0f}", f"{row['ranks']:.0f}", row["rate"],
                 f"{row['parameters'] / 1e6:g}", f"{row['p50_s']:.4f}", f"{predicted:.4f}",
                 percent(predicted, row["p50_s"])] for row, predicted in pairs])]
    return parts, pairs


def kept_row(row, predicted, version):
    """A row of PAGE.csv; machine and repetitions are of what was measured."""
    return {**{key: f"{row[key]:.0f}" for key in ("parameters", "ranks", "hosts", "repetitions")},
            "collective": row["collective"], "rate": row["rate"], "measured_s": row["p50_s"], "predicted_s": predicted,
            "measured_git": row.get("git", ""), "machine": row.get("machine", ""), "git": version}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onebit", type=launch.program, default=launch.ONEBIT, metavar="PROGRAM",
                        help="the program of this checkout, whose commit the rows name")
    parser.add_argument("--output", type=pathlib.Path, metavar="PAGE.md")
    parser.add_argument("laboratory", nargs="*", metavar="LABORATORY.csv")
    arguments = parser.parse_args()
    parts = ["# Predicted and measured", "<!-- Made by scripts/experiments/validate_model.py. -->", *paper()]
    if arguments.laboratory:
        more, pairs = laboratory(arguments.laboratory)
        parts += more
        if arguments.output and pairs:
            path = arguments.output.with_suffix(".csv")
            version = provenance.program_version(arguments.onebit, path)
            tables.write_csv(path, [kept_row(*pair, version) for pair in pairs], TABLE)
    text = tables.page(parts)
    if arguments.output:
        arguments.output.write_text(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
