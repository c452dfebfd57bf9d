#!/usr/bin/env python3
"""Takes a training step apart on shaped networks, as Table 1 of the 1-bit Adam paper does, and prints one table.

Usage: table1.py [--rates 200mbit,1gbit] [--hosts 2,4] [--output table1.csv] [options]

One rank a host, 25 million parameters, compute : parameters as for BERT-Large (experiments.py). For Adam and for 1-bit
Adam's compression stage: forward pass, what of the dense average is not hidden behind the backward pass, the rest of the
backward pass, step (optimiser and compressed exchange), and the share of communication in the whole. Needs root.
"""

import argparse
import sys

import experiments


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="200mbit,1gbit")
    parser.add_argument("--hosts", default="2,4")
    experiments.add_arguments(parser, "results/table1.csv")
    arguments = parser.parse_args()

    provenance, rows = experiments.provenance(arguments), []
    for rate in arguments.rates.split(","):
        for hosts in map(int, arguments.hosts.split(",")):
            run = experiments.synthetic(arguments, hosts, rate)
            for stage, phase in (("adam", "dense"), ("onebit_adam", "compressed")):
                total = run.mean_s(phase, "step_s")
                communication = run.mean_s(phase, "allreduce_s", "all_to_all_s", "all_gather_s")
                seconds = {
                    "forward_s": run.mean_s(phase, "forward_s"),
                    "backward_allreduce_s": run.mean_s(phase, "allreduce_s"),
                    "backward_allreduce_hidden_s": run.mean_s(phase, "allreduce_hidden_s"),
                    "backward_everything_else_s": run.mean_s(phase, "backward_s"),
                    "step_s": run.mean_s(phase, "compress_s", "all_to_all_s", "average_s", "all_gather_s", "update_s"),
                    "total_s": total, "communication_s": communication, "allreduce_share": communication / total}
                rows.append({**run.columns(hosts, rate), "stage": stage,
                             **{name: f"{value:.6g}" for name, value in seconds.items()}, **provenance})
            experiments.write_csv(arguments.output, rows)

    print(f"\n{rows[0]['parameters']} parameters, {float(rows[0]['compute_time_ms']):.3g} ms of compute; times in ms")
    print(f"{'rate':>8} {'link Mbit/s':>11} {'hosts':>5} {'stage':>12} {'forward':>8} {'backward':>10} {'(hidden)':>9} "
          f"{'backward':>10} {'step':>8} {'total':>9} {'all-':>7}")
    print(f"{'':>8} {'':>11} {'':>5} {'':>12} {'':>8} {'allreduce':>10} {'':>9} {'else':>10} {'':>8} {'':>9} "
          f"{'reduce':>7}")
    for row in rows:
        ms = {name: 1e3 * float(row[name]) for name in row if name.endswith("_s") and name != "link_bit_per_s"}
        link = f"{float(row['link_bit_per_s']) / 1e6:.1f}" if row["link_bit_per_s"] else ""
        print(f"{row['rate']:>8} {link:>11} {row['hosts']:>5} {row['stage']:>12} {ms['forward_s']:>8.1f} "
              f"{ms['backward_allreduce_s']:>10.1f} {ms['backward_allreduce_hidden_s']:>9.1f} "
              f"{ms['backward_everything_else_s']:>10.1f} {ms['step_s']:>8.1f} {ms['total_s']:>9.1f} "
              f"{100 * float(row['allreduce_share']):>6.0f}%")


if __name__ == "__main__":
    sys.exit(main())
