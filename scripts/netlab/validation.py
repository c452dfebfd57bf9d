#!/usr/bin/env python3
"""Measures the collectives in laboratories of several sizes and rates, for scripts/validate_model.py.

Usage: validation.py --output ROWS.csv [--onebit PROGRAM] [--hosts 2,3,4] [--rates 50mbit,200mbit,1gbit]
                     [--ranks-per-host 1] [--smallest 1000000] [--factor 5] [--largest 25000000]
                     [--dense pairwise_allreduce] [--compressed mpi_compressed,pairwise_compressed]
                     [--dense-repetitions 1] [--compressed-repetitions 5]

For each number of hosts and each rate a laboratory is made (netlab.py; needs root), in which `onebit bench collective`
runs twice: dense averages, which are long on slow links, and compressed ones. Every row goes into ROWS.csv, with the
columns of collective.csv and:
  rate            nominal rate of the links
  link_bit_per_s  measured rate of the slowest one
  shared_cores    cores that all hosts together have
  burst_bytes     what a link passes at once before its rate holds (netlab.py's tbf)
  runs, git, machine   repetitions, the program's commit, and this machine

By the line rates the defaults take seven minutes, most of it for 25 million parameters at 50 Mbit/s.
A rate that the machine does not carry ends the script; the rows before are kept.
"""

import argparse
import os
import pathlib
import time

import experiments


def measure(arguments, provenance, hosts, rate, collectives, warmup, repetitions):
    """Rows of collective.csv with the laboratory's columns."""
    rows = experiments.bench_collective(
        arguments.onebit, hosts, arguments.ranks_per_host, rate, "inputs/bench_collective.yaml",
        [f"bench.collectives=[{collectives}]", f"bench.smallest={arguments.smallest}", f"bench.factor={arguments.factor}",
         f"bench.largest={arguments.largest}", f"bench.warmup={warmup}", f"bench.repetitions={repetitions}"])
    return [{**row, "shared_cores": str(os.cpu_count()), **provenance} for row in rows]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, metavar="ROWS.csv")
    parser.add_argument("--onebit", default=str(experiments.ROOT / "build/openmp/onebit"))
    parser.add_argument("--hosts", default="2,3,4")
    parser.add_argument("--rates", default="50mbit,200mbit,1gbit")
    parser.add_argument("--ranks-per-host", type=int, default=1)
    parser.add_argument("--smallest", type=int, default=1000000)
    parser.add_argument("--factor", type=int, default=5)
    parser.add_argument("--largest", type=int, default=25000000)
    parser.add_argument("--dense", default="pairwise_allreduce")
    parser.add_argument("--compressed", default="mpi_compressed,pairwise_compressed")
    parser.add_argument("--dense-repetitions", type=int, default=1)
    parser.add_argument("--compressed-repetitions", type=int, default=5)
    arguments = parser.parse_args()
    arguments.onebit = str(pathlib.Path(arguments.onebit).resolve())
    os.environ.setdefault("OMP_NUM_THREADS", "1")

    begin, provenance, rows = time.monotonic(), experiments.provenance(arguments), []
    for rate in arguments.rates.split(","):
        for hosts in map(int, arguments.hosts.split(",")):
            rows += measure(arguments, provenance, hosts, rate, arguments.dense, 0, arguments.dense_repetitions)
            rows += measure(arguments, provenance, hosts, rate, arguments.compressed, 1, arguments.compressed_repetitions)
            experiments.write_csv(arguments.output, rows)
            print(f"validation: {len(rows)} rows after {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
