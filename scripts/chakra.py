#!/usr/bin/env python3
"""Writes a finished run of `onebit train` as execution traces of MLCommons Chakra, a file for each rank.

The files are DIR/NAME.RANK.et, where NAME is that of the run's directory. A step is a chain of nodes, one for each
phase that steps.csv times. All ranks have the times of rank 0, because steps.csv has no others.

Runs whose steps are not such a chain, or whose bytes cannot be divided exactly among the collectives, are refused.
"""

import argparse
import collections
import sys

from lib import launch
from lib.chakra import SCHEMA, CollectiveCommType, GlobalMetadata, Node, NodeType, attributes, trace
from lib.runs import Run

# Phases of a step in the order in which they take place; each waits for the one before it.
PHASES = ("forward", "backward", "check", "agree", "compress", "allreduce", "all_to_all", "average", "all_gather",
          "update")
COLLECTIVES = {"agree": CollectiveCommType.ALL_REDUCE, "allreduce": CollectiveCommType.ALL_REDUCE,
               "all_to_all": CollectiveCommType.ALL_TO_ALL, "all_gather": CollectiveCommType.ALL_GATHER}
# Algorithms whose steps take place in that order. Others update on both sides of an average, average twice in a step,
# or update within the average.
ALGORITHMS = ("adam", "onebit_adam", "onebit_adam_32bit", "adam_1bit_naive", "sgd", "momentum_sgd", "double_squeeze",
              "ef_momentum_sgd", "onebit_sgd", "zero_one_adam", "onebit_lamb", "onebit_lion", "signum",
              "distributed_lion", "efficient_adam")
AGREE_BYTES = 32  # four doubles, in which the ranks agree on the loss and the norm
COLUMNS = ("algorithm", "ranks", "restarts", "bucket_bytes", "compressed_bucket_bytes", "collective", "dense_type",
           "bytes_sent_allreduce", "bytes_sent_all_to_all", "bytes_sent_all_gather", "bytes_sent_reduce_scatter")


def obstacle(run):
    """Why the run's steps are no chain of phases; empty where they are."""
    if not run.complete or run.problems:
        return f"it is not a whole run ({'; '.join(run.problems) or 'a later one has begun'}): wait for its end"
    if missing := [name for name in COLUMNS if name not in run.run]:
        return f"run.csv has no column {missing[0]}: run it again with this version"
    value = run.run.get
    if value("algorithm") not in ALGORITHMS:
        return f"steps of {value('algorithm')} are no chain of phases: trace one of {', '.join(ALGORITHMS)}"
    if int(value("restarts")) > 0:
        return "it restarted from a checkpoint, perhaps with other ranks: trace a run from its first step"
    if int(value("bucket_bytes")) > 0:
        return ("averages travelled during the backward pass, and no file has the times of their buckets: run it with "
                "comm.bucket_bytes=0")
    if int(value("compressed_bucket_bytes")) > 0:
        return "compressed buckets are timed as one phase: run it with comm.compressed_bucket_bytes=0"
    if "hierarchical" in value("collective"):
        return "hierarchical averages have several groups of ranks: run it with comm.collective=flat"
    if run.input.get("comm.exchange") == "pairwise" and any(step["phase"] == "compressed" for step in run.steps):
        return "its messages travelled while the ranks compressed: run it with comm.exchange=collective"
    if run.input.get("comm.exchange") == "grid":
        return "rows and columns of a grid are other groups of ranks: run it with comm.exchange=collective"
    return ""


