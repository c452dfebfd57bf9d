#!/usr/bin/env python3
"""How long does an average take on 4 to 1024 ranks of simulated networks?

`bench collective` runs under SimGrid's SMPI (lib/smpi.py): the program's own messages cross a simulated network, and
each average is compared with its reference implementation before it is timed. Computing takes no simulated time.
The vectors are shorter than those that they stand for, of which 1024 copies fit no machine. Links are as many times
slower as messages are shorter, so that a message takes as long as it would there.

Writes PAGE.csv beside PAGE.md and goes on where it was with rows of the same commit. Needs build/smpi/onebit_smpi
(scripts/setup.sh --smpi; cmake --preset smpi; cmake --build --preset smpi).
"""

import argparse
import itertools
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from lib import ROOT, launch, plots, provenance, smpi, tables

PARAMETERS = {"BERT-Large": 336_000_000, "a bucket": 1 << 20}
ELEMENTS = 1 << 18  # of the vector that is averaged in their place
RANKS = (4, 16, 64, 256, 1024)
LIBRARY = ("mpi_allreduce", "mpi_bf16", "mpi_compressed")
PAIRWISE = ("pairwise_allreduce", "pairwise_bf16", "pairwise_compressed")
HIERARCHICAL = ("hierarchical_allreduce", "hierarchical_bf16", "hierarchical_compressed")
# Latencies, overheads and bandwidths inside hosts of the paper's clusters are those of inputs/predict/paper_….yaml.
PLATFORMS = {
    "star": (smpi.Platform("flat", 1, 10e9, 20e-6, 2e-6), LIBRARY + PAIRWISE),
    "Ethernet cluster": (smpi.Platform("flat", 4, 4.1e9, 30e-6, 2e-6, 4.3e9), LIBRARY + HIERARCHICAL),
    "InfiniBand cluster": (smpi.Platform("flat", 8, 100e9, 5e-6, 2e-6, 50e9), LIBRARY + HIERARCHICAL),
    "fat tree": (smpi.Platform("fat tree", 1, 100e9, 5e-6, 2e-6), LIBRARY),
    "dragonfly": (smpi.Platform("dragonfly", 1, 100e9, 5e-6, 2e-6), LIBRARY),
}
COLUMNS = ["platform", "collective", "ranks", "hosts", "parameters", "elements", "seconds", "wire_bytes", "runs",
           "machine", "git"]


def message_bytes(collective, elements):
    """Bytes of the elements that one rank has for another: floats, bf16, or words of signs and their scale."""
    if collective.endswith("_compressed"):
        return 4 * -(-elements // 32) + 4
    return elements * (2 if collective.endswith("_bf16") else 4)


def peers(platform, collective, ranks):
    """Ranks to which a rank sends a message at once."""
    return (ranks // platform.ranks_per_host if collective in HIERARCHICAL else ranks) - 1


def rows_of(program, name, ranks, parameters, collectives):
    """Rows of averages whose messages are the same number of times shorter than those of `parameters`."""
    platform, _ = PLATFORMS[name]
    shorter = (message_bytes(collectives[0], parameters // ranks) / message_bytes(collectives[0], ELEMENTS // ranks))
    for row in smpi.bench(program, platform.slower(shorter), ranks, collectives, ELEMENTS):
        collective, sent = row["collective"], float(row["wire_bytes"])
        counted = 2 * peers(platform, collective, ranks) * message_bytes(collective, ELEMENTS // ranks)
        if sent != counted:
            sys.exit(f"many_ranks: {collective} on {ranks} ranks sent {sent:.0f} bytes and not {counted:.0f}")
        yield {"platform": name, "collective": collective, "ranks": ranks, "hosts": row["hosts"],
               "parameters": parameters, "elements": ELEMENTS, "seconds": f"{float(row['p50_s']):.6g}",
               "wire_bytes": f"{sent * shorter:.0f}", "runs": 1}


def simulate(arguments, origin):
    """Adds what the CSV file lacks, the fewest ranks first."""
    path = arguments.output.with_suffix(".csv")
    rows = [row for row in (tables.read_csv(path) if path.exists() else []) if row["git"] == origin["git"]]
    done = {(row["platform"], row["collective"], int(row["ranks"]), int(row["parameters"])) for row in rows}
    for ranks, parameters, name in itertools.product(RANKS, PARAMETERS.values(), PLATFORMS):
        platform, collectives = PLATFORMS[name]
        missing = [one for one in collectives if (name, one, ranks, parameters) not in done
                   and platform.ranks_per_host < ranks <= arguments.most_ranks
                   and (one in LIBRARY or ranks * peers(platform, one, ranks) <= arguments.most_messages)]
        for compressed in (False, True):
            group = [one for one in missing if one.endswith("_compressed") == compressed]
            # A bf16 message is as many times shorter as one of floats; a compressed one also has its scale.
            if group:
                rows += [{**row, **origin} for row in rows_of(arguments.program, name, ranks, parameters, group)]
                tables.write_csv(path, rows, COLUMNS)
                print(f"many_ranks: {name}, {ranks} ranks, {parameters} parameters: {', '.join(group)}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=launch.program, default=smpi.PROGRAM, metavar="PROGRAM",
                        help="default: build/smpi/onebit_smpi")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "docs/results/many_ranks.md", metavar="PAGE.md",
                        help="default: docs/results/many_ranks.md")
    parser.add_argument("--most-ranks", type=int, default=RANKS[-1], help="default: %(default)s")
    parser.add_argument("--most-messages", type=int, default=70_000,
                        help="leave out averages with more of them under way at once, whose simulation takes hours; "
                        "default: %(default)s")
    parser.add_argument("--draw-only", action="store_true", help="make the page from the CSV file")
    arguments = parser.parse_args()
    if not arguments.draw_only:
        first, = smpi.bench(arguments.program, PLATFORMS["star"][0], 2, LIBRARY[:1], ELEMENTS)
        simulate(arguments, {"git": provenance.check_version(first["git"], arguments.output),
                             "machine": provenance.machine()})


if __name__ == "__main__":
    main()
