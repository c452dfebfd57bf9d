#!/usr/bin/env python3
"""Measures what compression gains in a whole training step on shaped networks, as Figure 9 of the 1-bit Adam paper does.

Usage: whole_step.py [--hosts 4] [--rates 50mbit,200mbit,1gbit,2gbit,3gbit] [--output whole_step.csv] [options]

One rank a host, 25 million parameters, compute : parameters as for BERT-Large (experiments.py). The paper's speed-ups
beside it are those of 256 GPUs, 4 on a host, with half precision: 16 times fewer bytes, where these are 32 times fewer.
figure9.py measures the exchange alone. Needs root.
"""

import argparse
import sys

import experiments

PAPER = {"50mbit": 10.83, "1gbit": 6.59, "2gbit": 5.93}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rates", default="50mbit,200mbit,1gbit,2gbit,3gbit")
    experiments.add_arguments(parser, "results/whole_step.csv")
    arguments = parser.parse_args()

    provenance, rows = experiments.provenance(arguments), []
    for rate in arguments.rates.split(","):
        run = experiments.synthetic(arguments, arguments.hosts, rate)
        adam, onebit = run.mean_s("dense", "step_s"), run.mean_s("compressed", "step_s")
        seconds = {"adam_s": adam, "adam_allreduce_s": run.mean_s("dense", "allreduce_s"),
                   "adam_allreduce_hidden_s": run.mean_s("dense", "allreduce_hidden_s"), "onebit_adam_s": onebit,
                   "onebit_adam_communication_s": run.mean_s("compressed", "all_to_all_s", "all_gather_s")}
        rows.append({**run.columns(arguments.hosts, rate), **{name: f"{value:.6g}" for name, value in seconds.items()},
                     "speedup": f"{adam / onebit:.4g}", "paper_speedup": PAPER.get(rate, ""), **provenance})
        experiments.write_csv(arguments.output, rows)

    print(f"\n{rows[0]['parameters']} parameters, {arguments.hosts} hosts, {float(rows[0]['compute_time_ms']):.3g} ms of "
          "compute; seconds of a step")
    print(f"{'rate':>8} {'link Mbit/s':>11} {'Adam':>9} {'allreduce':>10} {'1-bit Adam':>11} {'exchange':>9} {'faster':>8} "
          f"{'paper':>7}")
    for row in rows:
        link = f"{float(row['link_bit_per_s']) / 1e6:.1f}" if row["link_bit_per_s"] else ""
        paper = f"{row['paper_speedup']}x" if row["paper_speedup"] else ""
        print(f"{row['rate']:>8} {link:>11} {float(row['adam_s']):>9.3f} {float(row['adam_allreduce_s']):>10.3f} "
              f"{float(row['onebit_adam_s']):>11.4f} {float(row['onebit_adam_communication_s']):>9.4f} "
              f"{float(row['speedup']):>7.2f}x {paper:>7}")


if __name__ == "__main__":
    sys.exit(main())