def bytes_of_steps(run):
    """[{phase: bytes that a rank sends in it}, …] of all steps.

    \\raises ValueError where run.csv's sums cannot be divided exactly among the steps
    """
    sums = {name: int(run.run[f"bytes_sent_{name}"])
            for name in ("allreduce", "all_to_all", "all_gather", "reduce_scatter")}
    sent = {phase: [int(step["bytes_sent"]) for step in run.steps if step["phase"] == phase]
            for phase in ("dense", "compressed")}
    dense = sum(sent["dense"])
    if run.run["dense_type"] != "fp32":
        # Such an average is an all-to-all and an all-gather of as many bytes; a trace has it as the allreduce it is.
        sums["allreduce"] += dense
        sums["all_to_all"] -= dense // 2
        sums["all_gather"] -= dense // 2
    exchanges = [count for count in sent["compressed"] if count > 0]
    parts = {name: sums[name] // len(exchanges) for name in ("all_to_all", "all_gather")} if exchanges else {}
    expected = {"allreduce": dense, "reduce_scatter": 0, **{name: parts.get(name, 0) * len(exchanges)
                                                            for name in ("all_to_all", "all_gather")}}
    if sums != expected or any(sum(parts.values()) != count for count in exchanges):
        raise ValueError("its compressed steps differ in their bytes or have dense averages too, and run.csv has sums "
                         "of the collectives alone, so they cannot be told step by step")
    return [{} if step["bytes_sent"] == "0" else
            {"allreduce": int(step["bytes_sent"])} if step["phase"] == "dense" else parts for step in run.steps]


def input_bytes(phase, sent, ranks):
    """Bytes of the vector that a rank hands to a collective in which it sends `sent` bytes to others.

    A ring's allreduce sends 2 (n−1)/n of it, rounded down; an all-to-all (n−1)/n; an all-gather n−1 times all of it.
    """
    others = ranks - 1
    return {"allreduce": -(-sent * ranks // (2 * others)), "all_to_all": sent * ranks // others,
            "all_gather": sent // others}[phase]


def nodes_of(run, first, last):
    """The nodes of the steps from `first` to `last`. What rounding to whole microseconds leaves of a phase counts in
    its next step, so that sums over the steps are right."""
    ranks = int(run.run["ranks"])
    seconds, nodes = collections.Counter(), []
    for step, sent in list(zip(run.steps, bytes_of_steps(run)))[first - 1:last]:
        for phase in PHASES:
            time = float(step[f"{phase}_s"])
            if time == 0 and phase not in sent:
                continue
            before = round(1e6 * seconds[phase])
            seconds[phase] += time
            values = {"is_cpu_op": False}  # the rank is the processor that a simulator schedules
            if phase in sent:
                values.update(comm_size=input_bytes(phase, sent[phase], ranks), bytes_sent=sent[phase])
            elif phase == "agree" and ranks > 1:
                values.update(comm_size=AGREE_BYTES)
            collective = "comm_size" in values
            if collective:
                values.update(comm_type=int(COLLECTIVES[phase]))
            nodes.append(Node(id=len(nodes), name=f"step {step['step']}: {phase}",
                              type=NodeType.COMM_COLL_NODE if collective else NodeType.COMP_NODE,
                              data_deps=[len(nodes) - 1] if nodes else [],
                              duration_micros=round(1e6 * seconds[phase]) - before, attr=attributes(values)))
    return nodes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=launch.path, metavar="RUN", help="the directory of the run (run.output)")
    parser.add_argument("--output", type=launch.path, metavar="DIR", required=True)
    parser.add_argument("--steps", type=int, nargs=2, metavar=("FIRST", "LAST"), help="default: all steps")
    arguments = parser.parse_args()

    run = Run(arguments.run)
    try:
        if reason := obstacle(run):
            raise ValueError(reason)
        first, last = arguments.steps or (1, len(run.steps))
        if not 1 <= first <= last <= len(run.steps):
            raise ValueError(f"its steps are 1 to {len(run.steps)}, so there are none from {first} to {last}")
        nodes = nodes_of(run, first, last)
    except ValueError as error:
        sys.exit(f"chakra: {arguments.run}: {error}")
    metadata = GlobalMetadata(attr=attributes({
        "schema": SCHEMA, "program": f"onebit {run.run['git']}", "algorithm": run.run["algorithm"],
        "ranks": int(run.run["ranks"]), "durations": "measured on rank 0"}))
    content = trace(metadata, nodes)
    arguments.output.mkdir(parents=True, exist_ok=True)
    name = arguments.run.resolve().name
    for rank in range(int(run.run["ranks"])):
        (arguments.output / f"{name}.{rank}.et").write_bytes(content)
    print(f"{arguments.output}/{name}.*.et: {run.run['ranks']} ranks of {len(nodes)} nodes, steps {first} to {last}")


if __name__ == "__main__":
    main()
