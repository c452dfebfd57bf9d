#!/usr/bin/env python3
"""Measures what compression gains on shaped networks, as in Figure 9 of the 1-bit Adam paper, and prints one table.

Usage: figure9.py [--hosts 4] [--ranks-per-host 1] [--rates 50mbit,200mbit,1gbit,3gbit] [--output figure9.csv] [INPUT.yaml]

For each rate a laboratory is made (netlab.py; needs root) and `onebit bench collective INPUT.yaml` runs in it, with between
3 and 20 repetitions, the more the faster the links. The table
compares the fastest dense average with the fastest compressed one, compression and decompression included, and says for
both which share of the line rate they reach: (bytes that leave a host / measured bandwidth of its link) / time. The paper's
own speed-ups at these bandwidths are of whole steps on 256 GPUs: whole_step.py measures those.
"""

import argparse
import os

import experiments
import netlab


def bytes_that_leave_a_host(row, ranks_per_host):
    """Of all its ranks in one call; hierarchical averages count only those, others what goes to any rank."""
    ranks, wire = int(row["ranks"]), float(row["wire_bytes"])
    to_other_hosts = 1 if row["collective"].startswith("hierarchical") else (ranks - ranks_per_host) / (ranks - 1)
    return ranks_per_host * wire * to_other_hosts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--ranks-per-host", type=int, default=1)
    parser.add_argument("--rates", default="50mbit,200mbit,1gbit,3gbit")
    experiments.add_arguments(parser, "figure9.csv", parameters=0)
    parser.add_argument("input", nargs="?", default="inputs/figure9.yaml")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")

    all_rows, lines = [], []
    for rate in arguments.rates.split(","):
        repetitions = min(20, max(3, round(netlab.bits_per_second(rate) / 50e6)))
        rows, link = experiments.bench_collective(arguments.onebit, arguments.hosts, arguments.ranks_per_host, rate,
                                                  arguments.input, [f"bench.repetitions={repetitions}", *arguments.set])
        for row in rows:
            row["rate"], row["link_bit_per_s"] = rate, f"{link:.0f}"
            row["ranks_per_host"] = arguments.ranks_per_host
            seconds = 8 * bytes_that_leave_a_host(row, arguments.ranks_per_host) / link
            row["share_of_line_rate"] = f"{seconds / float(row['mean_s']):.3f}"
        all_rows += rows
        dense = min((r for r in rows if "compressed" not in r["collective"]), key=lambda r: float(r["mean_s"]))
        sign = min((r for r in rows if "compressed" in r["collective"]), key=lambda r: float(r["mean_s"]))
        lines.append(f"{rate:>8}  {link / 1e6:>11.1f}  {dense['collective']:>22} {float(dense['mean_s']):>9.3f} "
                     f"{100 * float(dense['share_of_line_rate']):>5.0f}%  {sign['collective']:>23} "
                     f"{float(sign['mean_s']):>9.4f} {100 * float(sign['share_of_line_rate']):>5.0f}%  "
                     f"{float(dense['mean_s']) / float(sign['mean_s']):>7.1f}x")
        experiments.write_csv(arguments.output, all_rows)
    print(f"\n{all_rows[0]['parameters']} parameters, {arguments.hosts} hosts of {arguments.ranks_per_host} rank(s)")
    print(f"{'rate':>8}  {'link Mbit/s':>11}  {'fastest dense':>22} {'s':>9} {'line':>6}  {'fastest compressed':>23} "
          f"{'s':>9} {'line':>6}  {'faster':>8}")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
