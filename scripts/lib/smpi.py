"""Runs the program on simulated networks, by SimGrid's SMPI (CMake's preset smpi).

Computing takes no simulated time: a rank's seconds are those of its messages. A host's link has its bandwidth in each
direction. A message has a latency, and its sender and its receiver an overhead.
"""

import collections
import os
import pathlib
import shutil
import sys
import tempfile

from lib import ROOT, launch, provenance, tables
from lib.predict import model

PROGRAM = str(ROOT / "build/smpi/onebit_smpi")
# Hosts in a group, and the attributes of SimGrid's <cluster> for so many groups: one switch that never blocks; switches
# of 16 hosts, each with links to 8 others; 16 routers of 2 hosts, with a link between any two groups. SimGrid 3.32
# crashed with dragonflies of 4 groups of 4 routers and of 8 groups of 16.
TOPOLOGIES = {
    "flat": (1, lambda groups: ""),
    "fat tree": (16, lambda groups: f'topology="FAT_TREE" topo_parameters="2;16,{groups};1,8;1,1"'),
    "dragonfly": (32, lambda groups: f'topology="DRAGONFLY" topo_parameters="{groups},1;4,1;4,1;2"'),
}
CONFIGURATION = {
    "smpi/privatization": "dlopen",  # each rank has its own copy of the program's variables
    "smpi/simulate-computation": "no",
    "contexts/stack-size": 1024,  # KiB; 1024 ranks have 1 GiB
    # The links are what the platform says, without the factors that SimGrid has measured on a Gigabit Ethernet.
    "smpi/bw-factor": "0:1", "smpi/lat-factor": "0:1", "network/crosstraffic": 0,
    "smpi/coll-selector": "ompi",
}
INSIDE_LATENCY_S = 1e-6


def algorithms(hops):
    """What Open MPI takes for the longest messages of an average's exchanges, model.hops (coll_tuned_decision_fixed.c):
    lr and NTSLR are rings; pair is an exchange with one rank after the other, here of powers of two alone; basic_linear
    sends to all at once."""
    spread, gather = (max((hop for hop in hops if hop.part == part), key=lambda hop: hop.size)
                      for part in ("all_to_all", "all_gather"))
    all_to_all = ("pair" if spread.size >= model.IN_TURN_FROM else
                  "bruck" if spread.size < 200 and spread.cluster.ranks > 12 else "basic_linear")
    all_gather = "NTSLR" if gather.cluster.ranks * gather.size >= model.RING_FROM else "bruck"
    return {"smpi/allreduce": "lr", "smpi/alltoall": all_to_all, "smpi/allgather": all_gather}


class Failed(RuntimeError):
    """A simulated run that did not end with status 0."""


