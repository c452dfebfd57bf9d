#!/usr/bin/env python3
"""Stops, kills and restarts the program, and checks that it ends in the bits of the run that was left alone.

Usage: checkpoint_test.py PROGRAM MPIEXEC [--kills N] [unittest arguments]

--kills: at how many random moments a rank is killed with SIGKILL (default 4).
"""

import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import skips

KILLS = 4
if "--kills" in sys.argv:
    at = sys.argv.index("--kills")
    KILLS = int(sys.argv[at + 1])
    del sys.argv[at:at + 2]
import support
from support import ENVIRONMENT, PROGRAM, read_csv

LIMIT_S = 120

QUADRATIC = {"workload.kind": "quadratic", "quadratic.dimension": 20000, "train.steps": 40, "train.batch": 8,
             "train.validate_every": 7, "optimizer.algorithm": "onebit_adam", "optimizer.beta2": 0.9, "freeze.step": 15}
GPT = {"train.steps": 24, "train.batch": 8, "train.validate_every": 5, "train.validation_batch": 8,
       "optimizer.lr": 1e-3, "optimizer.beta2": 0.9, "optimizer.algorithm": "onebit_adam", "freeze.step": 10,
       "run.check_replicas_every": 1, "model.architecture": "gpt", "model.layers": 2, "model.hidden": 32,
       "model.heads": 2, "model.feed_forward": 64, "model.positions": 32, "model.sequence": 32, "model.dropout": 0.1,
       "compression.group": "tensor"}


def ranks_of(mpirun):
    """Process ids of the ranks that a running mpirun has started."""
    ids = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
            if int(fields[1]) == mpirun and os.readlink(stat.parent / "exe") == PROGRAM:
                ids.append(int(stat.parent.name))
        except OSError:
            continue  # it ended meanwhile
    return ids


def catches(process, number):
    """Whether a process has a handler for a signal."""
    status = pathlib.Path(f"/proc/{process}/status").read_text()
    caught = int(re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)[1], 16)
    return bool(caught >> (number - 1) & 1)


def without_times(path):
    """Rows of a CSV file without the columns that two runs of the same bits may differ in."""
    return [{name: cell for name, cell in row.items()
             if not name.endswith("_s") and not name.startswith(("peak_", "predicted_")) and name not in
             ("tokens_per_s", "date", "restarts", "checkpoints", "threads_per_rank", "precision_reason",
              "optimizer_bytes_per_parameter")}
            for row in read_csv(path)]


