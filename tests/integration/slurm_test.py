#!/usr/bin/env python3
"""Sweeps and batch scripts on a real Slurm of one node, which this starts and ends, and without one.

Usage: slurm_test.py PROGRAM MPIEXEC Slurm|Local

A sweep of eight cells is submitted with sbatch; one of its jobs is preempted by a job of a partition with precedence,
writes a checkpoint, is requeued and resumes; the results of all cells are collected, and the preempted cell ends in the
bits of an undisturbed run. Exit status 77 (skipped) where Slurm is missing and cannot be installed.
"""

import atexit
import os
import pathlib
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
from lib.launch import mpirun
from support import MPIEXEC, PROGRAM, ROOT, read_csv

CLUSTER = ROOT / "scripts/slurm/local_cluster.sh"
SWEEP = ROOT / "scripts/onebit-sweep"
LIMIT_S = 150  # of whatever is waited for

INPUT = """
train: {steps: 100, batch: 8, validate_every: 100}
optimizer: {algorithm: onebit_adam, lr: 0.01}
freeze: {step: 50}
workload: {kind: quadratic}
quadratic: {dimension: 20000}
"""
# Two cells, on one and on two ranks, take long enough to be preempted.
LONG_STEPS = 1500
EIGHT = f"""
inputs: [input.yaml]
overrides:
  - {{optimizer.algorithm: [adam, onebit_adam, momentum_sgd]}}
  - {{optimizer.algorithm: [onebit_adam], train.steps: [{LONG_STEPS}]}}
ranks: [1, 2]
slurm: {{options: [--time=00:10:00]}}
"""


