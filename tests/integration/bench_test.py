#!/usr/bin/env python3
"""Runs `onebit bench collective`, here and, where namespaces may be made, in the network laboratory.

Usage: bench_test.py PROGRAM MPIEXEC [unittest arguments]
"""

import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest
from unittest import mock

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent / "scripts")]
import netlab
import skips
import support
from lib import laboratory
from lib.predict import model
from support import ENVIRONMENT, PROGRAM, ROOT, read_csv

NETLAB, EXPERIMENTS = ROOT / "scripts/netlab.py", ROOT / "scripts/experiments"
COLLECTIVES = ["mpi_allreduce", "mpi_reduce_scatter", "pairwise_allreduce", "hierarchical_allreduce", "mpi_bf16",
               "pairwise_bf16", "grid_bf16", "hierarchical_bf16", "mpi_compressed", "pairwise_compressed",
               "grid_compressed", "hierarchical_compressed"]
INPUT = "bench: {smallest: 100, largest: 10000, factor: 10, warmup: 1, repetitions: 3}\n"


def namespaces():
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    return [line.split()[0] for line in listed.splitlines() if line.startswith("onebit-")]


def processes_with(argument):
    """Process numbers of those that have this word on their command line."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if argument in (process / "cmdline").read_text().split("\0"):
                found.append(process.name)
        except OSError:
            pass  # it has ended
    return found


def is_program(process):
    """Whether a process runs PROGRAM; not when it has ended meanwhile."""
    try:
        return os.path.realpath(f"/proc/{process}/exe") == os.path.realpath(PROGRAM)
    except OSError:
        return False


def ranks_of(argument):
    """Process numbers of PROGRAM's ranks that have this word on their command line."""
    return [process for process in processes_with(argument) if is_program(process)]


def no_namespaces():
    """Why network namespaces cannot be made here; empty where they can."""
    try:
        made = subprocess.run(["ip", "netns", "add", "onebit-probe"], capture_output=True, text=True)
    except FileNotFoundError:
        return "no network namespaces here: no iproute2"
    if made.returncode != 0:
        return f"no network namespaces here (they need root): {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", "onebit-probe"])
    return ""


def python_with_torch():
    """A Python that has PyTorch with gloo; empty where there is none."""
    has_gloo = "import sys, torch.distributed; sys.exit(not torch.distributed.is_gloo_available())"
    for python in (sys.executable, "/usr/bin/python3"):
        if os.path.exists(python) and subprocess.run([python, "-c", has_gloo], capture_output=True).returncode == 0:
            return python
    return ""


NO_NAMESPACES, PYTHON_WITH_TORCH = no_namespaces(), python_with_torch()


