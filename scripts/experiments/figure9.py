#!/usr/bin/env python3
"""Measures the gain of compression in averages on shaped networks, as in Figure 9 of the paper (docs/guide/network.md).

For each rate and each size of the links' token buckets, `onebit bench collective INPUT.yaml` runs in a laboratory of
its own (netlab.py; needs root), with 5 to 20 repetitions, the more the faster the links are. The table compares the
fastest dense average in float, the fastest one in bf16 and the fastest compressed one, with all of their work.
whole_step.py measures the whole steps of the paper's figure.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from lib import laboratory, tables
from lib.laboratory import bits_per_second, fastest, steady_s


def laboratories(arguments):
    """Pairs of a rate and a least burst, without those whose links would be the same."""
    for rate in arguments.rates:
        bursts = {laboratory.burst_of(bits_per_second(rate), least): least for least in arguments.least_bursts}
        yield from ((rate, least) for least in bursts.values())


def measure(arguments, rate, least):
    repetitions = min(20, max(5, round(bits_per_second(rate) / 50e6)))
    rows = laboratory.bench_collective(
        arguments.onebit, [f"bench.repetitions={repetitions}", *arguments.set], arguments.hosts, rate, arguments.input,
        ranks_per_host=arguments.ranks_per_host, least_burst_bytes=least)
    return [{**row, "ranks_per_host": arguments.ranks_per_host,
             "burst_share": f"{laboratory.burst_share(row):.5f}",
             "share_of_line_rate": f"{laboratory.share_of_line_rate(row):.3f}"} for row in rows]


def main():
    parser = laboratory.parser_of(__doc__, "results/figure9.csv")
    parser.add_argument("--hosts", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--ranks-per-host", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--rates", type=laboratory.words, default="50mbit,200mbit,1gbit,3gbit",
                        help="default: %(default)s")
    parser.add_argument("--least-bursts", type=laboratory.integers, default="32768,131072", metavar="BYTES,...",
                        help="least sizes of a link's token bucket, to show how much rests on it")
    parser.add_argument("input", nargs="?", default="inputs/figure9.yaml", metavar="INPUT.yaml")
    arguments = parser.parse_args()

    origin, rows, lines = laboratory.origin(arguments), [], []
    for rate, least in laboratories(arguments):
        measured = measure(arguments, rate, least)
        rows += [{**row, **origin} for row in measured]
        tables.write_csv(arguments.output, rows)
        dense, bf16, sign = (fastest(measured, kind) for kind in ("dense", "bf16", "compressed"))
        lines.append([rate, dense["burst_bytes"], laboratory.mbit(dense["link_bit_per_s"])])
        for row in (dense, bf16, sign):
            lines[-1] += [row["collective"], f"{float(row['p50_s']):.4f}",
                          tables.percent(float(row["share_of_line_rate"]), 1)] if row else ["", "", ""]
        lines[-1] += [f"{steady_s(row) / steady_s(sign):.1f}x" if row else "" for row in (dense, bf16)]
    print(f"\n{rows[0]['parameters']} parameters, {arguments.hosts} hosts of {arguments.ranks_per_host} rank(s)")
    print(tables.aligned(["rate", "burst B", "link Mbit/s", "fastest dense", "s", "line", "fastest bf16", "s", "line",
                          "fastest compressed", "s", "line", "faster", "than bf16"], lines))


if __name__ == "__main__":
    main()