def wait_for(what, condition, pause_s=0.2):
    """Waits until `condition()` is true."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not in {LIMIT_S} s")
        time.sleep(pause_s)


def wait_for_steps(output):
    """Waits until a run is in the midst of its steps."""
    path = output / "steps.csv.partial"
    wait_for(f"steps in {path}", lambda: path.exists() and path.read_text().count("\n") > 20, pause_s=0.02)


class InScratch(unittest.TestCase):
    """Sweeps in a directory of their own, each with an input."""

    environment = {name: value for name, value in os.environ.items() if name not in ("OMP_PROC_BIND", "OMP_PLACES")}

    def setUp(self):
        self.directory = support.scratch(self)
        (self.directory / "input.yaml").write_text(INPUT)
        self.results = self.directory / "results"

    def sweep(self, command, text, *options, expected=0):
        """Calls onebit-sweep on the sweep file of this text; returns what it prints."""
        (self.directory / "sweep.yaml").write_text(text)
        done = support.run(self, [SWEEP, command, self.directory / "sweep.yaml", "--results", self.results, "--onebit",
                                  PROGRAM, *options], expected, env=self.environment, timeout=LIMIT_S)
        return done.stdout if expected == 0 else done.stderr

    def cell(self, name):
        return self.results / "sweep" / name

    def table(self):
        return read_csv(self.results / "sweep/table.csv")


class Slurm(InScratch):
    """On a Slurm of one node."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = tempfile.mkdtemp(prefix="onebit-slurm.")
        cls.environment = {**InScratch.environment, "ONEBIT_SLURM_DIR": cls.cluster, "OMPI_ALLOW_RUN_AS_ROOT": "1",
                           "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "SLURM_CONF": f"{cls.cluster}/slurm.conf",
                           "ONEBIT_BINARY": PROGRAM}
        # After a failure in the last line too, and when this is interrupted.
        cls.addClassCleanup(cls.stop)
        atexit.register(cls.stop)
        subprocess.run([CLUSTER, "start"], env=cls.environment, check=True, timeout=900)

    @classmethod
    def stop(cls):
        if os.path.isdir(cls.cluster):
            subprocess.run([CLUSTER, "stop"], env=cls.environment, check=True, timeout=120)
            shutil.rmtree(cls.cluster)

    def slurm(self, *command):
        done = subprocess.run(command, cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=60,
                              check=False)
        self.assertEqual(done.returncode, 0, f"{command}: {done.stderr}")
        return done.stdout.strip()

    def state(self, job):
        return self.slurm("squeue", "--noheader", "--array", "--states=all", f"--jobs={job}", "--format=%T")

    def wait_until_queue_is_empty(self):
        wait_for("an empty queue", lambda: not self.slurm("squeue", "--noheader"))

    def test_sweep_with_a_preempted_job(self):
        said = self.sweep("submit", EIGHT)
        self.assertIn("8 cells: 8 to run", said)
        self.assertEqual(said.count("submitted job array"), 2)  # one for each rank count
        # The last cell of an array's has the array's own number.
        long = f"input_algorithm=onebit_adam_steps={LONG_STEPS}_openmp_2x1_seed1"
        self.assertIn("8 in the queue, 0 to run", self.sweep("submit", EIGHT))

        # A job of the partition with precedence takes the cores from the long cell of two ranks amid its steps.
        rows = {row["cell"]: row for row in read_csv(self.results / "sweep/jobs.csv")}
        job = f"{rows[long]['job']}_{rows[long]['task']}"
        steps = self.cell(long) / "steps.csv.partial"
        wait_for_steps(self.cell(long))
        self.slurm("scancel", "--signal=STOP", job)  # so that it cannot end before the scheduler has decided
        urgent = self.slurm("sbatch", "--parsable", "--partition=urgent", "--ntasks=2", "--output=/dev/null",
                            "--wrap=true")
        wait_for("the preemption", lambda: "PreemptTime=None" not in self.slurm("scontrol", "show", "job", job))
        self.slurm("scancel", "--signal=CONT", job)
        wait_for("the requeued job", lambda: self.state(job) == "PENDING")
        self.assertIn(f"/{LONG_STEPS}", self.sweep("status", EIGHT))
        self.sweep("collect", EIGHT)  # a table at any time
        before = {row["cell"]: row for row in self.table()}
        self.assertEqual(len(before), 8)
        self.assertEqual(before[long]["state"], "pending")
        self.assertEqual(before[long]["parameters_hash"], "")
        at_stop = len(read_csv(steps))
        self.assertLess(at_stop, LONG_STEPS, "the job ended before it could be preempted")
        wait_for("the urgent job", lambda: self.state(urgent) == "COMPLETED")
        self.wait_until_queue_is_empty()

        self.assertIn("8 cells: 8 complete", self.sweep("collect", EIGHT))
        table = {row["cell"]: row for row in self.table()}
        self.assertEqual(len(table), 8)
        for name, row in table.items():
            self.assertEqual(row["state"], "complete", name)
            self.assertEqual(row["slurm_restarts"], "1" if name == long else "", name)
            self.assertTrue(row["parameters_hash"], name)
            self.assertEqual(row["slurm_array_job_id"], rows[name]["job"])
            self.assertEqual(row["slurm_array_task_id"], rows[name]["task"])
            self.assertEqual(row["slurm_nodelist"], os.uname().nodename.split(".")[0])
            self.assertEqual(row["slurm_partition"], "local")
            self.assertEqual(row["ranks"], "2" if "_2x1_" in name else "1")
        log = (self.cell(long) / "log").read_text()
        self.assertIn("is requeued", log)
        self.assertIn("start 2:", log)
        steps_of = [int(row["step"]) for row in read_csv(self.results / "sweep/table_steps.csv") if row["cell"] == long]
        self.assertEqual(steps_of, list(range(1, LONG_STEPS + 1)))

        # The same run, undisturbed, and without Slurm.
        arguments = (self.cell(long) / "arguments").read_text().splitlines()
        alone = self.directory / "alone"
        subprocess.run(mpirun(2, PROGRAM, "train", *arguments, "--set", f"run.output={alone}", mpiexec=MPIEXEC),
                       cwd=ROOT, stdout=subprocess.DEVNULL, env={**self.environment, "OMP_NUM_THREADS": "1"},
                       check=True, timeout=LIMIT_S)
        undisturbed = read_csv(alone / "run.csv")[0]
        self.assertEqual(table[long]["parameters_hash"], undisturbed["parameters_hash"])
        self.assertEqual(table[long]["bytes_sent"], undisturbed["bytes_sent"])

        # Nothing is left to do, unless the program or an input changes.
        self.assertIn("8 cells: 8 complete, 0 to run", self.sweep("submit", EIGHT))
        self.assertEqual(self.slurm("squeue", "--noheader"), "")

    def test_mpirun_hands_signals_on(self):
        """Where srun has no PMIx; and the signal is that of scancel to the batch script."""
        self.environment = {**self.environment, "ONEBIT_LAUNCHER": "mpirun"}
        run, out = self.directory / "run", self.directory / "out"
        job = self.slurm("sbatch", "--parsable", "--ntasks=2", "--cpus-per-task=1", f"--output={out}",
                         "scripts/slurm/cpu.sbatch", str(self.directory / "input.yaml"), "--set", f"run.output={run}",
                         "--set", f"train.steps={LONG_STEPS}")
        wait_for_steps(run)
        self.slurm("scancel", "--batch", "--signal=USR1", job)
        wait_for("the end of the job", lambda: self.state(job) == "COMPLETED")
        text = out.read_text()
        self.assertIn("mpirun -n 2", text)
        self.assertIn("start 2:", text)
        row = read_csv(run / "run.csv")[0]
        self.assertEqual((row["ranks"], row["steps"], row["slurm_restarts"]), ("2", str(LONG_STEPS), "1"))
        self.assertEqual(len(read_csv(run / "steps.csv")), LONG_STEPS)

    def test_cancelled_job_stays_away(self):
        """And the program's other exit statuses are those of the job."""
        run, out = self.directory / "run", self.directory / "out"
        arguments = ["--ntasks=2", "--cpus-per-task=1", "scripts/slurm/cpu.sbatch", str(self.directory / "input.yaml"),
                     "--set", f"run.output={run}"]
        job = self.slurm("sbatch", "--parsable", f"--output={out}", *arguments, "--set", f"train.steps={LONG_STEPS}")
        wait_for_steps(run)
        self.slurm("scancel", job)
        self.wait_until_queue_is_empty()
        self.assertEqual(self.state(job), "CANCELLED")
        job = self.slurm("sbatch", "--parsable", f"--output={out}", *arguments, "--set", "optimizer.lr=-1")
        wait_for("the end of the job", lambda: self.state(job) not in ("PENDING", "RUNNING", "COMPLETING"))
        self.assertEqual(self.state(job), "FAILED")
        self.assertIn("ExitCode=2:0", self.slurm("scontrol", "show", "job", job))
        self.assertIn("optimizer.lr", out.read_text())


