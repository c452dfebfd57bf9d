#!/usr/bin/env python3
"""Makes docs/results/communication.md, and its figures, from the CSV files of the network laboratory.

Usage: communication.py [DIRECTORY]

DIRECTORY (docs/results/communication by default) holds what the commands of scripts/netlab/ wrote there:
figure9.csv, hierarchical.csv (figure9.py with several ranks on a host), whole_step.csv, table1.csv, figure5.csv, figure4b.csv,
and machine.txt, a line in words. Nothing is measured here.
"""

import collections
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "scripts/netlab")]
import experiments  # noqa: E402
import study  # noqa: E402  (it looks for a Python with matplotlib)


def mbit(text):
    """200mbit → 200, 1gbit → 1000."""
    return float(text[:-4]) * {"m": 1, "g": 1000}[text[-4]]


def numbers(row, *names):
    return [float(row[name]) for name in names]


def percent(share):
    return f"{100 * float(share):.0f} %"


def table(header, rows):
    return study.table(header, rows) + "\n"


def by_rate(rows):
    groups = collections.OrderedDict()
    for row in rows:
        groups.setdefault((int(row["parameters"]), row["rate"]), []).append(row)
    return groups


def fastest(rows, compressed):
    return min((row for row in rows if ("compressed" in row["collective"]) == compressed), key=lambda r: float(r["mean_s"]))


def axes(x_label, y_label):
    figure, one = study.pyplot.subplots(figsize=(7, 4), constrained_layout=True)
    one.set_xlabel(x_label)
    one.set_ylabel(y_label)
    one.grid(alpha=0.3)
    for side in ("top", "right"):
        one.spines[side].set_visible(False)
    return figure, one


def figure9(rows, directory):
    """Speed-up of the fastest compressed average over the fastest dense one."""
    lines, points = [], []
    for (_, rate), group in by_rate(rows).items():
        dense, sign = fastest(group, False), fastest(group, True)
        speedup = float(dense["mean_s"]) / float(sign["mean_s"])
        points.append((float(dense["link_bit_per_s"]) / 1e6, speedup, speedup * float(dense["share_of_line_rate"])))
        lines.append([rate, f"{float(dense['link_bit_per_s']) / 1e6:.1f}", dense["collective"],
                      f"{float(dense['mean_s']):.3f}", percent(dense["share_of_line_rate"]), sign["collective"],
                      f"{float(sign['mean_s']):.4f}", percent(sign["share_of_line_rate"]), f"**{speedup:.1f} ×**",
                      f"{speedup * float(dense['share_of_line_rate']):.1f} ×"])
    figure, one = axes("measured bandwidth of a link, Mbit/s", "compressed average: times faster")
    links, measured, ideal = zip(*points)
    one.semilogx(links, measured, marker="o", label="than the fastest dense average", **study.style(0))
    one.semilogx(links, ideal, marker="o", label="than a dense average at line rate", **study.style(1))
    one.axhline(32, color="#888888", linewidth=1)
    one.annotate("32 times fewer bytes", (links[-1], 32), xytext=(0, 4), textcoords="offset points", ha="right")
    one.set_ylim(0, 38)
    one.legend(frameon=False, loc="lower left")
    figure.savefig(directory / "figure9.png", dpi=150)
    return table(["rate", "link Mbit/s", "fastest dense", "s", "line rate", "fastest compressed", "s", "line rate",
                        "faster", "than a dense average at line rate"], lines)


def all_collectives(rows):
    return table(
        ["rate", "average", "mean s", "p99 s", "line rate", "compress", "all-to-all", "average", "all-gather",
         "decompress"],
        [[row["rate"], f"`{row['collective']}`", f"{float(row['mean_s']):.4g}", f"{float(row['p99_s']):.4g}",
          percent(row["share_of_line_rate"]),
          *(f"{1e3 * value:.1f}" if "compressed" in row["collective"] else "" for value in
            numbers(row, "compress_s", "all_to_all_s", "average_s", "all_gather_s", "decompress_s"))] for row in rows])


