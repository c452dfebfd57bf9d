#!/usr/bin/env python3
"""Makes docs/results/communication.md, its further pages and its figures from the CSV files of the network laboratory;
measures nothing.

The directory has figure9.csv, hierarchical.csv (figure9.py with several ranks on a host), whole_step.csv, hidden.csv
(whole_step.py --compute-ms 1000,200), table1.csv, figure5.csv, figure4b.csv and peers.csv, which the programs of these
names wrote. Their rows say which commit was measured, on which machine and how often. The first page stands beside the
directory, the others in it.
"""

import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from lib import ROOT, loss_over_time, plots, tables
from lib.laboratory import bytes_that_leave_a_host, fastest, share_of_line_rate, steady_s, with_smallest_bursts
from lib.tables import percent

FILES = ("figure9", "hierarchical", "whole_step", "hidden", "table1", "figure5", "figure4b", "peers")


def numbers(row, *names):
    return [float(row[name]) for name in names]


def table(header, rows):
    return tables.markdown(header, rows) + "\n"


def by_laboratory(rows):
    """Rows of one rate and one size of the links' token buckets together."""
    groups = {}
    for row in rows:
        groups.setdefault((row["rate"], int(row["burst_bytes"] or 0)), []).append(row)
    return groups


def seconds(row):
    """The median of a row of collective.csv, with the range where its repetitions differ."""
    median, low, high = (f"{value:.4g}" for value in numbers(row, "p50_s", "min_s", "max_s"))
    return median + (f" ({low} – {high})" if low != high else "")


def reduction_vs_16bit(dense, compressed):
    """How many times fewer bytes leave a host than in an average of 2 bytes an element; `dense` has 4."""
    return bytes_that_leave_a_host(dense) / 2 / bytes_that_leave_a_host(compressed)


def times_faster_than_bf16(row):
    """Against averages of 16 bits; empty in rows of programs that had none."""
    return f"{float(row['speedup_vs_bf16']):.2f} ×" if "speedup_vs_bf16" in row else ""


def origin(read):
    """Which commits and machines the rows of each file name, and what a file's note says it lacks."""
    lines = []
    for name, rows in read.items():
        lines.append([f"[{name}.csv](communication/{name}.csv)",
                      *(" and ".join(sorted({row.get(column, "") for row in rows}))
                        for column in ("git", "machine", "note"))])
    return table(["file", "commit", "machine", "note"], lines)


def figure9(rows, directory):
    """Speed-up of the fastest compressed average over the fastest dense axes."""
    lines, points = [], []
    smallest = by_laboratory(with_smallest_bursts(rows))
    for (rate, burst), group in by_laboratory(rows).items():
        dense, bf16, sign = (fastest(group, kind) for kind in ("dense", "bf16", "compressed"))
        speedup, reduction = steady_s(dense) / steady_s(sign), reduction_vs_16bit(dense, sign)
        ideal = speedup * share_of_line_rate(dense)
        if (rate, burst) in smallest:
            points.append((float(dense["link_bit_per_s"]) / 1e6, speedup, ideal))
        lines.append([rate, f"{burst / 1024:.0f}", f"{float(dense['link_bit_per_s']) / 1e6:.1f}",
                      dense["collective"], f"{float(dense['p50_s']):.3f}", percent(share_of_line_rate(dense)),
                      sign["collective"], f"{float(sign['p50_s']):.4f}", percent(share_of_line_rate(sign)),
                      f"**{speedup:.1f} ×**", f"{ideal:.1f} ×",
                      f"{steady_s(bf16) / steady_s(sign):.1f} ×" if bf16 else "",
                      f"{2 * reduction:.1f} ×", f"{reduction:.1f} ×", percent(float(sign["burst_share"]), 1)])
    figure, axes = plots.axes("measured bandwidth of a link, Mbit/s", "compressed average: times faster")
    links, measured, ideal = zip(*points)
    axes.semilogx(links, measured, marker="o", label="than the fastest 32-bit dense average", **plots.style(0))
    axes.semilogx(links, ideal, marker="o", label="than a 32-bit dense average at line rate", **plots.style(1))
    for factor, bits in ((32, 32), (16, 16)):
        axes.axhline(factor, color="#888888", linewidth=1)
        axes.annotate(f"{factor} times fewer bytes than {bits}-bit", (links[-1], factor), xytext=(0, 4),
                     textcoords="offset points", ha="right")
    axes.set_ylim(0, 38)
    axes.legend(frameon=False, loc="lower left")
    plots.save(figure, directory / "figure9.svg")
    return table(["rate", "burst KiB", "link Mbit/s", "fastest dense", "median s", "line rate", "fastest compressed",
                  "median s", "line rate", "faster", "than a dense average at line rate",
                  "than the fastest bf16 average", "fewer bytes than 32-bit",
                  "fewer bytes than 16-bit", "bursts in the compressed bytes"], lines)


