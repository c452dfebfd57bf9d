#!/usr/bin/env python3
"""Measures the collectives in laboratories of several sizes and rates, for validate_model.py.

For each number of hosts and each rate `onebit bench collective` runs twice in a laboratory (netlab.py; needs root):
dense averages, which are long on slow links, and compressed ones. docs/reference/output/laboratory.md describes the
columns. By the line rates the defaults take seven minutes. A rate that the machine does not carry ends the script; the
rows before it are kept.
"""

import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from lib import laboratory, tables


def main():
    parser = laboratory.parser_of(__doc__, "results/laboratory.csv")
    for option, kind, default in (
            ("--hosts", laboratory.integers, "2,3,4"), ("--rates", laboratory.words, "50mbit,200mbit,1gbit"),
            ("--ranks-per-host", int, 1), ("--smallest", int, 1000000), ("--factor", int, 5),
            ("--largest", int, 25000000), ("--dense", str, "pairwise_allreduce"),
            ("--compressed", str, "mpi_compressed,pairwise_compressed"), ("--dense-repetitions", int, 1),
            ("--compressed-repetitions", int, 5)):
        parser.add_argument(option, type=kind, default=default, help="default: %(default)s")
    arguments = parser.parse_args()

    begin, rows = time.monotonic(), []
    origin = {"shared_cores": os.cpu_count(), **laboratory.origin(arguments)}
    for rate in arguments.rates:
        for hosts in arguments.hosts:
            for collectives, warmup, repetitions in (
                    (arguments.dense, 0, arguments.dense_repetitions),
                    (arguments.compressed, 1, arguments.compressed_repetitions)):
                settings = {"bench.collectives": f"[{collectives}]", "bench.warmup": warmup,
                            "bench.repetitions": repetitions, "bench.smallest": arguments.smallest,
                            "bench.factor": arguments.factor, "bench.largest": arguments.largest}
                measured = laboratory.bench_collective(
                    arguments.onebit, [*(f"{key}={value}" for key, value in settings.items()), *arguments.set], hosts,
                    rate, "inputs/bench_collective.yaml", ranks_per_host=arguments.ranks_per_host)
                rows += [{**row, **origin} for row in measured]
            tables.write_csv(arguments.output, rows)
            print(f"validation: {len(rows)} rows after {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
