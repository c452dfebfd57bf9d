#!/usr/bin/env python3
"""Measures averages of OneBit, PyTorch and DeepSpeed side by side over the same shaped links (docs/guide/network.md).

For each rate there is one laboratory (netlab.py; needs root), and in it some rounds. A round starts `onebit bench
collective` for each of OneBit's averages, and then one process a rank for all the others (peers_rank.py), which take
turns. Each average is checked once and then timed three times a round. A time is the slowest rank's. The bytes are
those that the system counts at a host's link, so they include headers, answers and, for OneBit, the start of MPI.

--python names a Python that has the other libraries, for example of a virtual environment:

    python3 -m venv peers && peers/bin/pip install torch numpy deepspeed==0.19.7

DeepSpeed 0.19.7 is the last one with compressed averages. Without --python only OneBit is measured.
"""

import json
import math
import os
import pathlib
import shutil
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from lib import ROOT, laboratory, launch, tables
from netlab import Laboratory

HERE = pathlib.Path(__file__).resolve().parent
INTERFACE = "eth0"  # of a laboratory's host
ONEBIT = "mpi_allreduce,pairwise_allreduce,pairwise_bf16,pairwise_compressed"
PEERS = "gloo_fp32,gloo_fp16,gloo_bf16,powersgd_1,powersgd_4,deepspeed_compressed"
# The least, the median and the greatest time of three calls are all of them: collective.csv has no single times.
CALLS = 3

# Runs a rank of a command and writes the bytes that its host sent meanwhile: COUNTED INTERFACE FILE COMMAND …
COUNTED = """
counter=/sys/class/net/$1/statistics/tx_bytes
before=$(<"$counter")
"${@:3}"
status=$?
echo $(($(<"$counter") - before)) > "$2.$OMPI_COMM_WORLD_RANK"
exit $status
"""


def onebit_command(arguments, collective, directory):
    settings = {"run.output": directory, "bench.collectives": f"[{collective}]", "bench.repetitions": CALLS,
                "bench.warmup": 0, "bench.smallest": arguments.parameters, "bench.largest": arguments.parameters}
    return ["bash", "-c", COUNTED, "counted", INTERFACE, f"{directory}.bytes", arguments.onebit, "bench",
            "collective", "inputs/figure9.yaml", *launch.overrides(settings), *launch.overrides(arguments.set)]


def peers_command(arguments, output):
    return [arguments.python, HERE / "peers_rank.py", "--elements", arguments.parameters, "--calls", CALLS,
            "--address", Laboratory.address(0), "--interface", INTERFACE, "--output", output, *arguments.peers]


def onebit_result(collective, directory, version):
    row, = tables.read_csv(directory / "collective.csv")
    counts = [int(path.read_text()) for path in directory.parent.glob(f"{directory.name}.bytes.*")]
    return {"method": collective, "library": "OneBit", "version": version,
            "seconds": [float(row[name]) for name in ("min_s", "p50_s", "max_s")],
            "bytes": statistics.mean(counts) / (1 + CALLS)}  # the first call is checked


def run_in_laboratory(arguments, rate, directory, version):
    """(what each method of each round gave, the laboratory's columns)."""
    commands, results = [], []
    for number in range(arguments.rounds):
        for collective in arguments.collectives:
            commands.append(onebit_command(arguments, collective, directory / f"{number}-{collective}"))
        if arguments.python:
            commands.append(peers_command(arguments, directory / f"{number}-peers.json"))
    words = [word for command in commands for word in ("--next", *command)][1:]
    netlab = [sys.executable, ROOT / "scripts/netlab.py", "--hosts", arguments.hosts, "--rate", rate,
              "--links", directory / "links.csv", "--", *words]
    if launch.run_while_here(list(map(str, netlab)), cwd=ROOT, env={"OMP_NUM_THREADS": "1", **os.environ}) != 0:
        sys.exit(f"peers: a command in the laboratory at {rate} failed, see above")
    for number in range(arguments.rounds):
        results += [onebit_result(collective, directory / f"{number}-{collective}", version)
                    for collective in arguments.collectives]
        if arguments.python:
            results += json.loads((directory / f"{number}-peers.json").read_text())
    return results, laboratory.columns_of_links(directory / "links.csv")


def measure(arguments, rate, origin):
    """Rows of one rate: a method's calls of all rounds together."""
    with tempfile.TemporaryDirectory(prefix="onebit-peers.") as directory:
        results, links = run_in_laboratory(arguments, rate, pathlib.Path(directory), origin["git"])
    rows = []
    for method in dict.fromkeys(result["method"] for result in results):
        of_method = [result for result in results if result["method"] == method]
        seconds = [value for result in of_method for value in result["seconds"]]
        rows.append({"method": method, "library": of_method[0]["library"], "version": of_method[0]["version"],
                     "rate": rate, **links, "hosts": arguments.hosts, "elements": arguments.parameters,
                     "rounds": arguments.rounds, "runs": len(seconds),
                     **{f"{name}_s": f"{of(seconds):.6g}" for name, of in
                        (("p50", statistics.median), ("min", min), ("max", max))},
                     "link_bytes": f"{statistics.mean(result['bytes'] for result in of_method):.0f}", **origin})
    return rows


def table(rows):
    compressed = {row["rate"]: float(row["p50_s"]) for row in rows if row["method"] == "pairwise_compressed"}
    return tables.aligned(
        ["rate", "average", "library", "version", "median s", "least", "greatest", "MB a host", "over OneBit's"],
        [[row["rate"], row["method"], row["library"], row["version"],
          *(f"{float(row[name]):.4f}" for name in ("p50_s", "min_s", "max_s")), f"{float(row['link_bytes']) / 1e6:.3f}",
          f"{float(row['p50_s']) / compressed.get(row['rate'], math.nan):.2f}x"] for row in rows])


def python(name):
    """The type of an option: an interpreter by its path or its name on PATH."""
    return launch.program(shutil.which(name) or name)


def main():
    parser = laboratory.parser_of(__doc__, "results/peers.csv")
    parser.add_argument("--python", type=python, metavar="PROGRAM", help="with torch, and deepspeed if it is there")
    parser.add_argument("--hosts", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--parameters", type=int, default=25000000, help="default: %(default)s")
    parser.add_argument("--rates", type=laboratory.words, default="200mbit,1gbit", help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=2, help=f"of {CALLS} calls; default: %(default)s")
    parser.add_argument("--collectives", type=laboratory.words, default=ONEBIT, help="OneBit's; default: %(default)s")
    parser.add_argument("--peers", type=laboratory.words, default=PEERS, help="the others; default: %(default)s")
    arguments = parser.parse_args()

    origin, rows = laboratory.origin(arguments), []
    for rate in arguments.rates:
        rows += measure(arguments, rate, origin)
        tables.write_csv(arguments.output, rows)
    print(f"\n{arguments.parameters} elements, {arguments.hosts} hosts; seconds of the slowest rank")
    print(table(rows))


if __name__ == "__main__":
    main()
