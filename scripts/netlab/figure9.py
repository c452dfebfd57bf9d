#!/usr/bin/env python3
"""Measures what compression gains on shaped networks, as in Figure 9 of the 1-bit Adam paper, and prints one table.

Usage: figure9.py [--hosts 4] [--ranks-per-host 1] [--rates 50mbit,200mbit,1gbit,3gbit]
                  [--least-bursts 32768,131072] [--output figure9.csv] [INPUT.yaml]

For each rate and each size of the links' token buckets a laboratory is made (netlab.py; needs root) and `onebit bench collective INPUT.yaml` runs in it, with between
5 and 20 repetitions, the more the faster the links. The table compares the fastest dense average with the fastest
compressed one, compression and decompression included. Times are medians of the slowest rank's. It says for both which
share of the line rate they reach: (bytes that leave a host − bursts of its link) / measured bandwidth / time. The
paper's own speed-ups at these bandwidths are of whole steps on 256 GPUs: whole_step.py measures those.
"""

import argparse
import os

import experiments
import netlab



def laboratories(arguments):
    """Pairs of a rate and a least burst, without those whose links would be the same."""
    for rate in arguments.rates.split(","):
        bursts = {netlab.burst_of(netlab.bits_per_second(rate), least): least
                  for least in map(int, arguments.least_bursts.split(","))}
        yield from ((rate, least) for least in bursts.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--ranks-per-host", type=int, default=1)
    parser.add_argument("--rates", default="50mbit,200mbit,1gbit,3gbit")
    parser.add_argument("--least-bursts", default="32768,131072", metavar="BYTES,...",
                        help="least sizes of a link's token bucket, to show how much rests on it")
    experiments.add_arguments(parser, "figure9.csv", parameters=0)
    parser.add_argument("input", nargs="?", default="inputs/figure9.yaml")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")

    provenance, all_rows, lines = experiments.provenance(arguments), [], []
    for rate, least in laboratories(arguments):
        repetitions = min(20, max(5, round(netlab.bits_per_second(rate) / 50e6)))
        rows = [{**row, "ranks_per_host": arguments.ranks_per_host,
                 "burst_share": f"{experiments.burst_share(row):.5f}",
                 "share_of_line_rate": f"{experiments.share_of_line_rate(row):.3f}", **provenance}
                for row in experiments.bench_collective(
                    arguments.onebit, arguments.hosts, arguments.ranks_per_host, rate, arguments.input,
                    [f"bench.repetitions={repetitions}", *arguments.set], least)]
        all_rows += rows
        dense, sign = experiments.fastest(rows, False), experiments.fastest(rows, True)
        cells = "  ".join(f"{row['collective']:>23} {float(row['p50_s']):>9.4f} "
                          f"{100 * float(row['share_of_line_rate']):>5.1f}%" for row in (dense, sign))
        lines.append(f"{rate:>8}  {dense['burst_bytes']:>7}  {float(dense['link_bit_per_s']) / 1e6:>11.1f}  {cells}  "
                     f"{experiments.steady_s(dense) / experiments.steady_s(sign):>7.1f}x")
        experiments.write_csv(arguments.output, all_rows)
    print(f"\n{all_rows[0]['parameters']} parameters, {arguments.hosts} hosts of {arguments.ranks_per_host} rank(s)")
    print(f"{'rate':>8}  {'burst B':>7}  {'link Mbit/s':>11}  {'fastest dense':>23} {'s':>9} {'line':>6}  {'fastest compressed':>23} "
          f"{'s':>9} {'line':>6}  {'faster':>8}")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