def hierarchical(rows):
    lines = []
    for (_, rate), group in by_rate(rows).items():
        of = {row["collective"]: float(row["mean_s"]) for row in group}
        flat, host = of["pairwise_compressed"], of["hierarchical_compressed"]
        dense = min(of["pairwise_allreduce"], of["hierarchical_allreduce"])
        lines.append([rate, f"{of['pairwise_allreduce']:.3f}", f"{of['hierarchical_allreduce']:.3f}", f"{flat:.4f}",
                      f"{host:.4f}", f"{flat / host:.1f} ×", f"{dense / host:.1f} ×"])
    return table(["rate", "dense, flat s", "dense, by host s", "compressed, flat s", "compressed, by host s",
                        "by host over flat", "compressed over dense, both by host"], lines)


def whole_step(rows):
    return table(
        ["rate", "link Mbit/s", "Adam s", "of it allreduce", "1-bit Adam s", "of it waiting for messages", "faster",
         "paper (256 GPUs)"],
        [[row["rate"], f"{float(row['link_bit_per_s']) / 1e6:.1f}",
          *(f"{value:.3f}" for value in numbers(row, "adam_s", "adam_allreduce_s", "onebit_adam_s",
                                                "onebit_adam_communication_s")),
          f"**{float(row['speedup']):.2f} ×**", f"{row['paper_speedup']} ×" if row["paper_speedup"] else ""]
         for row in rows])


def table1(rows):
    names = ("forward_s", "backward_allreduce_s", "backward_allreduce_hidden_s", "backward_everything_else_s", "step_s",
             "total_s")
    return table(
        ["rate", "hosts", "stage", "forward", "backward (allreduce)", "(hidden)", "backward (everything else)", "step",
         "total", "allreduce %"],
        [[row["rate"], row["hosts"], row["stage"], *(f"{1e3 * value:.1f}" for value in numbers(row, *names)),
          percent(row["allreduce_share"])] for row in rows])


def figure5(rows, directory):
    figure, one = axes("hosts", "samples/s")
    hosts = [int(row["hosts"]) for row in rows]
    for place, (column, label) in enumerate((("adam_samples_per_s", "Adam"), ("onebit_adam_samples_per_s", "1-bit Adam"))):
        one.plot(hosts, [float(row[column]) for row in rows], label=label, marker="o", **study.style(place))
    one.legend(frameon=False)
    figure.savefig(directory / "figure5.png", dpi=150)
    return table(["hosts", "Adam samples/s", "1-bit Adam samples/s", "faster"],
                       [[row["hosts"], row["adam_samples_per_s"], row["onebit_adam_samples_per_s"],
                         f"{float(row['speedup']):.2f} ×"] for row in rows])


def figure4b(rows, directory):
    import figure4b as experiment
    curves = {name: [row for row in rows if row["algorithm"] == name] for name in experiment.LABELS}
    experiment.draw(rows, directory / "figure4b.png")
    target = max(min(float(row["validation_loss"]) for row in part if row["validation_loss"]) for part in curves.values())
    times = {name: experiment.seconds_to(part, target) for name, part in curves.items()}
    lines = [[experiment.LABELS[name], f"{float(part[-1]['validation_loss']):.4f}", f"{float(part[-1]['seconds']):.0f}",
              f"{times[name]:.0f}", f"{times['adam'] / times[name]:.2f} ×"] for name, part in curves.items()]
    return table(["", "final validation loss", "whole run s", f"s to {target:.4f}", "faster"], lines), rows[0]


