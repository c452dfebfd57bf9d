#!/usr/bin/env python3
"""How long does an average take on 4 to 256 ranks of simulated networks, and on 1024 if it is asked to?

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
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from lib import ROOT, launch, plots, smpi, tables
from lib.predict import fit, model

PARAMETERS = {"BERT-Large": 336_000_000, "a bucket": 1 << 20}
ELEMENTS = 1 << 18  # of the vector that is averaged in their place
RANKS = (4, 16, 64, 256, 1024)
LIBRARY = ("mpi_allreduce", "mpi_bf16", "mpi_compressed")
PAIRWISE = ("pairwise_allreduce", "pairwise_bf16", "pairwise_compressed")
GRID = ("grid_bf16", "grid_compressed")
HIERARCHICAL = ("hierarchical_allreduce", "hierarchical_bf16", "hierarchical_compressed")
# Latencies, overheads and bandwidths inside hosts of the paper's clusters are those of inputs/predict/paper_….yaml.
PLATFORMS = {
    "star": (smpi.Platform("flat", 1, 10e9, 20e-6, 2e-6), LIBRARY + GRID + PAIRWISE),
    "Ethernet cluster": (smpi.Platform("flat", 4, 4.1e9, 30e-6, 2e-6, 4.3e9), LIBRARY + HIERARCHICAL),
    "InfiniBand cluster": (smpi.Platform("flat", 8, 100e9, 5e-6, 2e-6, 50e9), LIBRARY + HIERARCHICAL),
    "fat tree": (smpi.Platform("fat tree", 1, 100e9, 5e-6, 2e-6), LIBRARY + GRID + PAIRWISE),
    "dragonfly": (smpi.Platform("dragonfly", 1, 100e9, 5e-6, 2e-6), LIBRARY + GRID + PAIRWISE),
}
MOST_RANKS = {"dragonfly": 64}  # lib/smpi.py says why
COLUMNS = ["platform", "collective", "ranks", "hosts", "parameters", "elements", "seconds", "wire_bytes", "runs",
           "machine", "git"]


def message_bytes(collective, elements):
    """Bytes of the elements that one rank has for another: floats, bf16, or words of signs and their scale."""
    if collective.endswith("_compressed"):
        return 4 * -(-elements // 32) + 4
    return elements * (2 if collective.endswith("_bf16") else 4)


def hops(platform, collective, ranks, parameters):
    """The exchanges of an average between hosts, model.hops."""
    others = ranks // platform.ranks_per_host if collective in HIERARCHICAL else ranks
    return model.hops(fit.FORM_OF[collective], model.Cluster(others, 1), message_bytes(collective, parameters // ranks))


def messages_at_once(platform, collective, ranks, parameters):
    """Messages under way at once, which the simulator's time grows with."""
    if collective == "mpi_allreduce":
        return ranks
    direct = collective in PAIRWISE + HIERARCHICAL
    return max(ranks * (hop.cluster.ranks - 1 if direct or hop.size < model.IN_TURN_FROM else 1)
               for hop in hops(platform, collective, ranks, parameters) if hop.part == "all_to_all")


def rows_of(program, name, ranks, parameters, collectives):
    """Rows of averages whose messages are the same number of times shorter than those of `parameters`."""
    platform, _ = PLATFORMS[name]
    shorter = message_bytes(collectives[0], parameters // ranks) / message_bytes(collectives[0], ELEMENTS // ranks)
    for row in smpi.bench(program, platform.slower(shorter), ranks, collectives, ELEMENTS,
                          hops(platform, collectives[0], ranks, parameters)):
        collective, sent = row["collective"], float(row["wire_bytes"])
        counted = sum((hop.cluster.ranks - 1) * hop.size for hop in hops(platform, collective, ranks, ELEMENTS))
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
                   and platform.ranks_per_host < ranks <= min(arguments.most_ranks, MOST_RANKS.get(name, ranks))
                   and messages_at_once(platform, one, ranks, parameters) <= arguments.most_messages]
        # The length of a message decides on the algorithms.
        for is_grid, width in itertools.product((False, True), ("_allreduce", "_bf16", "_compressed")):
            group = [one for one in missing if one.endswith(width) and (one in GRID) == is_grid]
            if group:
                rows += [{**row, **origin} for row in rows_of(arguments.program, name, ranks, parameters, group)]
                tables.write_csv(path, rows, COLUMNS)
                print(f"many_ranks: {name}, {ranks} ranks, {parameters} parameters: {', '.join(group)}", flush=True)