def all_collectives(rows):
    return table(
        ["rate", "burst KiB", "average", "repetitions", "median s (range)", "line rate", "compress", "all-to-all",
         "average", "all-gather", "decompress"],
        [[row["rate"], f"{int(row['burst_bytes']) / 1024:.0f}", f"`{row['collective']}`", row["runs"], seconds(row),
          percent(share_of_line_rate(row)),
          *(f"{1e3 * value:.1f}" if "compressed" in row["collective"] else "" for value in
            numbers(row, "compress_s", "all_to_all_s", "average_s", "all_gather_s", "decompress_s"))] for row in rows])


def hierarchical(rows):
    lines = []
    for (rate, _), group in by_laboratory(rows).items():
        of = {row["collective"]: row for row in group}
        dense = min((of["pairwise_allreduce"], of["hierarchical_allreduce"]), key=steady_s)
        flat, host = of["pairwise_compressed"], of["hierarchical_compressed"]
        lines.append([rate, *(seconds(of[name]) for name in ("pairwise_allreduce", "hierarchical_allreduce")),
                      seconds(flat), seconds(host), f"{steady_s(flat) / steady_s(host):.1f} ×",
                      f"{steady_s(dense) / steady_s(host):.1f} ×", f"{reduction_vs_16bit(dense, host):.1f} ×"])
    return table(["rate", "dense, flat s", "dense, by host s", "compressed, flat s", "compressed, by host s",
                  "by host over flat", "compressed by host over the fastest dense", "fewer bytes than 16-bit"], lines)


def whole_step(rows):
    return table(
        ["rate", "link Mbit/s", "Adam s", "of it allreduce", "1-bit Adam s", "of it waiting for messages", "steps",
         "faster", "than Adam in bf16", "paper (256 GPUs, 16-bit)"],
        [[row["rate"], f"{float(row['link_bit_per_s']) / 1e6:.1f}",
          *(f"{value:.3f}" for value in numbers(row, "adam_s", "adam_allreduce_s", "onebit_adam_s",
                                                "onebit_adam_communication_s")),
          f"{row['dense_steps']} and {row['compressed_steps']}",
          f"**{float(row['speedup']):.2f} ×**", times_faster_than_bf16(row),
          f"{row['paper_speedup']} ×" if row["paper_speedup"] else ""]
         for row in rows])


def bf16_line_s(row):
    """Seconds that a rank's part of a 16-bit average takes at the measured rate of its link."""
    hosts, parameters, bit_per_s = numbers(row, "hosts", "parameters", "link_bit_per_s")
    return 8 * 2 * 2 * (hosts - 1) / hosts * parameters / bit_per_s


def faster_than_bf16_on_the_line(row):
    """Against Adam whose 16-bit average took no longer than its bytes at the rate of the link."""
    return max(bf16_line_s(row), float(row["compute_time_ms"]) / 1e3) / float(row["overlapped_s"])


def hidden(rows):
    return table(
        ["gradient s", "rate", "link Mbit/s", "Adam in bf16 s", "1-bit Adam s", "hidden s", "of it waiting", "own work",
         "signs on the line s", "over the limit", "without own work", "faster than bf16", "than bf16 at the line rate"],
        [[f"{float(row['compute_time_ms']) / 1e3:g}", row["rate"], f"{float(row['link_bit_per_s']) / 1e6:.1f}",
          *(f"{value:.3f}" for value in numbers(row, "adam_bf16_s", "onebit_adam_s", "overlapped_s",
                                                "overlapped_wait_s", "own_work_s", "sign_line_s")),
          *(f"**{value:.2f}**" for value in numbers(row, "overlapped_over_limit",
                                                    "overlapped_over_limit_without_own_work")),
          f"{float(row['overlapped_speedup_vs_bf16']):.2f} ×",
          f"{faster_than_bf16_on_the_line(row):.2f} ×"] for row in rows])


