#!/usr/bin/env python3
"""Breaks runs, and checks what a user is left with.

Usage: faults_test.py PROGRAM MPIEXEC [PATTERN]

PATTERN (a regular expression) selects tests by name.

Whatever breaks: standard error says which rank it was and what to do, the exit status says that the run failed, no
process is left, every checkpoint that has its name is whole, and the CSV file of the steps ends with a whole row.
"""

import concurrent.futures
import contextlib
import csv
import ctypes
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import skips
import support
from support import MPIEXEC, PROGRAM, Skip, mounted, overrides, read_csv

ENVIRONMENT = {**support.ENVIRONMENT, "OMP_PROC_BIND": "false", "OMPI_MCA_mpi_yield_when_idle": "1"}
LIMIT_S = 120
WORKERS = 3  # most of the time ranks wait for each other
WATCHDOG_S = 4

KEYS = {"workload.kind": "quadratic", "quadratic.dimension": 20000, "train.steps": 40, "train.batch": 6,
        "optimizer.algorithm": "onebit_adam", "optimizer.beta2": 0.9, "freeze.step": 12, "checkpoint.every": 8}
ENDLESS = {**KEYS, "train.steps": 2**31 - 1, "run.progress_interval_s": 1e-3}

# For LD_PRELOAD: a file system that has no locks.
NO_LOCKS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
static int answer(const char* name, int file, int command, void* argument) {
  if (command == F_OFD_SETLK) {
    errno = ENOLCK;
    return -1;
  }
  return ((int (*)(int, int, ...))dlsym(RTLD_NEXT, name))(file, command, argument);
}
#define FUNCTION(name) int name(int file, int command, ...) { \\
  va_list list; va_start(list, command); void* argument = va_arg(list, void*); va_end(list); \\
  return answer(#name, file, command, argument); }
FUNCTION(fcntl)
FUNCTION(fcntl64)
"""


class Faults(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="onebit-faults."))
        self.addCleanup(shutil.rmtree, self.directory)
        self.out = self.directory / "out"
        (self.directory / "input.yaml").write_text("train: {steps: 1}\n")

    # --- running ------------------------------------------------------------------------------------------------------

    def one(self, keys, program=PROGRAM, command=("train",)):
        """Command line of a rank."""
        return [program, *command, str(self.directory / "input.yaml"), *overrides({"run.output": self.out, **keys})]

    def start(self, *ranks):
        """Starts (number of ranks, their command line)s together."""
        words = [MPIEXEC]
        for count, command in ranks:
            words += [":"] * (len(words) > 1) + ["-n", str(count), *command]
        # Open MPI's files are in a place of their own: it trips over those of another program that ends meanwhile.
        (self.directory / "tmp").mkdir(exist_ok=True)
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                                env={**ENVIRONMENT, "TMPDIR": str(self.directory / "tmp")})

    def end(self, run):
        try:
            return run.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            run.kill()
            out, err = run.communicate()
            self.fail(f"the run did not end:\n{out}{err}")

    def train(self, keys):
        run = self.start((2, self.one(keys)))
        out, err = self.end(run)
        self.assertEqual(run.returncode, 0, out + err)
        self.assertFalse((self.out / "watchdog.txt").exists())
        return out

    def wait_for(self, run, has_come):
        deadline = time.monotonic() + LIMIT_S
        while not has_come():
            self.assertIsNone(run.poll(), "it ended")
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)

    def started(self, keys, ranks=3):
        """An endless run that has written its first checkpoint, and the ranks that they are past set-up."""
        run = self.start((ranks, self.one({**ENDLESS, **keys})))
        self.wait_for(run, lambda: list(self.out.glob("checkpoints/step_*.h5")) and
                      all(re.search(" step [1-9]", self.line_of(rank)) for rank in range(ranks)))
        return run

    def line_of(self, rank):
        """Of watchdog.txt."""
        lines = (self.out / "watchdog.txt").read_text().splitlines() if (self.out / "watchdog.txt").exists() else []
        return lines[rank] if len(lines) > rank else ""

    def process_of(self, rank):
        """As watchdog.txt says."""
        self.assertRegex(self.line_of(rank), f"^rank {rank} step ")
        return int(re.search(r" process (\d+) ", self.line_of(rank))[1])

    # --- what a user is left with -------------------------------------------------------------------------------------

    def assert_failed(self, run, status, *fragments):
        """Ends a run. Every fragment is a regular expression of what it has to say."""
        out, err = self.end(run)
        said = f"status {run.returncode}\n{out}{err}"
        self.assertEqual(run.returncode, status, said)
        for fragment in ("(?m)^error: ", "(?m)^  remedy: ", *fragments):
            self.assertRegex(err, fragment)
        self.assertEqual(len(re.findall("(?m)^error: ", err)), 1, said)
        # mpirun may end before the last killed rank has.
        deadline = time.monotonic() + 10
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.1)
        self.assertEqual(self.processes(), [])
        return err

    def processes(self):
        """Those that have this test's directory in their command line."""
        found = []
        for file in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if str(self.directory).encode() in file.read_bytes():
                    found.append(file)
            except OSError:
                continue  # it ended meanwhile
        return found

    def assert_results_are_whole(self, directory=None, at_least=1):
        """Every checkpoint is whole, and every row of steps.csv.partial. Returns the checkpoints' steps."""
        checkpoints = sorted((directory or self.out / "checkpoints").glob("step_*.h5"))
        self.assertGreaterEqual(len(checkpoints), at_least)
        for checkpoint in checkpoints:
            seen = subprocess.run([PROGRAM, "checkpoint", "verify", checkpoint], capture_output=True, text=True,
                                  env=ENVIRONMENT, timeout=LIMIT_S)
            self.assertEqual(seen.returncode, 0, seen.stderr)
        text = (self.out / "steps.csv.partial").read_text()
        self.assertEqual(text[-1:], "\n")
        rows = list(csv.reader(text.splitlines()))
        self.assertEqual({len(row) for row in rows}, {len(rows[0])})
        self.assertEqual([int(row[0]) for row in rows[1:]], list(range(1, len(rows))))
        steps = [int(checkpoint.stem.split("_")[1]) for checkpoint in checkpoints]
        if steps:
            self.assertGreaterEqual(len(rows) - 1, steps[-1])
        return steps

    def lists(self, title, err):
        """Of a watchdog's message: the ranks under `title`, and those that wait for them."""
        found = re.search(f"(?s)  {title}:\n(.*?)  waiting for others:\n(.*?)  remedy", err)
        self.assertIsNotNone(found, err)
        return found.groups()

    # --- ranks --------------------------------------------------------------------------------------------------------

    def test_killed_rank(self):
        run = self.started({})
        os.kill(self.process_of(2), signal.SIGKILL)
        self.assert_failed(run, 137,
                           r"error: rank 2 \(process \d+ on \S+\), step \d+, OneBit::\S+: the process is gone",
                           "dmesg, sacct", "checkpoint.restart=auto")
        self.assert_results_are_whole()

    def test_stopped_rank(self):
        # Rank 0, so that another one has to speak.
        run = self.started({"run.watchdog_seconds": WATCHDOG_S})
        os.kill(self.process_of(0), signal.SIGSTOP)
        err = self.assert_failed(run, 1, f"watchdog: no rank has gone on for {WATCHDOG_S} s", "ps, dmesg",
                                 "checkpoint.restart=auto")
        silent, waiting = self.lists("silent", err)
        self.assertRegex(silent,
                         r"^    rank 0 \(process \d+ on \S+\), step \d+, OneBit\S*: not heard of since 20\S+Z\n$")
        self.assertEqual(re.findall(r"rank (\d+) \(", waiting), ["1", "2"])
        self.assert_results_are_whole()

    def test_stopped_rank_of_a_benchmark(self):
        keys = {"run.watchdog_seconds": WATCHDOG_S, "bench.repetitions": 2**31 - 1}
        run = self.start((3, self.one(keys, command=("bench", "collective"))))
        self.wait_for(run, lambda: "OneBit::comm" in self.line_of(1))
        os.kill(self.process_of(1), signal.SIGSTOP)
        err = self.assert_failed(run, 1, f"watchdog: no rank has gone on for {WATCHDOG_S} s")
        silent, waiting = self.lists("silent", err)
        self.assertRegex(silent, r"^    rank 1 \(process \d+ on \S+\), OneBit::\S+: not heard of since 20\S+Z\n$")
        self.assertEqual(re.findall(r"rank (\d+) \(.*, OneBit::(?:comm|base)::", waiting), ["0", "2"])

    def test_hanging_rank(self):
        keys = {**KEYS, "run.watchdog_seconds": WATCHDOG_S, "faults.kind": "hang", "faults.rank": 1, "faults.step": 20}
        err = self.assert_failed(self.start((3, self.one(keys))), 1, "watchdog: no rank has gone on for", "gdb -p",
                                 "raise run.watchdog_seconds")
        busy, waiting = self.lists("busy", err)
        self.assertRegex(busy, r"^    rank 1 \(process \d+ on \S+\), step 20, OneBit::workload::fault: for [\d.]+ s\n$")
        self.assertEqual(re.findall(r"rank (\d+) \(.*, step 20, ", waiting), ["0", "2"])
        self.assertEqual(self.assert_results_are_whole(), [8, 16])

    def test_rank_that_hangs_in_set_up(self):
        keys = {**KEYS, "run.watchdog_seconds": WATCHDOG_S, "faults.kind": "hang", "faults.rank": 0, "faults.step": 0}
        err = self.assert_failed(self.start((3, self.one(keys))), 1, "watchdog: no rank has gone on for", "gdb -p")
        busy, waiting = self.lists("busy", err)
        self.assertRegex(busy, r"^    rank 0 \(process \d+ on \S+\), OneBit::workload::fault: for [\d.]+ s\n$")
        self.assertEqual(re.findall(r"rank (\d+) \(.*, OneBit::base::agree: ", waiting), ["1", "2"])

    # --- numbers ------------------------------------------------------------------------------------------------------

    def test_nan_on_one_rank(self):
        # Of the compressed phase; bad_input_test.py has it in the dense one, nan_on_one_rank.
        keys = {**KEYS, "faults.kind": "nan", "faults.rank": 1, "faults.step": 20}
        self.assert_failed(self.start((2, self.one(keys))), 1,
                           "error: rank 1, step 20: the gradient of tensor 'x' is not finite",
                           "remedy: lower optimizer.lr")
        self.assertEqual(self.assert_results_are_whole(), [8, 16])

    def test_replica_out_of_sync(self):
        keys = {**KEYS, "faults.kind": "desync", "faults.rank": 1, "faults.step": 18, "run.check_replicas_every": 4}
        self.assert_failed(self.start((3, self.one(keys))), 1,
                           r"error: step 20: the parameters of rank\(s\) 1 differ from rank 0's",
                           "remedy: check memory")
        self.assertEqual(self.assert_results_are_whole(), [8, 16])

    # --- disks --------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def small_disk(self, size):
        """`out` on a file system of its own."""
        self.out.mkdir()
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(mounted(self.out, size))
            except Skip as reason:
                self.skipTest(str(reason))
            yield

    def test_disk_full_of_checkpoints(self):
        with self.small_disk("3m"):  # for three of them, a fourth does not fit
            run = self.start((2, self.one({**KEYS, "checkpoint.keep": 100, "quadratic.dimension": 40000})))
            err = self.assert_failed(run, 1, r"step_\d+\.h5", "could not be written", "free space")
            steps = self.assert_results_are_whole()
            self.assertIn(f"step_{steps[-1] + 8:08}.h5", err)
            self.assertEqual(list(self.out.glob("checkpoints/*.partial")), [])

    def test_disk_full_of_rows(self):
        with self.small_disk("40k"):
            run = self.start((2, self.one({**ENDLESS, "checkpoint.every": 20,
                                           "checkpoint.directory": self.directory / "elsewhere"})))
            self.assert_failed(run, 1, "steps.csv: writing failed", "free space")
            self.assert_results_are_whole(self.directory / "elsewhere")

    def test_file_size_limit(self):
        """As ulimit -f and the batch systems' limits on files set it: a checkpoint that is too long, or a table."""
        for keys, kibibytes, fragments in (
                ({"quadratic.dimension": 300000, "checkpoint.every": 0, "run.dump_parameters": "x.h5"}, 500,
                 (r"x\.h5", "could not be written: File too large")),
                ({"quadratic.dimension": 300000, "checkpoint.every": 2}, 500,
                 (r"step_\d+\.h5", "could not be written: File too large")),
                ({**ENDLESS, "checkpoint.every": 0}, 100, ("steps.csv: writing failed: File too large",))):
            shutil.rmtree(self.out, ignore_errors=True)
            limited = ["sh", "-c", f'ulimit -f {2 * kibibytes}; exec "$@"', "sh"]  # in units of 512 bytes
            self.assert_failed(self.start((2, [*limited, *self.one({**KEYS, **keys})])), 1, *fragments)
            self.assertEqual(list(self.out.glob("**/*.h5.partial*")), [])

    def test_output_that_vanishes(self):
        run = self.started({"checkpoint.every": 1000})
        shutil.rmtree(self.out)
        self.assert_failed(run, 1, r"steps\.csv|\.h5", "No such file or directory")

    def test_reasons(self):
        """Of files that cannot be written, as the system says it; what is refused leaves nothing."""
        (self.directory / "file").write_text("mine")
        out = self.directory / "made/out"
        for keys, reason in (({"run.output": self.directory / "file/x"}, "Not a directory"),
                             ({"run.output": "/proc/onebit"}, "No such file or directory"),
                             ({"run.dump_parameters": "/proc/x.h5"}, "No such file or directory"),
                             ({"checkpoint.directory": self.directory / "file/x"}, "Not a directory"),
                             ({"checkpoint.restart": "none.h5"}, "does not exist")):
            run = self.start((2, self.one({**KEYS, "run.output": out, **keys})))
            self.assert_failed(run, 2, reason)
            self.assertFalse((self.directory / "made").exists(), keys)
        run = self.start((2, [*self.one({**KEYS, "run.output": out}), "--json", self.directory / "file/x.json"]))
        self.assert_failed(run, 2, "--json: file '.*' cannot be written: Not a directory")
        self.assertFalse((self.directory / "made").exists())

    # --- two runs -----------------------------------------------------------------------------------------------------

    def test_second_run_in_a_directory(self):
        elsewhere = {"checkpoint.directory": self.directory / "elsewhere", "checkpoint.every": 10**9}
        first = self.started_elsewhere(elsewhere)
        for keys in ({}, {"run.output": self.directory / "other", **elsewhere}):
            err = self.refusal({**KEYS, **keys})
            self.assertRegex(err, r"another run writes to directory '.*' \(process \d+ on \S+, since 20\d\d-\S+Z\)")
        run = subprocess.run(self.one({}, command=("bench", "collective")), capture_output=True, text=True,
                             env=ENVIRONMENT, timeout=LIMIT_S)
        self.assertEqual(run.returncode, 2, run.stderr)
        self.assertIn("another run writes to directory", run.stderr)
        self.assertFalse((self.directory / "other").exists())
        self.assertIsNone(first.poll(), "the first run goes on")
        # The lock ends with the process, however that ends.
        os.kill(self.process_of(0), signal.SIGKILL)
        self.end(first)
        self.assertTrue((self.out / "run.lock").exists())
        self.train({**KEYS, **elsewhere, "checkpoint.restart": "auto"})
        self.assertFalse((self.out / "run.lock").exists())

    def started_elsewhere(self, keys):
        run = self.start((2, self.one({**ENDLESS, **keys})))
        self.wait_for(run, lambda: re.search(" step [1-9]", self.line_of(0)))
        return run

    def refusal(self, keys, **options):
        """What a run of one rank says that is refused."""
        done = subprocess.run(self.one(keys), capture_output=True, text=True, timeout=LIMIT_S,
                              **{"env": ENVIRONMENT, **options})
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        return done.stderr

    def test_file_system_without_locks(self):
        (self.directory / "no_locks.c").write_text(NO_LOCKS)
        library = self.directory / "no_locks.so"
        built = subprocess.run(["cc", "-shared", "-fPIC", "-o", library, self.directory / "no_locks.c", "-ldl"],
                               capture_output=True, text=True)
        self.assertEqual(built.returncode, 0, built.stderr)
        environment = {**ENVIRONMENT, "LD_PRELOAD": str(library)}
        lock = self.out / "run.lock"
        keys = {**KEYS, "checkpoint.every": 0}
        run = subprocess.Popen(self.one({**ENDLESS, "checkpoint.every": 0}), stdout=subprocess.PIPE, text=True,
                               env=environment)
        self.wait_for(run, lambda: re.search(" step [1-9]", self.line_of(0)))
        self.assertIn("another run writes to directory", self.refusal(keys, env=environment))
        run.kill()
        out, _ = run.communicate()
        self.assertEqual(out.count("has no locks (No locks available)"), 1, out[:1000])
        # That process is gone, so its file does not count; one of another host does.
        done = subprocess.run(self.one(keys), capture_output=True, text=True, env=environment, timeout=LIMIT_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        lock.write_text("process 1 on another_host since 2026-01-01T00:00:00Z\n")
        self.assertIn("process 1 on another_host, since 2026-01-01T00:00:00Z",
                      self.refusal(keys, env=environment))

    def test_no_run_replaces_an_earlier_ones_results(self):
        names = ("run.csv", "steps.csv", "profile.csv", "input.resolved.yaml", "x.h5")
        keys, kept, last = {**KEYS, "run.dump_parameters": "x.h5", "checkpoint.every": 0}, {}, None
        for seed in (1, 2, 3):
            out = self.train({**keys, "run.seed": seed})
            place = re.search("are kept in (.*/earlier/\\S+)", out)
            self.assertEqual(place is not None, seed > 1, out)
            if place:
                kept[place[1]] = last
            for directory, files in kept.items():
                self.assertEqual([pathlib.Path(directory, name).read_bytes() for name in names], files)
            last = [(self.out / name).read_bytes() for name in names]
        self.assertEqual(len(kept), 2)
        # A killed run's rows stay, too, unless a run goes on with them.
        run = self.started({"checkpoint.every": 5})
        os.kill(self.process_of(1), signal.SIGKILL)
        self.end(run)
        rows = (self.out / "steps.csv.partial").read_bytes()
        out = self.train({**KEYS, "checkpoint.every": 0})
        place = re.search("are kept in (.*/earlier/\\S+)", out)[1]
        self.assertEqual(pathlib.Path(place, "steps.csv.partial").read_bytes(), rows)

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def test_damaged_checkpoints(self):
        def damage(path, how):
            content = bytearray(path.read_bytes())
            if how == "cut":
                content = content[:len(content) // 2]
            else:
                content[len(content) // 2] ^= 1
            path.write_bytes(content)

        keys = {**KEYS, "checkpoint.keep": 3}
        self.train(keys)
        undisturbed = self.hash_of_run()
        newest = sorted(self.out.glob("checkpoints/*.h5"))
        self.assertEqual([path.name[5:13] for path in newest], ["00000024", "00000032", "00000040"])
        damage(newest[2], "flipped")
        damage(newest[1], "cut")
        said = self.train({**keys, "checkpoint.restart": "auto"})
        self.assertEqual(re.findall(r"warning: .*(step_\d+)\.h5: this file is damaged", said),
                         ["step_00000040", "step_00000032"])
        self.assertIn(f"restart: from {newest[0]}", said)
        self.assertEqual(self.hash_of_run(), undisturbed)

    def hash_of_run(self):
        return read_csv(self.out / "run.csv")[0]["parameters_hash"]

    def test_semaphore_of_a_killed_job(self):
        # Open MPI's component sharedfp/sm has one of this name. A job that is killed while it has it leaves it locked.
        name = b"/OMPIO_step_00000037.h5.partial"
        libc = ctypes.CDLL(None, use_errno=True)
        libc.sem_open.restype = ctypes.c_void_p
        self.assertTrue(libc.sem_open(name, os.O_CREAT, 0o600, 0), os.strerror(ctypes.get_errno()))
        self.addCleanup(libc.sem_unlink, name)
        self.train({**KEYS, "checkpoint.every": 37})

    # --- ranks that do not belong together ----------------------------------------------------------------------------

    def assert_refused(self, first, others, *fragments):
        self.assert_failed(self.start((1, first), (2, others)), 2, *fragments)
        self.assertFalse(self.out.exists())

    def test_other_input_on_a_rank(self):
        self.assert_refused(self.one(KEYS), self.one({**KEYS, "optimizer.lr": 0.5}),
                            "error: rank 1: --set optimizer.lr=0.5: optimizer.lr is 0.5, and 0.001 on rank 0",
                            "same --set")

    def test_other_command_on_a_rank(self):
        self.assert_refused(self.one(KEYS), self.one(KEYS, command=("bench", "collective")),
                            "program: not the same one as rank 0's on ranks 1, 2 of 3", "rank 0: onebit train of build",
                            "rank 1: onebit bench collective of build")

    def test_other_binary_on_a_rank(self):
        other = self.directory / "onebit"
        other.write_bytes(pathlib.Path(PROGRAM).read_bytes() + b"another")
        other.chmod(0o755)
        self.assert_refused(self.one(KEYS), self.one(KEYS, program=str(other)),
                            "program: not the same one as rank 0's on ranks 1, 2 of 3",
                            r"rank 0: .* of build ([0-9a-f]{16})(?s:.*)rank 1: .* of build (?!\1)[0-9a-f]{16}",
                            "copy the same executable")

    # --- memory -------------------------------------------------------------------------------------------------------

    @unittest.skipIf(os.environ.get("ONEBIT_SANITIZE"), "a sanitizer takes terabytes of addresses")
    def test_out_of_memory_on_a_rank(self):
        # Models that cannot fit are refused before: bad_input_test.py, memory_*.
        keys = {**KEYS, "quadratic.dimension": 100000000}  # 400 MB a vector
        limited = ["sh", "-c", 'ulimit -v 1500000; exec "$@"', "sh", *self.one(keys)]
        # Kokkos 3.4 names the View before its size, 4.6 behind it.
        self.assert_failed(self.start((1, self.one(keys)), (1, limited)), 1,
                           r"error: rank 1: memory: (?=.*OneBit::\w+::\w+).*failed to allocate.* 381.* M",
                           "remedy: use a smaller model", "ulimit -v")


def run(test):
    """Everything that is wrong, why it was skipped, and the seconds that it took."""
    begin = time.monotonic()
    result = unittest.TestResult()
    test.run(result)
    wrong = [text for _, text in result.failures + result.errors]
    return wrong, [reason for _, reason in result.skipped], time.monotonic() - begin


def main():
    pattern = re.compile(sys.argv[3] if len(sys.argv) > 3 else "")
    tests = [test for test in unittest.defaultTestLoader.loadTestsFromTestCase(Faults) if pattern.search(test.id())]
    failed = 0
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as workers:
        for test, (wrong, skipped, seconds) in zip(tests, workers.map(run, tests)):
            failed += bool(wrong)
            for reason in skipped:
                skips.report(test.id().removeprefix("__main__."), reason)
            word = "FAILED" if wrong else "SKIPPED" if skipped else "ok"
            print(f"{word:8}{test.id().rsplit('.', 1)[1]} ({seconds:.1f} s)", *wrong, *skipped, sep="\n", flush=True)
    print(f"{len(tests)} tests, {failed} failed, {time.monotonic() - begin:.0f} s")
    sys.exit(failed > 0 or not tests)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main()