def main():
    directory = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "docs/results/communication")
    if directory.name.startswith("-"):
        print(__doc__)
        return 0 if directory.name in ("-h", "--help") else 2
    read = {name: experiments.read_csv(directory / f"{name}.csv")
            for name in ("figure9", "hierarchical", "whole_step", "table1", "figure5", "figure4b")}
    machine = (directory / "machine.txt").read_text().strip()
    loss_table, loss_run = figure4b(read["figure4b"], directory)
    first = {name: rows[0] for name, rows in read.items()}
    compute = float(first["whole_step"]["compute_time_ms"])
    page = f"""# Communication, measured

Made by `scripts/communication.py` from the CSV files in [communication/](communication). Measured on {machine}

Hosts are network namespaces of that machine, with one shaped link each; every link was measured over one TCP stream
before its run. "Line rate" is (bytes that leave a host / measured bandwidth of its link) / time. docs/network.md says how
to repeat this, and what the laboratory can and cannot show.

## The compression stage over dense averages (the paper's Figure 9)

`scripts/netlab/figure9.py`: averages of {int(first['figure9']['parameters']):,} parameters on {first['figure9']['hosts']} hosts of
one rank, 3 to 20 repetitions, all in one run for each rate. Compression, averaging and decompression are counted in the
compressed time; every result equals its oracle in every element before it is timed. 32 times fewer bytes can be more than
32 times faster only because the dense side is farther from the line rate; the last column compares with one that is not.

{figure9(read['figure9'], directory)}
![speed-up over bandwidth](communication/figure9.png)

All averages of that run; the parts of the compressed ones in milliseconds. `mpi_compressed` does one after the other. In
`pairwise_compressed` parts travel while others are computed, and all-to-all and all-gather are what is left to wait for.

{all_collectives(read['figure9'])}
## Hosts of several ranks

`scripts/netlab/figure9.py --ranks-per-host {first['hierarchical']['ranks_per_host']}`, {first['hierarchical']['ranks']} ranks on
{first['hierarchical']['hosts']} hosts, {int(first['hierarchical']['parameters']):,} parameters: averages between all ranks, and by
host (`comm.collective: hierarchical`).

{hierarchical(read['hierarchical'])}
## Whole steps

`scripts/netlab/whole_step.py`: {int(first['whole_step']['parameters']):,} parameters, {first['whole_step']['hosts']} hosts. Computing a
gradient is a sleep of {compute:.1f} ms, BERT-Large's of Table 1 in proportion to the parameters; everything else is real. Dense
gradients are averaged in buckets beside the backward pass. The paper's numbers are for 256 GPUs, 4 on a host, fp16. What
1-bit Adam's step does not wait for messages is computing, of {first['whole_step']['hosts']} ranks on the cores of one machine: compression and
optimiser really run, and take longer than the {compute:.1f} ms that already stand for BERT-Large's optimiser too. It bounds the
speed-up on fast links here, not the network.

{whole_step(read['whole_step'])}
## Step profile (the paper's Table 1)

`scripts/netlab/table1.py`; milliseconds on rank 0. For 1-bit Adam the exchange is part of "step".

{table1(read['table1'])}
## Throughput over hosts (the paper's Figure 5)

`scripts/netlab/figure5.py` at {read['figure5'][-1]['rate']}, {int(first['figure5']['parameters']):,} parameters; all hosts share the
machine's cores, so optimiser and compression slow down with their number, which a real cluster's do not.

{figure5(read['figure5'], directory)}
![throughput over hosts](communication/figure5.png)

## Loss over time (the paper's Figure 4b)

`scripts/netlab/figure4b.py`: inputs/figure4b.yaml on {loss_run['hosts']} hosts at {loss_run['rate']}, a gradient takes
{float(loss_run['compute_time_ms']):g} ms (real computation, padded).

{loss_table}
![loss over time](communication/figure4b.png)

## Predictions

[prediction.md](prediction.md) compares `onebit predict` with these and other laboratory rows, and with the paper.
"""
    (directory.parent / "communication.md").write_text(page)
    print(f"wrote {directory.parent / 'communication.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