def table1(rows):
    names = ("forward_s", "backward_allreduce_s", "backward_allreduce_hidden_s", "backward_everything_else_s", "step_s",
             "total_s")
    return table(
        ["rate", "hosts", "stage", "forward", "backward (allreduce)", "(hidden)", "backward (everything else)", "step",
         "total", "allreduce %"],
        [[row["rate"], row["hosts"], row["stage"], *(f"{1e3 * value:.1f}" for value in numbers(row, *names)),
          percent(float(row["allreduce_share"]))] for row in rows])


def gradient_ms(rows, hosts, stage):
    """The range of a gradient's milliseconds on so many hosts, over rates and stages whose names begin with this."""
    times = [1e3 * sum(numbers(row, "forward_s", "backward_everything_else_s")) for row in rows
             if row["hosts"] == hosts and row["stage"].startswith(stage)]
    return f"{min(times):.0f} to {max(times):.0f}"


def figure5(rows, directory):
    figure, axes = plots.axes("hosts", "samples/s")
    hosts = [int(row["hosts"]) for row in rows]
    for place, (name, label) in enumerate({"adam": "Adam", "onebit_adam": "1-bit Adam"}.items()):
        axes.plot(hosts, [float(row[f"{name}_samples_per_s"]) for row in rows], label=label, marker="o",
                  **plots.style(place))
    axes.legend(frameon=False)
    plots.save(figure, directory / "figure5.svg")
    return table(["hosts", "Adam samples/s", "1-bit Adam samples/s", "faster", "than Adam in bf16"],
                 [[row["hosts"], row["adam_samples_per_s"], row["onebit_adam_samples_per_s"],
                   f"{float(row['speedup']):.2f} ×", times_faster_than_bf16(row)] for row in rows])


def figure4b(rows, directory):
    curves = loss_over_time.curves_of(rows)
    loss_over_time.draw(curves, directory / "figure4b.svg")
    target = loss_over_time.common_loss(curves)
    times = {name: loss_over_time.seconds_to(part, target) for name, part in curves.items()}
    return table(["", "final validation loss", "whole run s", f"s to {target:.4f}", "faster"], [
        [loss_over_time.LABELS[name], f"{float(part[-1]['validation_loss']):.4f}", f"{float(part[-1]['seconds']):.0f}",
         f"{times[name]:.0f}", f"{times['adam'] / times[name]:.2f} ×"] for name, part in curves.items()])


PEERS = {
    "mpi_allreduce": "`MPI_Allreduce`, 32 bits", "pairwise_allreduce": "pairwise, 32 bits",
    "pairwise_bf16": "pairwise, bf16", "pairwise_compressed": "**compressed, 1 bit**",
    "gloo_fp32": "gloo, 32 bits", "gloo_fp16": "gloo, fp16", "gloo_bf16": "gloo, bf16",
    "powersgd_1": "PowerSGD hook, rank 1", "powersgd_4": "PowerSGD hook, rank 4",
    "deepspeed_compressed": "compressed, 1 bit",
}


def peers(rows):
    compressed = {row["rate"]: float(row["p50_s"]) for row in rows if row["method"] == "pairwise_compressed"}
    return table(
        ["rate", "library", "average", "`method`", "calls", "median s (range)", "MB that a host sent",
         "times as long as OneBit's compressed"],
        [[row["rate"], f"{row['library']} {row['version']}", PEERS[row["method"]], f"`{row['method']}`", row["runs"],
          seconds(row), f"{float(row['link_bytes']) / 1e6:.2f}",
          f"{float(row['p50_s']) / compressed[row['rate']]:.2f}"] for row in rows])


def read(directory):
    """{name: rows} of FILES."""
    rows = {name: tables.read_csv(directory / f"{name}.csv") for name in FILES}
    for name, of_file in rows.items():
        if missing := {"git", "machine", "runs"} - of_file[0].keys():
            sys.exit(f"communication: {name}.csv has no column '{min(missing)}', because an earlier version wrote it; "
                     "remedy: measure again")
    return rows


