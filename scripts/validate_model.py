#!/usr/bin/env python3
"""Compares `onebit predict` with the 1-bit Adam paper and with measurements in the network laboratory.

Usage: validate_model.py [--onebit PROGRAM] [--output PAGE.md] [LABORATORY.csv …]

The paper (docs/results/paper/*.csv): for each of its two clusters two numbers are fitted, the bandwidth of a host's link on
the allreduce of 64 GPUs (batch 16, no accumulation) and the bandwidth inside a host on the allreduce of one host. All
other rows of Table 1 and all figures are predicted with them; nothing is fitted on the figures.

LABORATORY.csv: rows of scripts/netlab/validation.py or figure9.py. A row is fitted on where its hosts are the fewest or
most, its rate the lowest or highest, and its vector the shortest or longest; all others are held out and predicted.

Prints Markdown, or writes it; beside PAGE.md, PAGE.csv has the held-out rows.
"""

import argparse
import csv
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import results  # noqa: E402

PAPER = ROOT / "docs/results/paper"
LIMIT = 0.25  # of the paper's numbers
# Of PAGE.csv. `git` is of the program that predicted.
TABLE = ["collective", "hosts", "ranks", "rate", "parameters", "measured_s", "predicted_s", "repetitions", "measured_git",
         "machine", "git"]


class Predict:
    """Runs the program."""

    def __init__(self, program):
        self.program = program
        self.scratch = tempfile.TemporaryDirectory(prefix="onebit-validate.")

    def __call__(self, input_file, **settings):
        """Rows of predict.csv with numbers as numbers. Settings are keys of section `predict`."""
        command = [self.program, "predict", str(input_file), "--set", f"run.output={self.scratch.name}"]
        for key, value in settings.items():
            command += ["--set", f"predict.{key}={value}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"validate_model: {' '.join(command)} failed:\n{done.stderr}")
        with open(pathlib.Path(self.scratch.name) / "predict.csv") as file:
            return [{k: number(v) for k, v in row.items()} for row in csv.DictReader(file)]


def number(text):
    try:
        return float(text)
    except ValueError:
        return text


def read(path):
    return [{k: v if k in results.PROVENANCE else number(v) for k, v in row.items()} for row in results.read_csv(path)]


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


class Page:
    def __init__(self):
        self.lines = []

    def text(self, words):
        self.lines += [words, ""]

    def table(self, header, rows):
        self.lines += ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
        self.lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows] + [""]