class Bench(unittest.TestCase):
    def setUp(self):
        self.directory = support.scratch(self)
        (self.directory / "input.yaml").write_text(INPUT)
        self.command = [PROGRAM, "bench", "collective", "input.yaml", "--set", "run.output=out",
                        "--set", f"bench.collectives=[{', '.join(COLLECTIVES)}]"]

    def run_it(self, launcher, arguments=(), expected=0):
        done = support.run(self, [*launcher, *self.command, *arguments], expected, cwd=self.directory)
        return done.stderr if expected else read_csv(self.directory / "out/collective.csv")

    def peak_of_a_rank(self, ranks, elements):
        """Bytes of the process that took most, of mpirun and its ranks."""
        keys = (f"bench.smallest={elements}", f"bench.largest={elements}", "bench.repetitions=1", "bench.warmup=0",
                "bench.collectives=[mpi_allreduce, mpi_bf16, mpi_compressed]")
        command = [*support.ranks_of(ranks, *self.command), *support.overrides(keys)]
        process = subprocess.Popen(list(map(str, command)), cwd=self.directory, env=support.ENVIRONMENT,
                                   stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(process.returncode, 0)
        return 1024 * usage.ru_maxrss

    def test_memory_of_a_rank_does_not_grow_with_the_ranks(self):
        # A check that simulated all ranks would take 8 bytes of an element for each of them.
        elements = 1 << 20
        self.assertLess(self.peak_of_a_rank(6, elements) - self.peak_of_a_rank(2, elements), 2 * 8 * elements)

    def check(self, rows, ranks, hosts):
        self.assertEqual(len(rows), 3 * len(COLLECTIVES))
        for row in rows:
            d = int(row["parameters"])
            self.assertEqual((int(row["ranks"]), float(row["hosts"]), float(row["wrong"])), (ranks, hosts, 0))
            self.assertEqual(row["git"], support.version())
            # All times are of the slowest rank, over the repetitions; an average is done when that rank is.
            times = [float(row[f"{name}_s"]) for name in ("min", "p50", "p99", "max")]
            self.assertEqual(times, sorted(times))
            self.assertLessEqual(times[0], float(row["mean_s"]))
            self.assertLessEqual(float(row["mean_s"]), times[-1])
            for rate, size in (("algbw_B_per_s", "logical_bytes"), ("busbw_wire_B_per_s", "wire_bytes")):
                self.assertAlmostEqual(float(row[rate]) * times[1], float(row[size]),
                                       delta=1e-6 * float(row[size]) + 1e-6)
            # A hierarchical average is that of the hosts, over a shard.
            hierarchical = row["collective"].startswith("hierarchical")
            words, senders = -(-d // 32), ranks
            if hierarchical:
                words, senders = -(-words // (ranks // hosts)), hosts
                d = min(d, 32 * words)
            messages = 2 * (senders - 1)
            if row["collective"].startswith("grid"):
                columns = model.grid_columns(ranks)
                messages = (columns - 1) * ranks // columns + (ranks // columns - 1) * columns + ranks - 1
            if "compressed" in row["collective"]:
                chunk = -(-words // senders) + 1  # sign words of a chunk, and its scale
                self.assertEqual(int(float(row["wire_bytes"])), messages * 4 * chunk)
            elif "bf16" in row["collective"]:
                chunk = 32 * -(-words // senders)
                self.assertEqual(int(float(row["wire_bytes"])), messages * 2 * chunk)
            else:
                self.assertEqual(int(float(row["wire_bytes"])), 2 * (senders - 1) * 4 * d // senders)

    def test_rows_at_several_rank_counts(self):
        for ranks in (1, 3, 4):
            self.check(self.run_it(support.ranks_of(ranks)), ranks, 1)

    def test_unknown_collective(self):
        message = self.run_it(support.ranks_of(2), ["--set", "bench.collectives=[gossip]"], 2)
        self.assertIn("gossip", message)
        self.assertIn("pairwise_compressed", message)

    def test_share_of_the_line_rate_is_without_the_burst(self):
        # Two ranks on each of two hosts: two thirds of what a rank sends leave its host.
        row = {"collective": "pairwise_compressed", "ranks": "4", "hosts": "2", "wire_bytes": "3e5",
               "burst_bytes": "5e4", "link_bit_per_s": "8e6", "p50_s": "0.6", "mean_s": "0.1"}
        self.assertAlmostEqual(laboratory.bytes_that_leave_a_host(row), 4e5)
        self.assertAlmostEqual(laboratory.burst_share(row), 0.25)
        self.assertAlmostEqual(laboratory.steady_s(row), 0.8)
        self.assertAlmostEqual(laboratory.share_of_line_rate(row), 0.5)  # 4e5 − 2 · 5e4 bytes at 1e6 bytes/s in 0.6 s
        self.assertEqual(laboratory.share_of_line_rate({**row, "burst_bytes": "2e5"}), 0, "nothing but bursts")
        self.assertAlmostEqual(laboratory.bytes_that_leave_a_host({**row, "collective": "hierarchical_allreduce"}), 6e5)

    def test_a_link_is_measured_again_after_a_busy_moment(self):
        # Two hosts at 1 Gbit/s: the first link is slow once, the second one always.
        measured = iter([(5e8, 1e-4), (9.5e8, 1e-4), (5e8, 1e-4), (6e8, 1e-4), (7e8, 1e-4)])
        network = netlab.Laboratory(2, 1e9, 50, 32768)
        with mock.patch.object(network, "measure_link", lambda *hosts: next(measured)):
            self.assertEqual([rate for rate, _ in network.measure()], [9.5e8, 7e8])
        self.assertFalse(network.has_its_rate(7e8))

    def test_results_of_uncommitted_sources_are_refused(self):
        program = self.directory / "onebit"
        program.write_text("#!/bin/sh\necho 'onebit 1.0 (0123abc-dirty)'\n")
        program.chmod(0o700)
        output = ROOT / "docs/results/refused.csv"
        for name in ("figure9", "whole_step", "table1", "figure5", "figure4b", "validation", "peers"):
            done = subprocess.run([sys.executable, EXPERIMENTS / f"{name}.py", "--onebit", program, "--output", output],
                                  timeout=60, capture_output=True, text=True)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("0123abc-dirty", done.stderr)
            self.assertIn("remedy", done.stderr)
        self.assertFalse(output.exists())

    @unittest.skipIf(NO_NAMESPACES, NO_NAMESPACES)
    def test_watchdog_lets_a_slow_average_finish(self):
        # 5 MB to and from each rank at 5 Mbit/s take 8 s, in buckets of half a second.
        (self.directory / "train.yaml").write_text(
            "workload: {kind: synthetic, parameters: 1250000}\noptimizer: {algorithm: adam, lr: 0.001}\n"
            "train: {steps: 1, batch: 2}\ncomm: {exchange: pairwise, bucket_bytes: 262144}\n"
            "run: {watchdog_seconds: 3, output: slow}\n")
        support.run(self, [sys.executable, NETLAB, "--hosts", "2", "--rate", "5mbit", "--", PROGRAM, "train",
                           "train.yaml"], cwd=self.directory)
        step, = read_csv(self.directory / "slow/steps.csv")
        self.assertGreater(float(step["allreduce_s"]), 6, "as long as two watchdogs")

    @unittest.skipIf(NO_NAMESPACES, NO_NAMESPACES)
    def test_laboratory(self):
        before = namespaces()
        laboratory = [sys.executable, NETLAB, "--hosts", "3", "--rate", "100mbit", "--links", "links.csv", "--"]
        self.check(self.run_it(laboratory), 3, 3)
        links = read_csv(self.directory / "links.csv")
        self.assertEqual(len(links), 3)
        for link in links:
            self.assertAlmostEqual(float(link["measured_bit_per_s"]) / 1e8, 0.95, delta=0.1)
            self.assertEqual(int(link["burst_bytes"]), 32768)
        # Several commands over the same links, up to the first that fails.
        done = support.run(self, [*laboratory, "bash", "-c", "echo first", "--next", "bash", "-c",
                                  "echo second; sleep 1; exit 3", "--next", "echo", "third"], 3, cwd=self.directory)
        self.assertEqual([done.stdout.count(word) for word in ("first", "second")], [3, 3])
        self.assertNotIn("third", done.stdout)
        # Several ranks on a host, which talk through its memory.
        for hosts, ranks in ((2, 2), (4, 2), (2, 3)):
            several = [sys.executable, NETLAB, "--hosts", str(hosts), "--ranks-per-host", str(ranks), "--rate",
                       "100mbit", "--"]
            self.check(self.run_it(several), hosts * ranks, hosts)
        # Ended from outside in the middle of a run, it leaves nothing behind.
        process = subprocess.Popen([*laboratory, "sleep", "1234.5"], cwd=self.directory, env=ENVIRONMENT,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        process.stdout.readline()
        time.sleep(2)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM, output)
        self.assertEqual(namespaces(), before)
        self.assertEqual(processes_with("1234.5"), [])

    @unittest.skipIf(NO_NAMESPACES, NO_NAMESPACES)
    def test_experiments_of_the_paper(self):
        def run_script(name, *arguments):
            output = self.directory / f"{name}.csv"
            done = support.run(self, [sys.executable, EXPERIMENTS / f"{name}.py", "--onebit", PROGRAM, "--output",
                                      output, *arguments], cwd=self.directory)
            rows = read_csv(output)
            for row in rows:
                self.assertEqual((row["git"], row["runs"]), (support.version(), "1"))
                self.assertRegex(row["machine"], r"\d+ cores")
                self.assertIn(row["burst_bytes"], ("32768", ""))
            return rows, done.stdout

        small = ["--parameters", "20000", "--dense-steps", "2", "--compressed-steps", "2", "--set",
                 "comm.bucket_bytes=16384"]
        rows, table = run_script("table1", "--rates", "100mbit", "--hosts", "2", *small)
        self.assertEqual([row["stage"] for row in rows], ["adam", "adam_bf16", "onebit_adam"])
        for row in rows:
            self.assertAlmostEqual(float(row["link_bit_per_s"]) / 1e8, 0.95, delta=0.1)
            parts = [float(row[f"{name}_s"])
                     for name in ("forward", "backward_allreduce", "backward_everything_else", "step")]
            self.assertLessEqual(sum(parts), float(row["total_s"]))
            # What 20000 parameters take of BERT-Large's 172.11 ms.
            self.assertAlmostEqual(float(row["compute_time_ms"]), 172.11 * 20000 / 336e6, delta=1e-6)
            self.assertGreaterEqual(1e3 * (parts[0] + parts[2]), float(row["compute_time_ms"]))
            self.assertEqual((row["bucket_bytes"], row["hosts"]), ("16384", "2"))
        self.assertGreater(float(rows[0]["backward_allreduce_s"]), 0)
        self.assertGreater(float(rows[1]["backward_allreduce_s"]), 0)
        self.assertEqual(float(rows[2]["backward_allreduce_s"]), 0)
        self.assertIn("onebit_adam", table)

        rows, _ = run_script("whole_step", "--rates", "50mbit", "--hosts", "2", "--compute-ms", "5,50",
                             "--compressed-bucket-bytes", "16384", "--free-rate", "200mbit", *small)
        self.assertEqual([row["compute_time_ms"] for row in rows], ["5", "50"])
        for row in rows:
            self.assertEqual(row["compressed_bucket_bytes"], "16384")
            limit = max(float(row["compute_time_ms"]) / 1e3, float(row["sign_line_s"]))
            self.assertAlmostEqual(float(row["overlapped_over_limit"]), float(row["overlapped_s"]) / limit, delta=1e-2)
            self.assertGreater(float(row["own_work_s"]), 0)
            self.assertAlmostEqual(float(row["overlapped_over_limit_without_own_work"]),
                                   (float(row["overlapped_s"]) - float(row["own_work_s"])) / limit, delta=1e-2)
            # 20000 parameters are 5 buckets, and a rank sends half of each one's signs twice, with a scale a message.
            # The row has six digits of the time, and the links were measured anew before this run.
            words = sum(-(-elements // 64) for elements in (4096, 4096, 4096, 4096, 3616))
            self.assertAlmostEqual(float(row["sign_line_s"]) * float(row["overlapped_link_bit_per_s"]) / 8,
                                   2 * 4 * (words + 5), delta=0.1)
            # On a busy machine nothing of the average may be done before the backward pass is.
            self.assertGreaterEqual(float(row["overlapped_hidden_s"]), 0)
        self.assertEqual(rows[0]["paper_speedup"], "10.83")
        self.assertAlmostEqual(float(rows[0]["speedup"]), float(rows[0]["adam_s"]) / float(rows[0]["onebit_adam_s"]),
                               delta=1e-3 * float(rows[0]["speedup"]))
        self.assertAlmostEqual(float(rows[0]["speedup_vs_bf16"]),
                               float(rows[0]["adam_bf16_s"]) / float(rows[0]["onebit_adam_s"]),
                               delta=1e-3 * float(rows[0]["speedup_vs_bf16"]))

        rows, _ = run_script("figure5", "--rate", "100mbit", "--hosts", "1,2", *small)
        self.assertEqual([row["hosts"] for row in rows], ["1", "2"])
        self.assertEqual([row["link_bit_per_s"] == "" for row in rows], [True, False])

        (self.directory / "corpus.txt").write_text("a text to learn, of few characters. " * 500)
        steps = 4
        settings = {"train.steps": steps, "freeze.step": 2, "schedule.warmup_steps": 1, "train.batch": 2,
                    "train.validate_every": 2, "train.validation_batch": 2, "model.layers": 1, "model.hidden": 32,
                    "model.feed_forward": 32, "workload.compute_time_ms": 1,
                    "data.corpus": f"[{self.directory / 'corpus.txt'}]"}
        rows, table = run_script("figure4b", "--rate", "100mbit", "--hosts", "2",
                                 *(word for key, value in settings.items() for word in ("--set", f"{key}={value}")))
        for algorithm in ("adam", "onebit_adam", "onebit_muon"):
            part = [row for row in rows if row["algorithm"] == algorithm]
            self.assertEqual([int(row["step"]) for row in part], list(range(1, steps + 1)))
            seconds = [float(row["seconds"]) for row in part]
            self.assertEqual(seconds, sorted(seconds))
            self.assertEqual([row["validation_loss"] != "" for row in part], [False, True] * 2)
        self.assertIn("1.00x", table)
        support.check_figure(self, self.directory / "figure4b.svg")

    def run_peers(self, *arguments):
        """Rows of peers.py for 100,000 elements on two hosts, by method, and what it printed."""
        output = self.directory / "peers.csv"
        done = support.run(self, [sys.executable, EXPERIMENTS / "peers.py", "--onebit", PROGRAM, "--output", output,
                                  "--hosts", "2", "--parameters", "100000", "--rates", "100mbit", *arguments],
                           cwd=self.directory)
        rows = read_csv(output)
        for row in rows:
            self.assertEqual((row["git"], row["hosts"], row["elements"], row["burst_bytes"]),
                             (support.version(), "2", "100000", "32768"))
            self.assertAlmostEqual(float(row["link_bit_per_s"]) / 1e8, 0.95, delta=0.1)
            times = [float(row[f"{name}_s"]) for name in ("min", "p50", "max")]
            self.assertEqual(times, sorted(times))
            self.assertEqual(int(row["runs"]), 3 * int(row["rounds"]))
            self.assertRegex(row["machine"], r"\d+ cores")
        return {row["method"]: row for row in rows}, done.stdout

    def check_bytes(self, row, logical):
        """What the link carried is what the average sends, and little more: headers, answers, the start of MPI."""
        self.assertGreaterEqual(float(row["link_bytes"]), logical)
        self.assertLess(float(row["link_bytes"]), 1.1 * logical)

    @unittest.skipIf(NO_NAMESPACES, NO_NAMESPACES)
    def test_peers_without_the_other_libraries(self):
        rows, table = self.run_peers("--rounds", "2", "--collectives", "pairwise_allreduce,pairwise_compressed")
        self.assertEqual(list(rows), ["pairwise_allreduce", "pairwise_compressed"])
        self.assertEqual({(row["library"], row["version"]) for row in rows.values()},
                         {("OneBit", support.version())})
        self.check_bytes(rows["pairwise_allreduce"], 2 * 1 / 2 * 4 * 100000)
        # Signs are 32 times fewer bytes; the start of MPI is several kB.
        self.assertGreater(float(rows["pairwise_compressed"]["link_bytes"]), 100000 / 8)
        self.assertLess(float(rows["pairwise_compressed"]["link_bytes"]), 100000 / 4)
        self.assertIn("1.00x", table)

    @unittest.skipIf(NO_NAMESPACES, NO_NAMESPACES)
    @unittest.skipUnless(PYTHON_WITH_TORCH, "no torch here: scripts/setup.sh --python installs it")
    def test_peers_of_pytorch(self):
        rows, table = self.run_peers("--rounds", "1", "--collectives", "pairwise_compressed", "--python",
                                     PYTHON_WITH_TORCH, "--peers", "gloo_fp32,gloo_fp16,powersgd_1")
        self.assertEqual(list(rows), ["pairwise_compressed", "gloo_fp32", "gloo_fp16", "powersgd_1"])
        self.assertEqual({rows[name]["library"] for name in list(rows)[1:]}, {"PyTorch"})
        self.check_bytes(rows["gloo_fp32"], 2 * 1 / 2 * 4 * 100000)
        self.check_bytes(rows["gloo_fp16"], 2 * 1 / 2 * 2 * 100000)
        # A matrix of 250 x 400 becomes factors of 650 elements.
        self.assertLess(float(rows["powersgd_1"]["link_bytes"]), 2 * 4 * 650 + 4000)
        self.assertRegex(table, r"gloo_fp32 +PyTorch +\d+\.\d+")

    @unittest.skipIf(NO_NAMESPACES, NO_NAMESPACES)
    def test_killed_rank_ends_the_run_on_all_hosts(self):
        before = namespaces()
        output = str(self.directory / "killed")
        train = [PROGRAM, "train", "train.yaml", "--set", f"run.output={output}"]
        (self.directory / "train.yaml").write_text(
            "workload: {kind: quadratic}\nquadratic: {dimension: 100000}\n"
            "optimizer: {algorithm: onebit_adam, lr: 0.001}\nfreeze: {step: 10}\n"
            "train: {steps: 100000000, batch: 6}\ncomm: {exchange: pairwise, collective: hierarchical}\n")
        process = subprocess.Popen([sys.executable, NETLAB, "--hosts", "3", "--ranks-per-host", "2", "--", *train],
                                   cwd=self.directory, env=ENVIRONMENT, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
        for line in process.stdout:
            if line.startswith("step "):
                break  # all ranks are at work
        ranks = ranks_of(f"run.output={output}")
        self.assertEqual(len(ranks), 6)
        os.kill(int(ranks[4]), signal.SIGKILL)
        said, _ = process.communicate(timeout=60)
        self.assertNotEqual(process.returncode, 0)
        self.assertRegex(said, "(?i)killed|signal 9")
        self.assertEqual(ranks_of(f"run.output={output}"), [])
        self.assertEqual(namespaces(), before)

    @unittest.skipIf(NO_NAMESPACES, NO_NAMESPACES)
    def test_killed_experiment_leaves_nothing(self):
        before, word = namespaces(), "workload.parameters=20011"
        process = subprocess.Popen([sys.executable, EXPERIMENTS / "figure5.py", "--onebit", PROGRAM, "--hosts", "2",
                                    "--parameters", "20011", "--dense-steps", "1000000", "--set",
                                    "freeze.step=1000000"],
                                   cwd=self.directory, env=ENVIRONMENT, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        self.wait_until(lambda: len(ranks_of(word)) == 2)
        process.kill()
        process.wait()
        self.wait_until(lambda: not ranks_of(word) and namespaces() == before)

    def wait_until(self, holds, seconds=60):
        end = time.monotonic() + seconds
        while not holds():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.2)


if __name__ == "__main__":
    skips.main(sys.argv[3:])
