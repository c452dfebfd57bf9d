#!/usr/bin/env python3
"""Measures the gain of compression in a whole step on shaped networks, as Figure 9 of the paper
(docs/guide/network.md).

One rank a host. Adam averages floats in one run and bf16 in another (`comm.dense_type`), both in buckets during the
backward pass. 1-bit Adam averages after the backward pass in one run, and in buckets beside the computation in another
(`comm.compressed_bucket_bytes`). A step cannot be faster than its gradient, nor than the line takes for the signs:
`overlapped_over_limit` compares the step with the longer one of the two. The ranks also compress, average and update,
which their hosts' processors would do in production but the cores of one machine do here. A run with links of
--free-rate shows how long they need for that: `own_work_s` is its step without the gradient. The paper's speed-ups
beside the measured ones are those of 256 GPUs, 4 on a host, and half precision: 16 times fewer bytes.
figure9.py measures the exchange alone. Needs root.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from lib import laboratory, tables

PAPER = {"50mbit": 10.83, "1gbit": 6.59, "2gbit": 5.93}


def gradient_s(run):
    return 1e-3 * float(run.row["compute_time_ms"])


def own_work_s(arguments, compute_ms):
    """Seconds that a step with overlap takes beside its gradient where the network is free."""
    free = laboratory.synthetic_overlapped(arguments, arguments.hosts, arguments.free_rate,
                                           arguments.compressed_bucket_bytes, compute_ms)
    return free.mean_s("compressed", "step_s") - gradient_s(free)


def measure(arguments, rate, compute_ms, own_work):
    """The row of one network and one time of a gradient."""
    run = laboratory.synthetic(arguments, arguments.hosts, rate, compute_ms=compute_ms)
    halved = laboratory.synthetic(arguments, arguments.hosts, rate, bf16=True, compute_ms=compute_ms)
    overlapped = laboratory.synthetic_overlapped(arguments, arguments.hosts, rate, arguments.compressed_bucket_bytes,
                                                 compute_ms)
    seconds = {"adam_s": run.mean_s("dense", "step_s"), "adam_allreduce_s": run.mean_s("dense", "allreduce_s"),
               "adam_allreduce_hidden_s": run.mean_s("dense", "allreduce_hidden_s"),
               "adam_bf16_s": halved.mean_s("dense", "step_s"),
               "adam_bf16_allreduce_s": halved.mean_s("dense", "allreduce_s"),
               "onebit_adam_s": run.mean_s("compressed", "step_s"),
               "onebit_adam_communication_s": run.mean_s("compressed", "all_to_all_s", "all_gather_s"),
               "overlapped_s": overlapped.mean_s("compressed", "step_s"),
               "overlapped_wait_s": overlapped.mean_s("compressed", "allreduce_s"),
               "overlapped_hidden_s": overlapped.mean_s("compressed", "allreduce_hidden_s"),
               "overlapped_update_s": overlapped.mean_s("compressed", "update_s"),
               "own_work_s": own_work, "sign_line_s": overlapped.line_s("compressed")}
    limit = max(seconds["sign_line_s"], gradient_s(overlapped))
    ratios = {"speedup": seconds["adam_s"] / seconds["onebit_adam_s"],
              "speedup_vs_bf16": seconds["adam_bf16_s"] / seconds["onebit_adam_s"],
              "overlapped_speedup_vs_bf16": seconds["adam_bf16_s"] / seconds["overlapped_s"],
              "overlapped_over_limit": seconds["overlapped_s"] / limit,
              "overlapped_over_limit_without_own_work": (seconds["overlapped_s"] - own_work) / limit}
    return {**run.columns(), "compressed_bucket_bytes": overlapped.row["compressed_bucket_bytes"],
            "overlapped_link_bit_per_s": overlapped.links["link_bit_per_s"],
            "overlapped_overruns": overlapped.row["compute_overruns"],
            **{name: f"{value:.6g}" for name, value in seconds.items()},
            **{name: f"{value:.4g}" for name, value in ratios.items()}, "paper_speedup": PAPER.get(rate, "")}


def main():
    parser = laboratory.parser_of(__doc__, "results/whole_step.csv", parameters=25000000)
    parser.add_argument("--hosts", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--rates", type=laboratory.words, default="50mbit,200mbit,1gbit,2gbit,3gbit",
                        help="default: %(default)s")
    parser.add_argument("--compute-ms", type=laboratory.numbers, default=[None], metavar="MS,MS",
                        help="times of a gradient; default: BERT-Large's in proportion to the parameters")
    parser.add_argument("--compressed-bucket-bytes", type=int, default=1 << 20, help="default: %(default)s")
    parser.add_argument("--free-rate", default="10gbit", help="of links that hold nothing up; default: %(default)s")
    arguments = parser.parse_args()

    origin, rows = laboratory.origin(arguments), []
    for compute_ms in arguments.compute_ms:
        own_work = own_work_s(arguments, compute_ms)
        for rate in arguments.rates:
            rows.append({**measure(arguments, rate, compute_ms, own_work), **origin})
            tables.write_csv(arguments.output, rows)

    print(f"\n{rows[0]['parameters']} parameters, {arguments.hosts} hosts; seconds of a step")
    times = ("adam_s", "adam_bf16_s", "onebit_adam_s", "overlapped_s", "overlapped_wait_s", "own_work_s", "sign_line_s")
    print(tables.aligned(
        ["rate", "link Mbit/s", "compute ms", "Adam", "in bf16", "1-bit Adam", "overlapped", "wait", "own work", "line",
         "faster", "than bf16", "overlapped", "over limit", "without own work", "paper"],
        [[row["rate"], laboratory.mbit(row["link_bit_per_s"]), f"{float(row['compute_time_ms']):.3g}",
          *(f"{float(row[name]):.4f}" for name in times),
          *(f"{float(row[name]):.2f}x" for name in ("speedup", "speedup_vs_bf16", "overlapped_speedup_vs_bf16")),
          *(f"{float(row[name]):.2f}" for name in ("overlapped_over_limit", "overlapped_over_limit_without_own_work")),
          f"{row['paper_speedup']}x" if row["paper_speedup"] else ""]
         for row in rows]))


if __name__ == "__main__":
    main()