def predicted_s(row):
    """What the model of scripts/predict.py says, where work takes no time."""
    platform, hosts = PLATFORMS[row["platform"]][0], int(row["hosts"])
    return float(model.total_seconds(fit.FORM_OF[row["collective"]], model.Cluster(hosts, int(row["ranks"]) // hosts),
                                     float(row["parameters"]), model.Width(), platform.machine(hosts)))


def ranks_in(rows):
    return sorted({int(row["ranks"]) for row in rows})


def fastest(rows, kinds):
    return min((row for row in rows if row["collective"].endswith(kinds)), key=lambda row: float(row["seconds"]))


def seconds(row):
    return f"{float(row['seconds']):.3g}"


def best_table(rows):
    """Of each platform and number of ranks, the fastest averages of each width. Direct messages of one rank a host are
    no faster than the library's where these are long, so they may be missing; those by host may not."""
    lines = []
    for (name, (_, collectives)), ranks in itertools.product(PLATFORMS.items(), RANKS):
        own = [row for row in rows if (row["platform"], int(row["ranks"])) == (name, ranks)]
        if {row["collective"] for row in own} >= set(collectives) - set(PAIRWISE):
            dense, half, compressed = (fastest(own, kind) for kind in ("_allreduce", "_bf16", "_compressed"))
            gain = float(half["seconds"]) / float(compressed["seconds"])
            lines.append([name, ranks, *(f"{seconds(row)} `{row['collective']}`" for row in (dense, half, compressed)),
                          f"{gain:.3g}"])
    return tables.markdown(["network", "ranks", "float, s", "bf16, s", "one bit, s", "bf16 over one bit"], lines)


def wait_table(rows):
    """How much longer than its bytes at the line rate an average takes, where each host has one rank."""
    lines, ranks = [], ranks_in(rows)
    for name, (platform, collectives) in PLATFORMS.items():
        for collective in collectives:
            if platform.ranks_per_host > 1 or collective.endswith("_bf16"):
                continue
            own = {int(row["ranks"]): row for row in rows
                   if (row["platform"], row["collective"]) == (name, collective)}
            lines.append([name, f"`{collective}`"] + [
                tables.percent(float(own[n]["seconds"]) * platform.bit_per_s / 8 / float(own[n]["wire_bytes"]) - 1)
                if n in own else "" for n in ranks])
    return tables.markdown(["network", "average", *map(str, ranks)], lines)


def over_grid(rows, name, parameters, way, ranks):
    """How many times longer than on a grid another average with one bit takes, with two digits behind the point; in
    italics by the model, where the simulation would take too long, and empty where neither says it."""
    cells = {"platform": name, "ranks": str(ranks), "parameters": str(parameters)}
    both = [{**cells, "collective": f"{one}_compressed", "hosts": str(ranks)} for one in (way, "grid")]
    seconds = [float(row["seconds"]) for one in both for row in rows
               if all(row[key] == one[key] for key in (*cells, "collective"))]
    if len(seconds) == len(both):
        return f"{seconds[0] / seconds[1]:.2f}"
    return "" if ranks > MOST_RANKS.get(name, ranks) else f"*{predicted_s(both[0]) / predicted_s(both[1]):.2f}*"


def grid_table(rows):
    ranks = ranks_in(rows)
    return tables.markdown(["network", "vector", "how many times longer", *map(str, ranks)], [
        [name, of, words, *(over_grid(rows, name, parameters, way, n) for n in ranks)]
        for (name, (_, collectives)), (of, parameters), (way, words) in itertools.product(
            PLATFORMS.items(), PARAMETERS.items(), (("mpi", "the library's"), ("pairwise", "direct messages")))
        if GRID[0] in collectives])


def error_table(rows):
    """Of each average, and of all together."""
    lines = []
    rows = [row for row in rows if row["platform"] != "dragonfly"]
    for collective in [*dict.fromkeys(LIBRARY + GRID + PAIRWISE + HIERARCHICAL), ""]:
        own = [row for row in rows if collective in ("", row["collective"])]
        errors = [predicted_s(row) / float(row["seconds"]) - 1 for row in own]
        worst = max(zip(errors, own), key=lambda one: abs(one[0]))
        lines.append([f"`{collective}`" if collective else "all", len(own),
                      tables.percent(statistics.median(map(abs, errors)), 1), f"{100 * worst[0]:+.0f} %",
                      f"{worst[1]['platform']}, {worst[1]['ranks']} ranks, "
                      f"{float(worst[1]['parameters']) / 1e6:.3g} million"])
    return tables.markdown(["average", "rows", "median error", "worst", "where"], lines)


def page(rows):
    ranks = ranks_in(rows)
    parts = [
        "# Many ranks, simulated",
        "<!-- Made by scripts/experiments/many_ranks.py. -->",
        f"How long does an average take on {ranks[0]} to {ranks[-1]} ranks, which average is the fastest there, and "
        "where does the time of messages exceed that of their bytes? `onebit bench collective` ran under SimGrid's "
        "SMPI: the program's own messages crossed simulated networks. Every average was equal to its reference "
        "implementation on every rank, and sent the bytes that a formula counts. Nothing here was measured on "
        "a network.",
        tables.markdown(["network", "hosts", "link, Gbit/s", "latency, µs", "overhead, µs", "inside a host, GB/s"], [
            [name, "1 rank" if one.ranks_per_host == 1 else f"{one.ranks_per_host} ranks",
             f"{one.bit_per_s / 1e9:g}", f"{one.latency_s * 1e6:g}", f"{one.overhead_s * 1e6:g}",
             "" if one.ranks_per_host == 1 else f"{one.inside_B_per_s / 1e9:g}"]
            for name, (one, _) in PLATFORMS.items()]),
        "The two clusters are those of the 1-bit Adam paper, with the numbers of `inputs/predict/paper_ethernet.yaml` "
        "and `paper_infiniband.yaml`. A switch that never blocks connects the hosts of the first three networks. The "
        "fat tree has 16 hosts at a switch, which half as many links leave. The dragonfly has groups of 16 routers of "
        "2 hosts, and one link of 100 Gbit/s between any two groups. A latency is that of two links, and a way through "
        "several switches has more. An overhead counts at the sender and at the receiver.",
    ]
    for name, parameters in PARAMETERS.items():
        own = [row for row in rows if int(row["parameters"]) == parameters]
        parts += [f"## {name[0].upper()}{name[1:]}: {parameters / 1e6:.3g} million parameters",
                  "![seconds of an average over ranks on each network](many_ranks.svg)" if name == "BERT-Large" else "",
                  "The fastest averages, their seconds, and how many times longer the fastest one in bf16 takes than "
                  "the fastest one with one bit:", best_table(own),
                  "How much longer an average takes than its bytes at a link's bandwidth, where hosts have one rank:",
                  wait_table(own)]
    parts += [
        "## On a grid of ranks",
        "Averages of words can go along the rows and columns of a grid of ranks "
        "([`comm.exchange: grid`](../reference/algorithms/averages.md#on-a-grid-of-ranks)): fewer messages, and up to "
        "half as many bytes again. How many times longer than on a grid other averages with one bit take, where hosts "
        "have one rank; in italics what the model below says of both, where a simulation would take too long:",
        grid_table(rows),
        "Where bytes decide, a grid is slower. Where messages do, on many ranks or for short vectors, it is faster. "
        "Direct messages overlap their latencies, and only their overheads add up.",
        "## Predictions of the same averages",
        "`scripts/predict.py`'s closed forms for these networks, with nothing fitted and no time for work, beside the "
        "simulation; without the dragonfly, whose links between groups the model does not know:", error_table(rows),
        "[The model](../reference/prediction/model.md) knows one bandwidth and one latency between hosts. In the fat "
        "tree it takes the latency of four links where there are several switches, but not their fewer links.",
        "## What a simulation leaves out",
        "- Computing and memory take no time. A step of training has both.\n"
        f"- The vector has {ELEMENTS} elements. Links are as many times slower as messages are shorter, so that bytes, "
        "latencies and overheads count as for the parameters named. A message is not divided as `comm.message_bytes` "
        "divides longer ones.\n"
        "- The library's algorithms are those that Open MPI takes for messages of the lengths that they stand for: a "
        "ring for allreduce; an exchange with one rank after the other for an all-to-all of 3000 bytes a message or "
        "more, and all at once below; a ring for an all-gather of 50000 bytes or more in all. Both exchanges of a grid "
        "take the algorithm of the longer messages.\n"
        "- Links share their bandwidth fairly and lose nothing. No message waits for a busy core.\n"
        "- What has no number was not run, more ranks among it. The simulator's time grows at least with the square "
        "of the ranks.",
        "`scripts/setup.sh --smpi; cmake --preset smpi; cmake --build --preset smpi; "
        f"scripts/experiments/many_ranks.py --most-ranks {ranks[-1]}` makes this page and "
        "[many_ranks.csv](many_ranks.csv) "
        "([columns](../reference/output/results.md)).",
    ]
    return tables.page(parts)


def figure(rows, path):
    """Seconds of an average of BERT-Large over ranks, one pair of axes for each network."""
    pyplot = plots.pyplot
    drawn, axes = pyplot.subplots(2, 3, figsize=(plots.WIDTH, 6), sharex=True, sharey=True, constrained_layout=True)
    for (name, (_, collectives)), pair in zip(PLATFORMS.items(), axes.flat):
        for collective in collectives:
            own = [row for row in rows if (row["platform"], row["collective"]) == (name, collective)]
            kind = next(place for place, end in enumerate(("allreduce", "bf16", "compressed"))
                        if collective.endswith(end))
            dashes = next(place for place, ways in enumerate((LIBRARY, PAIRWISE + HIERARCHICAL, GRID))
                          if collective in ways)
            pair.loglog([int(row["ranks"]) for row in own], [float(row["seconds"]) for row in own],
                        color=plots.COLORS[kind], linestyle=plots.DASHES[dashes], marker="o", markersize=3,
                        label=collective)
        pair.set(title=name, xlabel="ranks", ylabel="seconds")
        pair.set_xticks(ranks_in(rows), ranks_in(rows))
        pair.minorticks_off()
        pair.grid(alpha=0.3)
    handles = {label: handle for pair in axes.flat for handle, label in zip(*pair.get_legend_handles_labels())}
    axes.flat[-1].axis("off")
    axes.flat[-1].legend(handles.values(), handles, loc="center", frameon=False)
    plots.save(drawn, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=launch.program, default=smpi.PROGRAM, metavar="PROGRAM",
                        help="default: build/smpi/onebit_smpi")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "docs/results/many_ranks.md", metavar="PAGE.md",
                        help="default: docs/results/many_ranks.md")
    parser.add_argument("--most-ranks", type=int, default=256, help="default: %(default)s")
    parser.add_argument("--most-messages", type=int, default=8000,
                        help="leave out averages by direct messages with more of them under way at once, whose "
                        "simulation takes long; default: %(default)s")
    parser.add_argument("--draw-only", action="store_true", help="make the page from the CSV file")
    arguments = parser.parse_args()
    if not arguments.draw_only:
        simulate(arguments, smpi.origin_of(arguments.program, arguments.output))
    rows = tables.read_csv(arguments.output.with_suffix(".csv"))
    figure([row for row in rows if int(row["parameters"]) == PARAMETERS["BERT-Large"]],
           arguments.output.with_suffix(".svg"))
    arguments.output.write_text(page(rows))


if __name__ == "__main__":
    try:
        main()
    except smpi.Failed as error:
        sys.exit(f"many_ranks: {error}")