class Platform(collections.namedtuple(
        "Platform", "topology ranks_per_host bit_per_s latency_s overhead_s inside_B_per_s", defaults=[0, 1e10])):
    """Hosts with as many ranks each; bit_per_s of a link, each direction; inside_B_per_s of a rank to
    the others of its host."""

    def slower(self, factor):
        return self._replace(bit_per_s=self.bit_per_s / factor, inside_B_per_s=self.inside_B_per_s / factor)

    def machine(self, hosts):
        """What the model of predictions knows of so many hosts; work takes no time. Switches of a fat tree have two
        links more between them."""
        crossings = 2 if self.topology == "fat tree" and hosts > TOPOLOGIES["fat tree"][0] else 1
        return model.Machine(latency=crossings * self.latency_s, bandwidth=self.bit_per_s / 8,
                             overhead=self.overhead_s, inside_latency=INSIDE_LATENCY_S,
                             inside_bandwidth=self.inside_B_per_s)

    def xml(self, hosts):
        """A link's latency is half a message's, which crosses two."""
        link = f'{self.bit_per_s / 8:.0f}Bps', f'{self.latency_s / 2}s'
        return ('<?xml version="1.0"?>\n<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">\n'
                '<platform version="4.1">'
                + (self.cluster(hosts, *link) if self.ranks_per_host == 1 else self.full_zone(hosts, *link))
                + "</platform>\n")

    def cluster(self, hosts, bandwidth, latency):
        """Hosts of one rank, whose number the other topologies round up. A rank's message to itself takes no link."""
        size, attributes = TOPOLOGIES[self.topology]
        groups = -(-hosts // size)
        return (f'<cluster id="cluster" prefix="host" suffix="" radical="0-{groups * size - 1}" speed="1Gf" '
                f'bw="{bandwidth}" lat="{latency}" loopback_bw="{self.inside_B_per_s:.0f}Bps" '
                f'loopback_lat="{INSIDE_LATENCY_S}s" {attributes(groups)}/>')

    def full_zone(self, hosts, bandwidth, latency):
        """Hosts whose ranks share a memory, which a <cluster> does not have. It carries the channels of all ranks."""
        assert self.topology == "flat", self.topology
        memory = f'bandwidth="{self.ranks_per_host * self.inside_B_per_s:.0f}Bps" latency="{INSIDE_LATENCY_S}s"'
        parts = [f'<host id="host{i}" speed="1Gf"/><link id="memory{i}" {memory}/><link id="link{i}" '
                 f'bandwidth="{bandwidth}" latency="{latency}" sharing_policy="SPLITDUPLEX"/>' for i in range(hosts)]
        for source in range(hosts):
            for target in range(hosts):
                way = (f'<link_ctn id="memory{source}"/>' if source == target else
                       f'<link_ctn id="link{source}" direction="UP"/><link_ctn id="link{target}" direction="DOWN"/>')
                parts.append(f'<route src="host{source}" dst="host{target}" symmetrical="NO">{way}</route>')
        return f'<zone id="cluster" routing="Full">{"".join(parts)}</zone>'


def rows_of(program, platform, ranks, command, settings, configuration, table):
    """Rows of the CSV file `table` of a command of the program, whose ranks are numbered host by host. Raises Failed
    with what the program printed."""
    hosts = -(-ranks // platform.ranks_per_host)
    overhead = f"0:{platform.overhead_s}:0"
    configuration = {**CONFIGURATION, "smpi/os": overhead, "smpi/or": overhead, **configuration}
    with tempfile.TemporaryDirectory(prefix="onebit.") as directory:
        place = pathlib.Path(directory)
        (place / "platform.xml").write_text(platform.xml(hosts))
        (place / "hosts").write_text("".join(f"host{rank // platform.ranks_per_host}\n" for rank in range(ranks)))
        settings = {"run.output": directory, "run.backend": "serial", "run.watchdog_seconds": 0, **settings}
        said = place / "said"
        with said.open("w") as file:
            status = launch.run_while_here(
                ["smpirun", "-np", str(ranks), "-platform", place / "platform.xml", "-hostfile", place / "hosts",
                 "--log=root.thres:error", *(f"--cfg={key}:{value}" for key, value in configuration.items()),
                 program, *command, *(f"{key}={value}" for key, value in settings.items())],
                cwd=ROOT, stdout=file, stderr=file, env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": directory})
        if status != 0:
            raise Failed(f"{said.read_text()}\nstatus {status}")
        return tables.read_csv(place / table)


def bench(program, platform, ranks, collectives, parameters, hops):
    """Rows of collective.csv of one call of each average, after one that is checked. The library takes the algorithms
    for the exchanges `hops` (model.hops)."""
    settings = {"bench.collectives": f"[{','.join(collectives)}]", "bench.warmup": 0, "bench.repetitions": 1,
                "bench.smallest": parameters, "bench.largest": parameters, "comm.message_bytes": 1 << 30}
    return rows_of(program, platform, ranks, ["collective", "inputs/bench_collective.yaml"], settings,
                   algorithms(hops), "collective.csv")


def origin_of(program, page):
    """{git, machine} of rows that the program makes for a page. Ends the script where there is no program, or where its
    sources are not committed."""
    if shutil.which(program) is None:
        sys.exit(f"there is no program {program}; remedy: cmake --preset smpi; cmake --build --preset smpi")
    first, = bench(program, Platform("flat", 1, 1e9, 1e-5), 2, ["mpi_allreduce"], 1 << 10,
                   model.hops("compressed", model.Cluster(2, 1), 1 << 12))
    return {"git": provenance.check_version(first["git"], page), "machine": provenance.machine()}


def train(program, platform, ranks, given, settings):
    """Rows of steps.csv of a training."""
    settings = {"checkpoint.every": 0, **settings}
    return rows_of(program, platform, ranks, ["train", given], settings, {}, "steps.csv")