class Checkpoints(unittest.TestCase):
    def setUp(self):
        self.directory = support.scratch(self)
        (self.directory / "input.yaml").write_text("train: {steps: 1}\n")
        (self.directory / "corpus.txt").write_text("the king sang of a river and stones. " * 2000)

    def command(self, keys, output, ranks):
        keys = {**keys, "run.output": self.directory / output, "data.corpus": f"[{self.directory / 'corpus.txt'}]"}
        return support.ranks_of(ranks, PROGRAM, "train", str(self.directory / "input.yaml"), *support.overrides(keys))

    def train(self, keys, output, ranks=2, threads=1, expected=0):
        return support.run(self, self.command(keys, output, ranks), expected, timeout=LIMIT_S,
                           env={**ENVIRONMENT, "OMP_NUM_THREADS": str(threads)}).stdout

    def start(self, keys, output, ranks=2):
        return subprocess.Popen(self.command(keys, output, ranks), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True, env=ENVIRONMENT)

    def assert_same_results(self, output, undisturbed):
        for name in ("run.csv", "steps.csv"):
            self.assertEqual(without_times(self.directory / output / name),
                             without_times(self.directory / undisturbed / name), name)

    def look_at(self, action, path):
        return subprocess.run([PROGRAM, "checkpoint", action, str(path)], capture_output=True, text=True,
                              timeout=LIMIT_S, env=ENVIRONMENT)

    def test_transformer_goes_on_with_the_same_bits(self):
        for keys in (GPT, {**GPT, "model.architecture": "bert", "train.accumulation": 2}):
            name = keys["model.architecture"]
            self.train({**keys, "checkpoint.every": 7, "checkpoint.keep": 9}, name)
            for step in (7, 14, 21):
                checkpoint = self.directory / name / f"checkpoints/step_{step:08}.h5"
                self.train({**keys, "checkpoint.restart": checkpoint}, f"{name}{step}", threads=2)
                self.assert_same_results(f"{name}{step}", name)

    def test_a_precision_that_is_measured_stays_that_of_the_checkpoint(self):
        self.train({**GPT, "checkpoint.every": 7}, "given")
        checkpoint = self.directory / "given/checkpoints/step_00000021.h5"
        self.train({**GPT, "model.precision": "auto", "checkpoint.restart": checkpoint}, "measured")
        self.assert_same_results("measured", "given")
        row = read_csv(self.directory / "measured/run.csv")[0]
        self.assertEqual((row["precision"], row["precision_reason"]), ("fp32", "the checkpoint's run did"))

    def test_a_signal_writes_a_checkpoint_and_ends_with_75(self):
        keys = {**QUADRATIC, "train.steps": 100000, "run.progress_interval_s": 1e-3}
        for number in (signal.SIGUSR1, signal.SIGTERM):
            output = number.name
            run = self.start(keys, output)
            for line in run.stdout:
                if line.startswith("step "):
                    break
            # One rank alone: the others learn of it.
            os.kill(random.choice(ranks_of(run.pid)), number)
            out, _ = run.communicate(timeout=LIMIT_S)
            self.assertEqual(run.returncode, 75, out)
            self.assertIn("stopped by a signal after step ", out)
            self.assertNotRegex(out, "(?m)^(FOM|VALIDATION) ", "the run is not complete")
            checkpoints = list((self.directory / output / "checkpoints").iterdir())
            self.assertEqual(len(checkpoints), 1)
            self.assertIn(checkpoints[0].name, out)
            step = int(checkpoints[0].stem.split("_")[1])
            self.assertFalse((self.directory / output / "run.csv").exists())
            # A next start, with the same command, goes on where it was.
            steps = {**QUADRATIC, "train.steps": step + 20}
            self.train({**steps, "checkpoint.restart": "auto"}, output)
            self.train(steps, output + "_undisturbed")
            self.assert_same_results(output, output + "_undisturbed")
            row, = read_csv(self.directory / output / "run.csv")
            self.assertEqual((row["restarts"], row["checkpoints"]), ("1", "1"))

    def test_interrupted_from_the_keyboard(self):
        """Ctrl-C without mpirun: as SIGTERM; a second one ends the run at once."""
        slow = {"workload.kind": "synthetic", "workload.parameters": 100, "workload.compute_time_ms": 3000,
                "train.batch": 4, "run.progress_interval_s": 1e-3}
        for keys, times in ((QUADRATIC, 1), (slow, 2)):
            command = self.command({**keys, "train.steps": 1000000}, f"interrupted{times}", 1)
            run = subprocess.Popen(command[command.index(PROGRAM):], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   text=True, env=ENVIRONMENT,
                                   preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
            for line in run.stdout:
                if line.startswith("step "):
                    break
            run.send_signal(signal.SIGINT)
            for line in run.stdout:
                if "a second Ctrl-C ends the run at once" in line:
                    break
            else:
                self.fail("nothing was said")
            if times == 2:
                run.send_signal(signal.SIGINT)
            out, _ = run.communicate(timeout=LIMIT_S)
            self.assertEqual(run.returncode, 75 if times == 1 else -signal.SIGINT, out)
            self.assertEqual("stopped by a signal after step " in out, times == 1)
            saved = list((self.directory / f"interrupted{times}/checkpoints").glob("step_*.h5"))
            self.assertEqual(len(saved), 1 if times == 1 else 0)

    def test_stopped_in_a_validation(self):
        """The validation ends within a batch, and the next start makes up for it: also that of the last step."""
        for stop_at in (3, 6):
            keys = {**GPT, "train.steps": 6, "train.validate_every": 3 if stop_at == 3 else 0, "freeze.step": 2}
            output = f"stopped{stop_at}"
            run = self.start({**keys, "train.validation_batch": 10**6}, output)
            watchdog = self.directory / output / "watchdog.txt"
            deadline = time.monotonic() + LIMIT_S
            # The steps themselves take milliseconds.
            while f" step {stop_at} " not in (watchdog.read_text() if watchdog.exists() else ""):
                self.assertLess(time.monotonic(), deadline)
                self.assertIsNone(run.poll())
                time.sleep(0.1)
            sent = time.monotonic()
            os.kill(random.choice(ranks_of(run.pid)), signal.SIGTERM)
            out, _ = run.communicate(timeout=LIMIT_S)
            self.assertEqual(run.returncode, 75, out)
            self.assertLess(time.monotonic() - sent, 15, "a validation takes minutes")
            self.assertIn(f"stopped by a signal after step {stop_at}, before its validation", out)
            self.assertTrue((self.directory / output / f"checkpoints/step_{stop_at:08}.h5").exists())
            # The number of samples may change at a restart.
            self.train({**keys, "checkpoint.restart": "auto"}, output)
            self.train(keys, output + "_undisturbed")
            self.assert_same_results(output, output + "_undisturbed")

    def test_stopped_in_the_set_up(self):
        """There is nothing to save: the run ends with 75, and leaves nothing."""
        for name in ("train.tsv", "held_out.tsv"):
            (self.directory / name).write_text("a\tone\nb\ttwo\n" * 1500000)
        keys = {**GPT, "workload.kind": "classification", "data.labelled": self.directory / "train.tsv",
                "data.labelled_validation": self.directory / "held_out.tsv"}
        run = self.start(keys, "output")
        while not any(catches(rank, signal.SIGTERM) for rank in ranks_of(run.pid)):
            self.assertIsNone(run.poll())
            time.sleep(0.01)
        os.kill(next(rank for rank in ranks_of(run.pid) if catches(rank, signal.SIGTERM)), signal.SIGTERM)
        out, _ = run.communicate(timeout=LIMIT_S)
        self.assertEqual(run.returncode, 75, out)
        self.assertIn("stopped by a signal before the first step", out)
        self.assertFalse((self.directory / "output").exists())

    def test_killed_at_random_moments(self):
        keys = {**QUADRATIC, "checkpoint.every": 2, "checkpoint.restart": "auto"}
        begin = time.monotonic()
        self.train(keys, "undisturbed")
        whole_run_s = time.monotonic() - begin
        seed = random.randrange(2**32)
        moments = random.Random(seed)
        kills = runs = completed = 0
        newest = 0
        while kills < KILLS or completed == 0:
            output = f"killed{completed}"
            run = self.start(keys, output)
            killed = False
            if kills < KILLS:
                time.sleep(moments.uniform(0, whole_run_s))
                ranks = ranks_of(run.pid)
                if ranks:
                    os.kill(moments.choice(ranks), signal.SIGKILL)
                    killed = True
            try:
                out, _ = run.communicate(timeout=LIMIT_S / 4)
            except subprocess.TimeoutExpired:
                # Open MPI 4.1 sometimes waits for ever for a rank that is gone. No rank may do so.
                self.assertEqual(ranks_of(run.pid), [], f"seed {seed}: ranks are left")
                run.kill()
                out, _ = run.communicate()
            runs += 1
            context = f"seed {seed}, run {runs}: {out}"
            self.assertNotIn("damaged", out, context)
            if run.returncode == 0:
                self.assert_same_results(output, "undisturbed")
                completed += 1
                newest = 0
                continue
            self.assertTrue(killed, context)
            kills += 1
            # Never a lost checkpoint, nor a damaged one.
            checkpoints = sorted((self.directory / output / "checkpoints").glob("step_*.h5"))
            for checkpoint in checkpoints:
                seen = self.look_at("verify", checkpoint)
                self.assertEqual(seen.returncode, 0, context + seen.stderr)
            last = int(checkpoints[-1].stem.split("_")[1]) if checkpoints else 0
            self.assertGreaterEqual(last, newest, context)
            newest = last
        print(f"{kills} kills in {runs} runs, {completed} of which came to their end")

    def test_killed_while_a_checkpoint_is_written(self):
        keys = {**QUADRATIC, "quadratic.dimension": 500000, "train.steps": 24, "train.batch": 2,
                "train.validate_every": 0, "checkpoint.every": 4, "checkpoint.restart": "auto"}
        self.train(keys, "undisturbed")
        directory = self.directory / "killed/checkpoints"
        killed = 0
        for step in (8, 16):
            run = self.start(keys, "killed")
            partial = directory / f"step_{step:08}.h5.partial"
            while not partial.exists() and run.poll() is None:
                time.sleep(1e-3)
            for rank in ranks_of(run.pid):
                os.kill(rank, signal.SIGKILL)
            run.communicate(timeout=LIMIT_S)
            killed += partial.exists()
            newest = sorted(directory.glob("step_*.h5"))[-1]
            self.assertGreaterEqual(newest.name, f"step_{step - 4:08}.h5")
            for checkpoint in directory.glob("step_*.h5"):
                seen = self.look_at("verify", checkpoint)
                self.assertEqual(seen.returncode, 0, seen.stderr)
        self.assertGreater(killed, 0, "no kill came while a checkpoint was written")
        self.train(keys, "killed")
        self.assert_same_results("killed", "undisturbed")
        self.assertEqual(list(directory.glob("*.partial*")), [])

    def test_info_and_verify(self):
        self.train({**QUADRATIC, "checkpoint.every": 20}, "out")
        path = self.directory / "out/checkpoints/step_00000020.h5"
        seen = self.look_at("verify", path)
        self.assertEqual((seen.returncode, seen.stdout.count("\n")), (0, 1), seen.stderr)
        seen = self.look_at("info", path)
        self.assertEqual(seen.returncode, 0, seen.stderr)
        for text in ("step:       20 of 40", "ranks:      2", "onebit_adam", "worker_residual: (2, 20000)",
                     ", from step 1\n"):
            self.assertIn(text, seen.stdout)
        damaged = self.directory / "damaged.h5"
        whole = path.read_bytes()
        for content in (whole[:-1], whole[:300], b"", b"x" * 1000, whole[:5000] + b"!" + whole[5001:]):
            damaged.write_bytes(content)
            for action in ("info", "verify"):
                seen = self.look_at(action, damaged)
                self.assertEqual(seen.returncode, 2, seen.stderr)
                self.assertIn("remedy:", seen.stderr)
        for missing in (self.directory / "none.h5", self.directory):
            self.assertEqual(self.look_at("verify", missing).returncode, 2)


if __name__ == "__main__":
    skips.main(sys.argv[3:])