def paper(predict, page):
    page.text("## The paper (Tang et al., ICML 2021)")
    table = read(PAPER / "table1.csv")
    fitted, inputs = {}, {}
    lines = []
    for network, paper_gbit in (("ethernet", 4.1), ("infiniband", 100.0)):
        inputs[network] = ROOT / f"inputs/predict/paper_{network}.yaml"
        mine = [row for row in table if row["network"] == network]
        alone = one(mine, hosts=1)
        large = one(mine, gpus=64, batch_per_gpu=16, accumulation=1)

        def allreduce(gpus, link, inside):
            return 1e3 * predict(inputs[network], ranks=f"[{gpus:.0f}]", bandwidths_gbit_per_s=f"[{link}]",
                                 inside_bandwidth_gbyte_per_s=inside, collectives="[ring]")[0]["allreduce_s"]

        inside = solve(lambda x: allreduce(alone["gpus"], 1, x), alone["allreduce_ms"], 0.1, 1000)
        link = solve(lambda x: allreduce(64, x, inside), large["allreduce_ms"], 0.1, 1000)
        fitted[network] = {"bandwidths_gbit_per_s": f"[{link:.4g}]", "inside_bandwidth_gbyte_per_s": f"{inside:.4g}"}
        for row in mine:
            predicted = allreduce(row["gpus"], link, inside)
            own = allreduce(row["gpus"], paper_gbit, inside)
            use = "fitted" if row in (alone, large) else "held out"
            missed = use == "held out" and abs(predicted / row["allreduce_ms"] - 1) > LIMIT
            lines.append([network, f"{row['gpus']:.0f}", f"{row['hosts']:.0f}",
                          f"{row['batch_per_gpu']:.0f} × {row['accumulation']:.0f}", f"{row['allreduce_ms']:.0f}",
                          f"{predicted:.0f}", percent(predicted, row["allreduce_ms"]), use + (", **missed**" if missed else ""),
                          "" if row is alone else percent(own, row["allreduce_ms"])])
    page.text("### Table 1: allreduce of BERT-Large")
    page.text("Fitted: Ethernet {} Gbit/s a link and {} GB/s inside a host, InfiniBand {} Gbit/s and {} GB/s.".format(
        *(fitted[n][k].strip("[]") for n in fitted for k in fitted[n])))
    page.table(["network", "GPUs", "hosts", "batch", "paper ms", "predicted ms", "error", "row",
                "error with the paper's bandwidth (4.1, 100 Gbit/s), nothing fitted"], lines)
    held = [line for line in lines if line[7] != "fitted"]
    page.text(f"{sum('missed' not in line[7] for line in held)} of {len(held)} held-out rows are within 25 %.")

    figures = {row["name"]: row for row in read(PAPER / "figures.csv")}
    compute = one(table, network="ethernet", gpus=64, batch_per_gpu=16, accumulation=1)
    ethernet, lines = inputs["ethernet"], []

    def speedup(rows, ranks, gbit=None):
        rows = [row for row in rows if gbit is None or abs(row["link_bit_per_s"] / 1e9 / gbit - 1) < 1e-6]
        dense, sign = (one(rows, ranks=ranks, collective=c) for c in ("ring", "compressed"))
        return dense["step_s"] / sign["step_s"]

    def compare(name, what, predicted, form="{:.2f}"):
        paper_value = figures[name]["value"]
        missed = "" if abs(predicted / paper_value - 1) <= LIMIT else "**missed**"
        lines.append([what, form.format(paper_value), form.format(predicted), percent(predicted, paper_value), missed])

    shaped = predict(ethernet, ranks="[256]", bandwidths_gbit_per_s="[0.05, 1, 2]",
                     inside_bandwidth_gbyte_per_s=fitted["ethernet"]["inside_bandwidth_gbyte_per_s"])
    for name, gbit in (("speedup_50mbit", 0.05), ("speedup_1gbit", 1), ("speedup_2gbit", 2)):
        compare(name, f"Fig. 9: speed-up on 256 GPUs at {gbit:g} Gbit/s", speedup(shaped, 256, gbit))
    best = max(speedup(predict(ethernet, **fitted["ethernet"]), n) for n in (8, 16, 32, 64, 128, 256))
    compare("speedup_pretraining", "Fig. 5(a): highest speed-up", best)
    # 96 samples of 384 tokens on 32 GPUs: 1152 tokens each, between Table 1's 128 and 2048.
    small = one(table, network="ethernet", gpus=64, batch_per_gpu=1)
    share = (1152 - 128) / (2048 - 128)
    squad = predict(ethernet, **fitted["ethernet"],
                    **{f"{k}_ms": small[f"{k}_ms"] + share * (compute[f"{k}_ms"] - small[f"{k}_ms"])
                       for k in ("forward", "backward")})
    compare("speedup_squad", "Fig. 5(c): highest speed-up, SQuAD (computing time interpolated by tokens from Table 1)",
            max(speedup(squad, n) for n in (8, 16, 32)))
    # A batch of 4096, accumulated.
    throughput = {"ring": {}, "compressed": {}}
    for n in (4, 8, 16, 32, 64, 128, 256):
        rounds = 4096 / 16 / n
        rows = predict(ethernet, ranks=f"[{n}]", forward_ms=rounds * compute["forward_ms"],
                       backward_ms=rounds * compute["backward_ms"], **fitted["ethernet"])
        for collective, values in throughput.items():
            values[n] = 4096 / one(rows, collective=collective)["step_s"]
        if n == 64:
            dense, sign = (one(rows, collective=c)["step_s"] for c in ("ring", "compressed"))
    compare("adam_peak", "Fig. 5(b): Adam's throughput peaks at", max(throughput["ring"], key=throughput["ring"].get), "{:.0f}")
    compare("onebit_adam_grows_to", "Fig. 5(b): 1-bit Adam's throughput grows up to",
            max(throughput["compressed"], key=throughput["compressed"].get), "{:.0f}")
    compare("adam_hours", "Fig. 4(b): hours of Adam", 152e3 * dense / 3600, "{:.1f}")
    compare("onebit_adam_hours", "Fig. 4(b): hours of 1-bit Adam", (23e3 * dense + 129e3 * sign) / 3600, "{:.1f}")
    page.text("### Figures 4, 5 and 9, nothing fitted on them")
    page.table(["what", "paper", "predicted", "error", ""], lines)

    infiniband = dict(ranks="[8, 16, 32, 64]", parameters="60.2e6", bandwidths_gbit_per_s="[1, 10]",
                      inside_bandwidth_gbyte_per_s=fitted["infiniband"]["inside_bandwidth_gbyte_per_s"])
    resnet = predict(inputs["infiniband"], **infiniband)
    page.text("### Figure 7: ResNet-152 on hosts of 8 GPUs, in words")
    page.text("The paper: compression \"could potentially speed up the training especially when the bandwidth is limited\". "
              "Its computing times are not given; with Table 1's as a stand-in, and the 60.2 million parameters of ResNet-152:")
    page.table(["GPUs", "speed-up at 1 Gbit/s", "at 10 Gbit/s"],
               [[n, f"{speedup(resnet, n, 1):.2f}", f"{speedup(resnet, n, 10):.2f}"] for n in (8, 16, 32, 64)])

    others = [[f"{gbit:g}", *(f"{one(shaped, collective=c, link_bit_per_s=gbit * 1e9)['call_s']:.2f}" for c in
                              ("ring", "tree", "hierarchical", "compressed", "hierarchical_compressed"))]
              for gbit in (0.05, 1, 2)]
    page.text("### The same networks with other collectives: seconds of an average over 256 ranks")
    page.table(["Gbit/s", "ring", "tree", "hierarchical", "compressed", "hierarchical_compressed"], others)


