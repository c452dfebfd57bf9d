#!/usr/bin/env python3
"""A laboratory of N hosts on this machine: runs an MPI command across them over links of a given bandwidth.

Each host is a network namespace with one link (a veth pair) to a switch (a bridge in a namespace of its own), shaped by
a token bucket (tc tbf) in both directions. Every link's bandwidth and round trip are measured over TCP before COMMAND
runs, and refused if they are not what was asked for. Ranks of one host talk through shared memory, ranks of different
hosts through the links. Each host has its own host name and TMPDIR, because launchers of one run that share them trip
over each other's session files.

COMMAND finds the measured network in the environment: ONEBIT_NETWORK (words for run.csv). `--next` between commands
runs one after the other over the same links, up to the first that fails. Everything is taken down again at the end,
after a failure and on Ctrl-C. Nothing outside the laboratory's own namespaces is touched: no address, route or
interface of the machine. Needs root (namespaces), iproute2 and Open MPI.

Exit status: the last command's; 2 for bad usage; 1 where the laboratory cannot be built or its links are not as asked
for.
"""

import argparse
import contextlib
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from lib.laboratory import LEAST_BURST_BYTES, bits_per_second, burst_of
from lib.launch import run_while_here
from lib.tables import write_csv

# The sender sends for some seconds. The receiver answers with the bytes that arrived and the time that they took. Then
# single bytes travel to and fro.
RECEIVER = r"""
import socket, struct, sys, time
server = socket.create_server(("0.0.0.0", 7777)); server.settimeout(30); print("ready", flush=True)
peer, _ = server.accept(); peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
received, begin = 0, None
while True:
    block = peer.recv(1 << 20)
    if begin is None: begin, received = time.perf_counter(), -len(block)
    received += len(block)
    if block.endswith(b"END"): break
peer.sendall(struct.pack("dd", received, time.perf_counter() - begin))
for _ in range(20): peer.sendall(peer.recv(1))
"""
SENDER = r"""
import socket, struct, sys, time
peer = socket.create_connection((sys.argv[1], 7777), 30); peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
block, end = b"x" * (1 << 16), time.perf_counter() + float(sys.argv[2])
while time.perf_counter() < end: peer.sendall(block)
peer.sendall(b"END")
received, seconds = struct.unpack("dd", peer.recv(16, socket.MSG_WAITALL))
trips = []
for _ in range(20):
    begin = time.perf_counter(); peer.sendall(b"x"); peer.recv(1); trips.append(time.perf_counter() - begin)
print(8 * received / seconds, sorted(trips)[len(trips) // 2])
"""

MEASURE_S, ATTEMPTS = 1.0, 3
LONGEST_END_S = 10  # of the processes that the end of the laboratory kills
# Measured over nominal rate. TCP, IP and Ethernet headers take 5 %; a token bucket adds a little at first.
ACCEPTED = (0.85, 1.10)


class Failure(Exception):
    """The laboratory cannot be built, or is not what was asked for."""


def run(command):
    done = subprocess.run(command.split(), capture_output=True, text=True)
    if done.returncode != 0:
        raise Failure(f"'{command}' failed: {done.stderr.strip() or done.stdout.strip()}")


def processes_in(namespace):
    """Numbers of the processes in a network namespace."""
    done = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True)
    return [int(number) for number in done.stdout.split()]