class Local(InScratch):
    """Without Slurm."""

    FOUR = "inputs: [input.yaml]\noverrides: {optimizer.lr: [0.01, 0.02]}\nseeds: [1, 2]\n"

    def test_cells_run_once(self):
        options = ("--local", "--mpiexec", MPIEXEC)
        dry = self.sweep("submit", self.FOUR, *options, "--dry-run")
        self.assertEqual(dry.count(f"{PROGRAM} train"), 4)
        self.assertFalse(self.results.exists())
        self.assertIn("4 complete", self.sweep("submit", self.FOUR, *options, "--jobs", "2"))
        self.assertIn("4 cells: 4 complete", self.sweep("status", self.FOUR))
        self.sweep("collect", self.FOUR)
        rows = self.table()
        self.assertEqual([(row["optimizer.lr"], row["seed"], row["state"]) for row in rows],
                         [(lr, seed, "complete") for lr in ("0.01", "0.02") for seed in ("1", "2")])
        self.assertEqual(len({row["parameters_hash"] for row in rows}), 4)
        self.assertEqual(len(read_csv(self.results / "sweep/table_steps.csv")), 4 * 100)
        # One that lost its results, one of an input that changed, and one of another program are run again.
        times = {row["cell"]: (self.cell(row["cell"]) / "run.csv").stat().st_mtime_ns for row in rows}
        names = list(times)
        (self.cell(names[0]) / "run.csv").unlink()
        resolved = self.cell(names[1]) / "input.resolved.yaml"
        resolved.write_text(resolved.read_text().replace("batch: 8", "batch: 4"))
        run = self.cell(names[2]) / "run.csv"
        run.write_text(run.read_text().replace(rows[2]["git"], "earlier"))
        times[names[2]] = run.stat().st_mtime_ns
        said = self.sweep("submit", self.FOUR, *options)
        self.assertIn("4 cells: 1 complete, 3 to run", said)
        again = {name: (self.cell(name) / "run.csv").stat().st_mtime_ns for name in names}
        self.assertEqual([again[name] == times[name] for name in names], [False, False, False, True])
        # What was there before is not lost.
        self.assertIn("earlier", (self.results / "sweep/superseded" / f"{names[2]}.1/run.csv").read_text())

    def test_stopped_sweep_goes_on(self):
        text = f"inputs: [input.yaml]\nset: {{train.steps: {LONG_STEPS}}}\nseeds: [1, 2]\n"
        (self.directory / "sweep.yaml").write_text(text)
        command = [SWEEP, "submit", self.directory / "sweep.yaml", "--results", self.results, "--onebit", PROGRAM,
                   "--local", "--mpiexec", MPIEXEC]
        first = self.cell("input_openmp_1x1_seed1")
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=self.environment) as process:
            wait_for_steps(first)
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=LIMIT_S)[0]
        self.assertEqual(process.returncode, 1, said)
        self.assertIn("1 stopped, 1 not started", said)
        done = len(read_csv(first / "steps.csv.partial"))
        self.assertIn(f"{done}/{LONG_STEPS}", self.sweep("status", text))
        self.assertIn("2 complete", self.sweep("submit", text, "--local", "--mpiexec", MPIEXEC))
        self.assertEqual(len(read_csv(first / "steps.csv")), LONG_STEPS)
        self.assertEqual(read_csv(first / "run.csv")[0]["restarts"], "1")

    def test_failed_cell_is_told(self):
        text = "inputs: [input.yaml]\noverrides: {optimizer.lr: [0.01, 3.0e+38]}\n"  # one diverges
        self.sweep("submit", text, "--local", "--mpiexec", MPIEXEC, expected=1)
        self.sweep("collect", text)
        self.assertEqual([(row["optimizer.lr"], row["state"]) for row in self.table()],
                         [("0.01", "complete"), ("3.0e+38", "unfinished")])
        name, = (row["cell"] for row in self.table() if row["state"] == "unfinished")
        self.assertIn("not finite", (self.cell(name) / "log").read_text())

    def test_cells_that_could_not_start_are_refused_before_they_wait(self):
        """With the place of what is wrong in the sweep file; for Slurm and here."""
        text_run = ("inputs: [input.yaml]\n"
                    "set: {workload.kind: transformer, data.tokenizer: %s}\noverrides: {data.corpus: [none.txt]}\n")
        for text, place, what in (("inputs: [input.yaml]\nranks: [2, 3]\n", ":2:8", "not a multiple of 3 ranks"),
                                  ("inputs: [input.yaml]\nset: {train.batch: 9}\nranks: [2]\n", ":3:8", "2 ranks"),
                                  (text_run % "characters", ":3:26", "none.txt"),
                                  (text_run % "sentencepiece", ":3:26", "none.txt"),
                                  ("inputs: [input.yaml]\nset: {checkpoint.initialize_from: none.h5}\n", ":2:35",
                                   "none.h5")):
            for options in (("--dry-run",), ("--local",), ("--local", "--dry-run")):
                with self.subTest(text, options=options):
                    said = self.sweep("submit", text, *options, expected=2)
                    self.assertIn(f"sweep.yaml{place}", said)
                    self.assertIn(what, said)
                    self.assertFalse(self.results.exists())

    def test_values_are_texts_as_they_stand(self):
        """From the sweep file to the directory of a run and to the table, whatever YAML, shells and CSV make of it."""
        values = ["a #1", "b: c, d", "=1+1", "it's", '"quoted"', "[f]", "100%\\", "µ ‖ @g", "1_000"]
        listed = ", ".join("'" + value.replace("'", "''") + "'" for value in values)
        text = f"inputs: [input.yaml]\noverrides: {{checkpoint.directory: [{listed}]}}\nset: {{train.steps: 2e0, " \
               "checkpoint.every: 1, freeze.step: 1}\n"
        self.sweep("submit", text, "--local", "--mpiexec", MPIEXEC)
        self.sweep("collect", text)
        rows = self.table()
        self.assertEqual([row["checkpoint.directory"] for row in rows], values)
        for row in rows:
            self.assertEqual(row["state"], "complete")
            self.assertTrue((self.cell(row["cell"]) / row["checkpoint.directory"] / "step_00000002.h5").is_file(), row)
        self.assertIn(f"{len(values)} complete, 0 to run", self.sweep("submit", text, "--local", "--mpiexec", MPIEXEC))

    def test_swept_keys_are_never_empty(self):
        """A cell whose mapping does not name a key has it from the input, or by default."""
        text = ("inputs: [input.yaml]\nset: {train.steps: 3}\noverrides:\n  - {optimizer.algorithm: [adam]}\n"
                "  - {optimizer.algorithm: [onebit_adam], freeze.step: [2], compression.scale: [l2]}\n")
        for before in (True, False):  # without results, and with them
            if not before:
                self.sweep("submit", text, "--local", "--mpiexec", MPIEXEC)
            (self.results / "sweep").mkdir(parents=True, exist_ok=True)
            self.sweep("collect", text)
            self.assertEqual([(row["optimizer.algorithm"], row["freeze.step"], row["compression.scale"])
                              for row in self.table()], [("adam", "50", "l1"), ("onebit_adam", "2", "l2")])

    def test_running_cell_is_seen(self):
        text = f"inputs: [input.yaml]\nset: {{train.steps: {20 * LONG_STEPS}}}\n"
        (self.directory / "sweep.yaml").write_text(text)
        command = [SWEEP, "submit", self.directory / "sweep.yaml", "--results", self.results, "--onebit", PROGRAM,
                   "--local", "--mpiexec", MPIEXEC]
        name = "input_openmp_1x1_seed1"
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=self.environment) as process:
            wait_for_steps(self.cell(name))
            self.assertRegex(self.sweep("status", text), rf"{name} +running ")
            # A second sweep leaves it alone.
            self.assertIn("1 running, 0 to run", self.sweep("submit", text, "--local", "--mpiexec", MPIEXEC))
            said = self.sweep("submit", f"{text}seeds: [1, 2]\n", "--local", "--mpiexec", MPIEXEC, expected=2)
            self.assertIn("another 'onebit-sweep submit --local' runs cells of this sweep", said)
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=LIMIT_S)[0]
        self.assertIn(f"{name}: begins\n", said)
        self.assertRegex(self.sweep("status", text), rf"{name} +unfinished ")

    def test_files_as_people_have_them(self):
        plain = self.FOUR.encode()
        expected = self.sweep("submit", self.FOUR, "--dry-run")
        for content in (b"\xef\xbb\xbf" + plain, plain.replace(b"\n", b"\r\n"), plain.replace(b"\n", b"\r"),
                        plain.rstrip(b"\n")):
            (self.directory / "sweep.yaml").write_bytes(content)
            done = support.run(self, [SWEEP, "submit", self.directory / "sweep.yaml", "--results", self.results,
                                      "--onebit", PROGRAM, "--dry-run"], env=self.environment, timeout=LIMIT_S)
            self.assertEqual(done.stdout, expected)

    def test_serial_has_one_thread(self):
        said = self.sweep("submit", "inputs: [input.yaml]\nbackends: [serial, openmp]\nthreads: [1, 2]\n", "--dry-run")
        self.assertIn("3 cells", said)
        self.assertEqual([said.count(f"{name}_seed1\n") for name in ("serial_1x1", "openmp_1x1", "openmp_1x2")],
                         [1, 1, 1])

    def test_refused_arrays_leave_nothing(self):
        """And the remedy names what Slurm refuses."""
        tools = self.directory / "tools"
        tools.mkdir()
        text = "inputs: [input.yaml]\nranks: [4]\nthreads: [2]\n"
        for said, remedy in (("Requested node configuration is not available", "lower ranks ("),
                             ("More processors requested than permitted", "lower ranks ("),
                             ("Invalid account or account/partition combination", "correct slurm.options")):
            (tools / "sbatch").write_text(f'#!/bin/sh\necho "sbatch: error: {said}" >&2\nexit 1\n')
            (tools / "sbatch").chmod(0o755)
            self.environment = {**InScratch.environment, "PATH": f"{tools}:{os.environ['PATH']}"}
            message = self.sweep("submit", text, expected=2)
            self.assertIn(said, message)
            self.assertIn(remedy, message)
            self.assertEqual([path.name for path in (self.results / "sweep").iterdir()], [])

    def test_slurm_commands(self):
        text = ("inputs: [input.yaml]\nset: {train.batch: 12}\nbackends: [openmp, cuda]\nranks: [6]\nthreads: [2]\n"
                "seeds: [1, 2]\n"
                "slurm: {at_once: 3, ranks_per_node: 4, options: [--time=01:00:00, '--comment=a b']}\n")
        said = self.sweep("submit", text, "--dry-run")
        self.assertEqual(said.count("--array=1-2%3 --ntasks=6 --cpus-per-task=2"), 2)
        options = "--time=01:00:00 '--comment=a b'"
        self.assertEqual(said.count(f"--nodes=2 --ntasks-per-node=4 {options}"), 1)
        self.assertEqual(said.count(f"--nodes=2 --ntasks-per-node=4 --gpus-per-node=4 {options}"), 1)
        self.assertEqual([said.count(f"scripts/slurm/{kind}.sbatch") for kind in ("cpu", "gpu")], [1, 1])

    def test_ranks_see_all_gpus_of_their_node(self):
        """What gpu.sbatch asks of sbatch and of a srun that prints its arguments."""
        script = ROOT / "scripts/slurm/gpu.sbatch"
        asked = [line.split()[1] for line in script.read_text().splitlines() if line.startswith("#SBATCH ")]
        self.assertTrue({"--ntasks=4", "--gpus-per-node=4"} <= set(asked), asked)
        tools = self.directory / "tools"
        tools.mkdir()
        (tools / "srun").write_text('#!/bin/sh\ncase $1 in --mpi=list) echo pmix ;; *) printf "%s\\n" "$@" ;; esac\n')
        (tools / "srun").chmod(0o755)
        job = {"SLURM_SUBMIT_DIR": str(ROOT), "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "here", "SLURM_NTASKS": "4",
               "ONEBIT_BINARY": str(PROGRAM), "ONEBIT_SRUN_MPI": "cray_shasta",
               "PATH": f"{tools}:{os.environ['PATH']}"}
        ended = subprocess.run(["bash", script, self.directory / "input.yaml"], env={**self.environment, **job},
                               capture_output=True, text=True, check=True, timeout=LIMIT_S)
        arguments = ended.stdout.splitlines()
        self.assertLessEqual({"--gpu-bind=none", "--mpi=cray_shasta"}, set(arguments))
        self.assertIn("run.backend=cuda", arguments)
        self.assertFalse([argument for argument in arguments + asked if argument.startswith("--gpus-per-task")])
        # The array's own file is removed where the cell's log has all that was printed.
        (self.directory / "arguments").write_text(f"{self.directory / 'input.yaml'}\n")
        (self.directory / "cells").write_text(f"{self.directory}\n")
        for task, is_left in (("1", False), ("2", True)):  # there is no second cell
            with open(self.directory / f"slurm-{task}.out", "w") as out:
                subprocess.run(["bash", script, "--cells", self.directory / "cells"], stdout=out, stderr=out,
                               env={**self.environment, **job, "SLURM_ARRAY_TASK_ID": task}, timeout=LIMIT_S)
            self.assertEqual((self.directory / f"slurm-{task}.out").exists(), is_left)
        self.assertIn("--gpu-bind=none", (self.directory / "log").read_text())

    def test_bad_sweeps_are_refused(self):
        for text, place, what in (
                ("inputs: [input.yaml\n", ":2:1", "not YAML"),
                ("", "", "empty"),
                ("inputs: [input.yaml]\nrank: [1]\n", ":2:1", "unknown key 'rank'"),
                ("ranks: [1]\n", "", "inputs is missing"),
                ("inputs: [none.yaml]\n", ":1:10", "does not exist"),
                ("inputs: [input.yaml]\nranks: [1, x]\n", ":2:12", "integer"),
                ("inputs: [input.yaml]\nranks: [2, 2]\n", ":2:12", "twice"),
                ("inputs: [input.yaml]\nranks: [0]\n", ":2:9", "from 1"),
                ("inputs: [input.yaml]\nranks: [010]\n", ":2:9", "at least 1"),
                ("inputs: [input.yaml]\nranks: [0x10]\n", ":2:9", "at least 1"),
                ("inputs: [input.yaml]\nseeds: [1_0]\n", ":2:9", "at least 0"),
                ("inputs: [input.yaml]\nseeds: [9223372036854775808]\n", ":2:9", "9223372036854775807"),
                ("inputs: [input.yaml]\nset: {run.dump_parameters: ~/a}\n", ":2:28", "home directory"),
                ("inputs: [input.yaml]\nseeds: []\n", ":2:8", "empty list"),
                ("inputs: [input.yaml]\nbackends: [gpu]\n", ":2:12", "unknown backend"),
                ("inputs: [input.yaml]\noverrides: {run.seed: [1]}\n", ":2:13", "by onebit-sweep itself"),
                ("inputs: [input.yaml]\noverrides: {lr: [1]}\n", ":2:13", "not a key of the input"),
                ("inputs: [input.yaml]\nset: {train.steps: {a: 1}}\n", ":2:20", "neither one line nor a list"),
                ("inputs: [input.yaml]\nset: {optimizer.lr: 1}\noverrides: {optimizer.lr: [2]}\n", ":3:27",
                 "set and in over"),
                ("inputs: [input.yaml]\noverrides: [{train.steps: [5]}, {train.steps: [5]}]\n", "",
                 "cells are the same"),
                ("inputs: [input.yaml]\noverrides: {optimizer.lrr: [1]}\n", ":2:28", "optimizer.lrr"),
                ("inputs: [input.yaml]\noverrides: {optimizer.lr: [0.1, -1]}\n", ":2:27", "optimizer.lr"),
                ("inputs: [input.yaml]\nranks: &a [*a]\n", ":2:", "integer"),
                ("inputs: [input.yaml]\nseeds: [" + ", ".join(map(str, range(20000))) + "]\n", "", "20000 cells"),
                (" [" * 5000, "", "not YAML")):
            with self.subTest(text[:80]):
                said = self.sweep("submit", text, "--dry-run", expected=2)
                self.assertIn("onebit-sweep: ", said)
                self.assertIn(f"sweep.yaml{place}", said)
                self.assertIn(what, said)
                self.assertIn("remedy", said)
                self.assertNotIn("Traceback", said)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if "Slurm" in sys.argv:
        missing = not shutil.which("slurmctld", path=os.environ["PATH"] + ":/usr/sbin")
        if missing and (os.getuid() != 0 or not shutil.which("apt-get")):
            skips.report("", "no Slurm here, and it takes root and apt to install it")
            sys.exit(skips.SKIPPED)
        if len(os.sched_getaffinity(0)) < 2:
            skips.report("", "one core here, and two ranks with a core each need two")
            sys.exit(skips.SKIPPED)
    skips.main(sys.argv[3:])