def laboratory(predict, page, paths):
    """Adds to the page. \returns the held-out rows; machine and repetitions are of what was measured"""
    rows = [row for path in paths for row in read(path) if row["ranks"] > 1]
    configuration = ("hosts", "rate", "parameters")
    bits = {row["rate"]: row["link_bit_per_s"] for row in rows}
    ends = {key: (min(row[key] for row in rows), max(row[key] for row in rows)) for key in ("hosts", "parameters")}
    ends["rate"] = (min(bits, key=bits.get), max(bits, key=bits.get))
    fit = [row for row in rows if all(row[key] in ends[key] for key in configuration)]
    held = [row for row in rows if row not in fit]
    page.text("## The network laboratory")
    if not fit or not held:
        page.text("These rows cannot be split into fitted and held-out ones: measure more hosts, rates or lengths.")
        return []
    scratch = pathlib.Path(predict.scratch.name)
    with open(scratch / "fit_rows.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(fit[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: (int(v) if isinstance(v, float) and v.is_integer() else v) for k, v in row.items()} for row in fit)
    (scratch / "laboratory.yaml").write_text("predict: {collectives: [ring], simulate_up_to: 0}\n")
    errors, lines, known, table = {}, [], {}, []
    for row in held:
        setting = dict(parameters=row["parameters"], ranks=f"[{row['ranks']:.0f}]",
                       ranks_per_host=int(row["ranks"] / row["hosts"]),
                       bandwidths_gbit_per_s=f"[{row['link_bit_per_s'] / 1e9}]", measurements=f"[{scratch / 'fit_rows.csv'}]",
                       shared_cores=int(row.get("shared_cores", 0) or 0), burst_kbyte=row.get("burst_bytes", 0) / 1e3)
        key = str(setting)
        if key not in known:
            known[key] = predict(scratch / "laboratory.yaml", **setting)
        found = [r for r in known[key] if r["collective"] == row["collective"] and r["numbers"] == "measured"]
        if not found:
            continue  # its collective was not measured where fits are made
        predicted = found[0]["call_s"]
        error = predicted / row["p50_s"] - 1
        errors.setdefault(row["collective"], []).append(error)
        table.append({**{key: f"{row[key]:.0f}" for key in ("parameters", "ranks", "hosts", "repetitions")},
                      "collective": row["collective"], "rate": row["rate"], "measured_s": row["p50_s"],
                      "predicted_s": predicted, "measured_git": row.get("git", ""), "machine": row.get("machine", "")})
        lines.append([row["collective"], f"{row['hosts']:.0f}", f"{row['ranks']:.0f}", row["rate"],
                      f"{row['parameters'] / 1e6:g}", f"{row['p50_s']:.4f}", f"{predicted:.4f}", f"{100 * error:+.0f} %"])
    fits = read(scratch / "fit.csv")
    page.text("Fits of `onebit predict` on the rows at the ends:")
    page.table(["collective", "rows", "α µs", "share of line rate", "median residual", "largest"],
               [[f["collective"], f"{f['rows']:.0f}", f"{1e6 * f['latency_s']:.0f}", f"{f['line_rate_share']:.3f}",
                 f"{100 * f['median_error']:.1f} %", f"{100 * f['largest_error']:.1f} %"] for f in fits])
    count = len({tuple(row[key] for key in configuration) for row in held})
    everything = [abs(e) for some in errors.values() for e in some]
    page.text(f"Held out: {count} configurations (hosts × rate × parameters), {len(everything)} rows. Median error "
              f"**{100 * statistics.median(everything):.1f} %**, largest {100 * max(everything):.0f} %.")
    page.table(["collective", "rows", "median error", "largest"],
               [[name, len(some), f"{100 * statistics.median(map(abs, some)):.1f} %", f"{100 * max(map(abs, some)):.0f} %"]
                for name, some in errors.items()])
    page.table(["collective", "hosts", "ranks", "rate", "million parameters", "measured s", "predicted s", "error"], lines)
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onebit", default=str(ROOT / "build/openmp/onebit"))
    parser.add_argument("--output", metavar="PAGE.md")
    parser.add_argument("laboratory", nargs="*", metavar="LABORATORY.csv")
    arguments = parser.parse_args()
    predict, page = Predict(arguments.onebit), Page()
    page.lines = ["# Predicted and measured", "", "<!-- Made by scripts/validate_model.py. -->", ""]
    paper(predict, page)
    table = laboratory(predict, page, arguments.laboratory) if arguments.laboratory else []
    if arguments.output and table:
        path = pathlib.Path(arguments.output).with_suffix(".csv")
        version = results.program_version(arguments.onebit, path)
        results.write_csv(path, TABLE, [{**row, "git": version} for row in table])
    text = "\n".join(page.lines)
    if arguments.output:
        pathlib.Path(arguments.output).write_text(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