class Laboratory:
    """Namespaces `onebit-PID-host0`, … and `onebit-PID-switch`, as long as the `with` block runs."""

    def __init__(self, hosts, rate, queue_ms, least_burst_bytes):
        # A switch's buffer is a number of bytes, not of milliseconds. At slow rates the time alone would make a queue
        # shorter than a rank's messages, and TCP would lose packets in every exchange.
        self.hosts, self.rate, self.queue_bytes = hosts, rate, max(2**20, int(rate / 8 * queue_ms / 1000))
        self.burst_bytes = burst_of(rate, least_burst_bytes)
        self.prefix = f"onebit-{os.getpid()}"
        self.made = []
        self.scratch = None

    def name(self, host):
        return f"{self.prefix}-host{host}"

    @staticmethod
    def address(host):
        return f"10.77.{host // 250}.{host % 250 + 1}"

    def __enter__(self):
        try:
            self.scratch = tempfile.mkdtemp(prefix="onebit-netlab.")
            switch = f"{self.prefix}-switch"
            self.add_namespace(switch)
            run(f"ip -n {switch} link add bridge0 type bridge forward_delay 0")
            run(f"ip -n {switch} link set bridge0 up")
            # A packet needs as many tokens as it has bytes. The rest of the bucket is for the timer's delay.
            packet_bytes = min(65536, self.burst_bytes // 4)
            for host in range(self.hosts):
                name = self.name(host)
                self.add_namespace(name)
                run(f"ip -n {name} link set lo up")
                run(f"ip -n {switch} link add port{host} type veth peer name eth0 netns {name}")
                run(f"ip -n {switch} link set port{host} master bridge0 up")
                run(f"ip -n {name} address add {self.address(host)}/16 dev eth0")
                run(f"ip -n {name} link set eth0 gso_max_size {packet_bytes}")
                run(f"ip -n {name} link set eth0 up")
                for namespace, device in ((name, "eth0"), (switch, f"port{host}")):
                    run(f"tc -n {namespace} qdisc add dev {device} root tbf rate {self.rate:.0f}bit "
                        f"burst {self.burst_bytes} limit {self.queue_bytes}")
                os.mkdir(os.path.join(self.scratch, f"host{host}"), 0o700)
            return self
        except BaseException:
            self.__exit__()
            raise

    def add_namespace(self, name):
        run(f"ip netns add {name}")
        self.made.append(name)

    def __exit__(self, *_):
        # Deleting a namespace deletes its interfaces. Processes in it must be gone first: a killed one takes a moment,
        # and may have started another one before.
        for name in reversed(self.made):
            end = time.monotonic() + LONGEST_END_S
            while (pids := processes_in(name)) and time.monotonic() < end:
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.02)
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)
        self.made = []
        if self.scratch:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def command(self, host, *command):
        return ["ip", "netns", "exec", self.name(host), *command]

    def measure(self):
        """(bits per second, seconds of a round trip) from each host to the next one, one link pair at a time.

        Measures a link up to ATTEMPTS times until it has its rate, because the machine may be busy for a moment.
        """
        results = []
        for host in range(self.hosts):
            for _ in range(ATTEMPTS):
                rate, trip = self.measure_link(host, (host + 1) % self.hosts)
                if self.has_its_rate(rate):
                    break
            results.append((rate, trip))
        return results

    def has_its_rate(self, rate):
        """True if a measured rate, in bits per second, is the nominal one within ACCEPTED."""
        return ACCEPTED[0] <= rate / self.rate <= ACCEPTED[1]

    def measure_link(self, host, target):
        """(bits per second, seconds of a round trip) between two hosts."""
        with subprocess.Popen(self.command(target, sys.executable, "-c", RECEIVER), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) as receiver:
            try:
                receiver.stdout.readline()
                sent = subprocess.run(self.command(host, sys.executable, "-c", SENDER, self.address(target),
                                                   str(MEASURE_S)), capture_output=True, text=True, timeout=60)
                if sent.returncode != 0:
                    raise Failure(f"host {host} cannot reach host {target}: {sent.stderr.strip()}")
                rate, trip = map(float, sent.stdout.split())
                return rate, trip
            finally:
                receiver.kill()

    def agent(self):
        """What Open MPI starts its daemons with, in place of ssh: `agent ADDRESS COMMAND …`."""
        path = os.path.join(self.scratch, "agent")
        with open(path, "w") as script:
            script.write("#!/bin/bash\ncase $1 in\n")
            for host in range(self.hosts):
                script.write(f"  {self.address(host)}) host={host} ;;\n")
            script.write(f"""esac
shift
export TMPDIR={self.scratch}/host$host
exec ip netns exec {self.prefix}-host$host unshare --uts bash -c "hostname host$host; $*"
""")
        os.chmod(path, 0o700)
        return path

    def mpirun(self, ranks_per_host, command, environment):
        hosts = ",".join(f"{self.address(host)}:{ranks_per_host}" for host in range(self.hosts))
        transports = "tcp,vader,self" if ranks_per_host > 1 else "tcp,self"
        # The ranks of all hosts share this machine's cores, which Open MPI cannot see: a waiting rank must yield.
        parameters = {"mpi_yield_when_idle": "1", "plm_rsh_agent": self.agent(), "plm_rsh_no_tree_spawn": "1",
                      "btl": transports, "btl_tcp_if_include": "eth0", "oob_tcp_if_include": "eth0", "pml": "ob1"}
        mpirun = ["mpirun", "--host", hosts, *(word for pair in parameters.items() for word in ("--mca", *pair)),
                  "--bind-to", "none", "-x", "ONEBIT_NETWORK", "-x", "OMP_NUM_THREADS", *command]
        inside = 'hostname host0; exec "$@"'
        full = self.command(0, "unshare", "--uts", "bash", "-c", inside, "bash", *mpirun)
        # Namespaces make the ranks run as root, which Open MPI asks to be told twice.
        environment = {**environment, "TMPDIR": os.path.join(self.scratch, "host0"),
                       "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return run_while_here(full, env=environment)


def write_links(path, laboratory, links):
    write_csv(path, [{"from_host": host, "to_host": (host + 1) % laboratory.hosts,
                      "nominal_bit_per_s": f"{laboratory.rate:.0f}", "measured_bit_per_s": f"{rate:.0f}",
                      "round_trip_s": f"{trip:.6f}", "burst_bytes": laboratory.burst_bytes}
                     for host, (rate, trip) in enumerate(links)])


def split_commands(words):
    """The commands between the words `--next`."""
    commands = [[]]
    for word in words:
        if word == "--next":
            commands.append([])
        else:
            commands[-1].append(word)
    return commands


def run_in_laboratory(arguments, commands):
    """The exit status of the last command that ran. Raises Failure where the laboratory cannot be built."""
    with Laboratory(arguments.hosts, arguments.rate, arguments.queue_ms, arguments.least_burst) as laboratory:
        links = laboratory.measure()
        if arguments.links:
            write_links(arguments.links, laboratory, links)
        for host, (rate, _) in enumerate(links):
            if not laboratory.has_its_rate(rate):
                raise Failure(f"the link of host {host} carries {rate / 1e6:.1f} Mbit/s, not "
                              f"{arguments.rate / 1e6:.1f}: this machine is too slow or too busy for that rate")
        median_rate, median_trip = (statistics.median(values) for values in zip(*links))
        words = (f"netlab {arguments.hosts} hosts x {arguments.ranks_per_host} ranks, links of "
                 f"{arguments.rate / 1e6:g} Mbit/s (measured {median_rate / 1e6:.1f}), round trip "
                 f"{1e6 * median_trip:.0f} us")
        print(f"netlab: {words}", flush=True)
        for command in commands:
            status = laboratory.mpirun(arguments.ranks_per_host, command, {**os.environ, "ONEBIT_NETWORK": words})
            if status != 0:
                break
        return status


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--ranks-per-host", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--rate", type=bits_per_second, default="200mbit",
                        help="of each link, in each direction; default: %(default)s")
    parser.add_argument("--queue-ms", type=float, default=50,
                        help="longest wait of a packet in a link's queue, where that makes more than a MiB; "
                             "default: %(default)s")
    parser.add_argument("--least-burst", type=int, default=LEAST_BURST_BYTES, metavar="BYTES",
                        help="size of a link's token bucket, which is larger where the rate needs it; "
                             "default: %(default)s")
    parser.add_argument("--links", metavar="FILE.csv", help="where the measured links are written")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND",
                        help="what mpirun starts, behind --; more commands follow --next")
    arguments = parser.parse_args()
    commands = split_commands(arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command)
    if not all(commands):
        parser.error("no command: put it behind -- or --next")
    if not 2 <= arguments.hosts <= 1000 or arguments.ranks_per_host < 1:
        parser.error("between 2 and 1000 hosts, and at least one rank on each")
    if os.geteuid() != 0:
        print("netlab: network namespaces need root: run it with sudo", file=sys.stderr)
        return 1
    for tool in ("ip", "tc", "mpirun"):
        if not shutil.which(tool):
            print(f"netlab: '{tool}' is not installed (Debian packages iproute2, openmpi-bin)", file=sys.stderr)
            return 1

    # A signal ends the run as Ctrl-C does: by unwinding, so that everything is taken down.
    def stop(number, _):
        raise KeyboardInterrupt(number)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGHUP, stop)
    try:
        return run_in_laboratory(arguments, commands)
    except Failure as failure:
        print(f"netlab: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupt:
        number = interrupt.args[0] if interrupt.args else signal.SIGINT
        print("netlab: interrupted, the laboratory was taken down", file=sys.stderr)
        return 128 + int(number)


if __name__ == "__main__":
    sys.exit(main())
