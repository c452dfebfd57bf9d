#!/usr/bin/env python3
"""Measures throughput over the number of hosts, as Figure 5 of the 1-bit Adam paper does, and prints one table.

Usage: figure5.py [--hosts 1,2,4,6,8] [--rate 1gbit] [--output figure5.csv] [options]

One rank a host and 16 samples a rank, as the paper has a GPU, compute : parameters as for BERT-Large (experiments.py). As
in the paper, Adam's throughput is that of 1-bit Adam's warm-up, and 1-bit Adam's that of its compression stage. All hosts
share this machine's cores, so the model is smaller than in the other experiments. Needs root.
"""

import argparse
import sys

import experiments

SAMPLES_PER_RANK = 16


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", default="1,2,4,6,8")
    parser.add_argument("--rate", default="1gbit")
    experiments.add_arguments(parser, "results/figure5.csv", parameters=8000000)
    arguments = parser.parse_args()

    provenance, rows = experiments.provenance(arguments), []
    for hosts in map(int, arguments.hosts.split(",")):
        run = experiments.synthetic(arguments, hosts, arguments.rate)
        adam, onebit = (SAMPLES_PER_RANK * hosts / run.mean_s(phase, "step_s") for phase in ("dense", "compressed"))
        rows.append({**run.columns(hosts, arguments.rate), "adam_samples_per_s": f"{adam:.6g}",
                     "onebit_adam_samples_per_s": f"{onebit:.6g}", "speedup": f"{onebit / adam:.4g}", **provenance})
        experiments.write_csv(arguments.output, rows)

    print(f"\n{rows[0]['parameters']} parameters, {float(rows[0]['compute_time_ms']):.3g} ms of compute; samples/s")
    print(f"{'hosts':>5} {'rate':>8} {'link Mbit/s':>11} {'Adam':>9} {'1-bit Adam':>11} {'faster':>8}")
    for row in rows:
        link = f"{float(row['link_bit_per_s']) / 1e6:.1f}" if row["link_bit_per_s"] else ""
        print(f"{row['hosts']:>5} {row['rate']:>8} {link:>11} {float(row['adam_samples_per_s']):>9.1f} "
              f"{float(row['onebit_adam_samples_per_s']):>11.1f} {float(row['speedup']):>7.2f}x")


if __name__ == "__main__":
    sys.exit(main())