def pages(read, directory):
    """{name: page}, of which the first is the directory's; draws their figures into the directory."""
    nine, by_host, whole, beside, profile, hosts, loss, other = (rows[0] for rows in read.values())
    bursts = sorted({int(row["burst_bytes"]) for row in read["figure9"]})
    burst = " to ".join(f"{bytes:,}" for bytes in (bursts if len(bursts) < 2 else (bursts[0], bursts[-1])))
    compute = float(whole["compute_time_ms"])
    averages = f"""# Communication, measured

Made by `scripts/experiments/communication.py` from these CSV files:

{origin(read)}
| page | what |
|---|---|
| [communication/libraries.md](communication/libraries.md) | averages of OneBit, PyTorch and DeepSpeed |
| [communication/steps.md](communication/steps.md) | whole steps, steps that hide the signs, Table 1, Figures 5 and 4b |

Hosts are network namespaces of that machine, with one shaped link each. Every link was measured over one TCP stream
before its run. An average is finished when its slowest rank is, so a time here is the median over the repetitions of
the slowest rank's time. A shaped link passes a burst at once after it was idle, {burst} bytes here; these bytes say
nothing about its rate. A call has two exchanges and so gets at most two bursts. "Line rate" is therefore (bytes that
leave a host − two bursts) / measured bandwidth of its link / time, and "faster" compares times that are lengthened as
if the burst bytes had travelled at the rate of the others. docs/guide/network.md says how to repeat this, and what
the laboratory can and cannot show.

**Against 16-bit training.** Where no column names bf16, speed-ups are against dense averages of 32-bit numbers. A
16-bit average (`comm.dense_type: bf16`) moves half of their bytes: 1-bit compression saves 16 times the volume against
it, not 32 times. At the same share of the line rate, half of each ratio is to be expected. A column about bf16 is empty
in rows that were measured before the program had such averages.

## Compressed averages over dense ones (the paper's Figure 9)

`scripts/experiments/figure9.py`: averages of {int(nine['parameters']):,} parameters on {nine['hosts']} hosts of
one rank, all in one run for each rate. The compressed time counts compression, averaging and decompression.
Every result equals its reference in every element before it is timed. The ratio can exceed the saved bytes only where
the dense average is farther from the line rate than the compressed one; the next column compares with a dense average
at the line rate.

{figure9(read['figure9'], directory)}
![speed-up over bandwidth](communication/figure9.svg)

All averages of that run, and the parts of the compressed ones in milliseconds. `mpi_compressed` does one part after the
other. In `pairwise_compressed` messages travel while others are computed; all-to-all and all-gather are the
remaining wait.

{all_collectives(read['figure9'])}
## Hosts of several ranks

`scripts/experiments/figure9.py --ranks-per-host {by_host['ranks_per_host']}`, {by_host['ranks']} ranks on
{by_host['hosts']} hosts, {int(by_host['parameters']):,} parameters: averages between all ranks, and by
host (`comm.collective: hierarchical`).

{hierarchical(read['hierarchical'])}
## Predictions

[prediction.md](prediction.md) compares `scripts/predict.py` with these and other laboratory rows, and with the paper.
"""
    libraries = f"""# Other libraries

`scripts/experiments/peers.py`: averages of {int(other['elements']):,} elements over {other['hosts']} hosts by OneBit,
PyTorch and DeepSpeed. At each rate all of them ran in one laboratory, in {other['rounds']} rounds in which they took
turns, with one thread a rank. Every average is checked before it is timed. A time is that of the slowest rank, after a
barrier, with all rounding and compression; bursts are not subtracted. The bytes are what the system counted at the
link of a host, so headers and answers are in them. [communication.md](../communication.md) names the commit and the
machine.

{peers(read['peers'])}
- PyTorch's averages in 16 bits round, divide, add up and widen, as its `fp16_compress_hook` does. Neither PyPI's nor
  Debian's PyTorch has an MPI backend; `mpi_allreduce` is the MPI library's own average, called by OneBit.
- PowerSGD sends two factors of a matrix instead of the matrix, here of 5000 x 5000 elements. Its time is that of a
  backward pass whose gradient is there already: a copy into the bucket of `DistributedDataParallel`, the hook's
  products and its messages. It is another approximation, not another way to send signs: its bytes depend on the shape
  of the matrix, and its error on the singular values. Its time hardly depends on the rate, because it computes most
  of the time, so it should be the shortest on links slower than these. That was not measured. Messages of rank 1 are
  about as long as the bursts.
- DeepSpeed 0.19.7 is the last version with averages of one bit. Its transports `nccl`, `mpi` and `hccl` need cupy or
  torch_npu, so a GPU or an NPU. `CompressedBackend` is for any device, but does not run on a CPU as it is: its op
  `packbits` is not implemented there, and gloo refuses the scales, which are sent without a dimension and received
  with one. `scripts/experiments/peers_rank.py` supplies the op, in PyTorch's operations, and reshapes the scales. All
  else is DeepSpeed's code.
- Four ranks share the two cores, so computation takes longer than on four machines. This holds for all libraries.

"""
    steps = f"""# Steps on slow networks

[communication.md](../communication.md) describes the shaped links and names the commits and the machine.

## Whole steps

`scripts/experiments/whole_step.py`: {int(whole['parameters']):,} parameters, {whole['hosts']} hosts, one run for
each rate; times are means over the steps that the table counts. Computing a gradient is a sleep of {compute:.1f} ms:
the time of BERT-Large in Table 1, in proportion to the parameters. Everything else is real. Dense gradients are
averaged in buckets during the backward pass. The paper's numbers are for 256 GPUs, 4 on a host, and 16-bit gradients.

The ranks share two cores, so gradients took longer than {compute:.1f} ms in most steps: in the [step
profile](#step-profile-the-papers-table-1), {gradient_ms(read['table1'], whole['hosts'], 'adam')} ms for Adam on
{whole['hosts']} hosts and {gradient_ms(read['table1'], whole['hosts'], 'onebit_adam')} ms for 1-bit Adam. This
lengthens Adam's step more than 1-bit Adam's. The part of 1-bit Adam's step that is not waiting is computation:
{whole['hosts']} ranks compress and update on the cores of one machine. It takes longer than the {compute:.1f} ms, which
already include BERT-Large's optimiser. On fast links this computation bounds the speed-up here, and not the network.

{whole_step(read['whole_step'])}
## Steps that hide the signs

`scripts/experiments/whole_step.py --rates 50mbit,200mbit,1gbit --compute-ms 1000,200`: a gradient takes longer, and the
momentum is averaged in buckets of {int(beside['compressed_bucket_bytes']):,} bytes during the backward pass
(`comm.compressed_bucket_bytes`). "1-bit Adam" is the step without these buckets, "hidden" the step with them. Adam's
bf16 averages also run during the backward pass. A step takes at least as long as its gradient, and as its signs take on
the line; "over the limit" is the hidden step over the longer one of the two. "Own work" is the compression, averaging
and update of {beside['hosts']} ranks on the cores of one machine: the hidden step without its gradient over links of
10 Gbit/s. "Without own work" subtracts it from the step. What remains is mostly the embedding, a tenth of the
parameters: its gradient is complete last.

The measured 16-bit averages stay below the line rate, so "faster than bf16" is too favourable. The last column compares
with a step of Adam whose 16-bit averages run at the line rate: the longer one of the gradient and of that average.

{hidden(read['hidden'])}
## Step profile (the paper's Table 1)

`scripts/experiments/table1.py`: milliseconds on rank 0, means over the steps of one run ({profile['dense_steps']}
of Adam, {profile['compressed_steps']} of 1-bit Adam). For 1-bit Adam the exchange is part of "step".

{table1(read['table1'])}
## Throughput over hosts (the paper's Figure 5)

`scripts/experiments/figure5.py` at {read['figure5'][-1]['rate']}, {int(hosts['parameters']):,} parameters, one run for
each number of hosts. All hosts share the machine's cores, so the optimiser and the compression slow down with their
number. On a real cluster they do not. One host sends nothing, but an average in bf16 rounds there as on all others.

{figure5(read['figure5'], directory)}
![throughput over hosts](figure5.svg)

## Loss over time (the paper's Figure 4b)

`scripts/experiments/figure4b.py`: inputs/figure4b.yaml on {loss['hosts']} hosts at {loss['rate']}, one run of
each algorithm with the settings of [time_to_target](../time_to_target.md). A gradient takes
{float(loss['compute_time_ms']):g} ms: the real computation, and a sleep for the rest. Dense averages are in bf16, but
for 1-bit Muon's of vectors.

{figure4b(read['figure4b'], directory)}
![loss over time](figure4b.svg)

"""
    return {"": averages, "libraries": libraries, "steps": steps}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", nargs="?", type=pathlib.Path, default=ROOT / "docs/results/communication",
                        help="default: %(default)s")
    directory = parser.parse_args().directory
    for name, text in pages(read(directory), directory).items():
        output = directory / f"{name}.md" if name else directory.with_suffix(".md")
        output.write_text(tables.page([text]))
        print(f"wrote {output}")


if __name__ == "__main__":
    main()
