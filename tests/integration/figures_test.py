#!/usr/bin/env python3
"""Figures of merit and verdicts of `onebit train` and `bench collective`: their lines, the CSV files that they come
from, their JSON, and exit statuses. Those of `bench kernels` and `layers` are in kernels_test.py, and those of
scripts/predict.py in predict_test.py.

Usage: figures_test.py PROGRAM MPIEXEC [unittest arguments]
"""

import json
import math
import pathlib
import socket
import statistics
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import skips
import support
from support import PROGRAM, read_csv

# The columns of run.csv that are figures, where they have another name, and the units.
UNITS = {"tokens_per_s": "1/s", "step_s": "s", "training_s": "s", "final_loss": "nats", "final_validation_loss": "nats",
         "final_validation_accuracy": "fraction", "steps_to_target": "steps", "time_to_target_s": "s",
         "bytes_to_target": "B", "frozen_at": "steps", "skipped_steps": "steps", "bytes_sent": "B",
         "reduction": "times", "reduction_vs_16bit": "times", "peak_memory_bytes": "B"}
COLUMNS = {"frozen_at": "variance_frozen_at_step"}
QUADRATIC = {"workload.kind": "quadratic", "train.steps": 20, "train.batch": 4, "freeze.step": 5}


def is_of(figure, cell):
    """Whether a number that a file has with 9 digits can have this figure, its 6 digits. The number may have been a
    little less or more than the file's, which decides where that one ends with 5."""
    return figure in {f"{float(cell) * near:.6g}" for near in (1 - 5e-9, 1, 1 + 5e-9)}


class Figures(unittest.TestCase):
    def setUp(self):
        self.directory = support.scratch(self)
        (self.directory / "input.yaml").write_text("run: {seed: 3}\n")

    def run_it(self, command, keys, ranks=1, expected=0, options=("--json", "out/figures.json")):
        """Runs a command into `out`; each rank's status must be the expected one. Returns the finished process."""
        # mpirun would end the other ranks at the first status that is not 0.
        script = 'rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}; "$@"; echo $? >status.$rank'
        onebit = [PROGRAM, *command, "input.yaml", *options,
                  *support.overrides({**keys, "run.output": "out"})]
        done = support.run(self, support.ranks_of(ranks, "sh", "-c", script, "sh", *onebit), cwd=self.directory)
        statuses = [(self.directory / f"status.{rank}").read_text().strip() for rank in range(ranks)]
        self.assertEqual(statuses, [str(expected)] * ranks, done.stdout + done.stderr)
        return done

    def figures(self, done, command, ranks):
        """The figures of standard output, which must be those of the JSON file; whether they passed, and the words."""
        figures, passed, words = support.figures(self, done.stdout)
        written = json.loads((self.directory / "out/figures.json").read_text())
        self.assertEqual((written["command"], written["ranks"]), (command, ranks))
        self.assertRegex(written["run"]["date"], r"^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.assertEqual((written["run"]["hosts"], written["run"]["host_names"]), (1, socket.gethostname()))
        self.assertGreater(written["run"]["wall_s"], 0)
        self.assertEqual(written["git"], support.version())
        self.assertIn(f" {written['version']} ", support.run(self, [PROGRAM, "--version"]).stdout)
        self.assertEqual(written["validation"], {"passed": passed, "text": words})
        self.assertEqual(list(written["figures_of_merit"]), list(figures))
        for name, figure in written["figures_of_merit"].items():
            value, unit = figures[name]
            number = figure["value"]
            self.assertTrue(not math.isfinite(float(value)) if number is None else f"{number:.6g}" == value, name)
            self.assertEqual(figure["unit"], unit)
        return figures, passed, words

    def check_run(self, figures):
        """They are those of run.csv, and all of them."""
        row, = read_csv(self.directory / "out/run.csv")
        for name, unit in UNITS.items():
            cell = row[COLUMNS.get(name, name)]
            if not cell:
                self.assertNotIn(name, figures)
                continue
            value, of_value = figures[name]
            self.assertTrue(is_of(value, cell), f"{name} is {value}, and {cell} in run.csv")
            self.assertEqual(of_value, unit)
        self.assertLessEqual(figures.keys(), UNITS.keys())
        self.assertEqual(list(self.directory.glob("out/*.partial")), [])
        return row

    def test_a_run(self):
        for ranks in (1, 2):
            done = self.run_it(["train"], {**QUADRATIC, "train.target_loss": 1e6, "train.loss_at_most": 1e6}, ranks)
            figures, passed, words = self.figures(done, "train", ranks)
            row = self.check_run(figures)
            self.assertTrue(passed)
            self.assertIn(f"final validation loss {row['final_validation_loss']} is at most", words)
            self.assertEqual("replicas of 2 ranks" in words, ranks == 2)
            self.assertEqual(figures["frozen_at"], ("5", "steps"))
            self.assertEqual(figures["steps_to_target"], ("20", "steps"))
            self.assertEqual("reduction" in figures, ranks == 2)
            steps = [float(step["step_s"]) for step in read_csv(self.directory / "out/steps.csv")]
            self.assertAlmostEqual(statistics.mean(steps[1:]) / float(row["step_s"]), 1, delta=1e-6)

    def test_a_run_says_what_was_run(self):
        (self.directory / "corpus.txt").write_text("a river and stones. " * 500)
        shape = {"architecture": "gpt", "layers": 1, "hidden": 16, "heads": 2, "feed_forward": 32, "positions": 16,
                 "sequence": 16}
        self.run_it(["train"], {**{f"model.{name}": value for name, value in shape.items()}, "train.steps": 2,
                                "train.batch": 2, "train.validation_batch": 2, "freeze.step": 1, "optimizer.lr": 0.01,
                                "data.corpus": "[corpus.txt]"})
        row, = read_csv(self.directory / "out/run.csv")
        noted = json.loads((self.directory / "out/figures.json").read_text())["run"]
        for name, value in {**shape, "vocabulary": 257, "learning_rate": 0.01}.items():
            self.assertEqual((row[name], noted[name]), (str(value), value), name)
        for name in ("hosts", "host_names", "threads_per_rank", "backend", "machine"):
            self.assertEqual(row[name], str(noted[name]), name)
        self.assertLess(float(row["training_s"]), float(row["wall_s"]))
        self.assertLessEqual(row["date"][:4], noted["date"][:4])

    def test_skipped_steps_do_not_count(self):
        beyond = {"workload.kind": "quadratic", "train.batch": 4, "optimizer.algorithm": "sgd", "optimizer.lr": 3e38,
                  "optimizer.on_nonfinite": "skip", "train.steps": 9, "train.validate_every": 0}
        done = self.run_it(["train"], beyond, 2, expected=1)
        figures, passed, words = self.figures(done, "train", 2)
        self.assertFalse(passed)
        self.assertIn("8 of 9 steps were skipped", words)
        self.assertEqual(figures["tokens_per_s"][0], "0", "the first step, which was taken, is not timed")
        self.assertEqual(figures["skipped_steps"], ("8", "steps"))
        self.assertIn("0 of 1 steps were compressed, and 8 more were skipped", done.stdout)
        row, = read_csv(self.directory / "out/run.csv")
        self.assertEqual(float(row["bytes_dense_fp32"]), 4 * 1000, "of one step")
        self.assertEqual({row["steps"] for row in read_csv(self.directory / "out/profile.csv")}, {"1"})

    def test_a_loss_that_rises_fails(self):
        rising = {"workload.kind": "quadratic", "train.batch": 4, "optimizer.algorithm": "sgd", "train.steps": 30,
                  "train.validate_every": 0}
        # x doubles in each step, and far from the numbers' end.
        _, passed, words = self.figures(self.run_it(["train"], {**rising, "optimizer.lr": 3}, expected=1), "train", 1)
        self.assertFalse(passed)
        self.assertRegex(words, r"^the loss rose from \S+ in the first step to \S+, the median of the last ones$")
        row, = read_csv(self.directory / "out/run.csv")
        losses = [float(step["loss"]) for step in read_csv(self.directory / "out/steps.csv")]
        self.assertAlmostEqual(float(row["first_loss"]) / losses[0], 1, delta=1e-6)
        self.assertAlmostEqual(float(row["end_loss"]) / statistics.median(losses[-10:]), 1, delta=1e-6)
        self.run_it(["train"], {**rising, "optimizer.lr": 0.1})
        # A trial of a few steps may rise, but not without any bound.
        self.run_it(["train"], {**rising, "optimizer.lr": 3, "train.steps": 5})
        self.run_it(["train"], {**rising, "optimizer.algorithm": "adam", "optimizer.lr": 1e20, "train.steps": 5},
                    expected=1)

    def test_a_run_without_target_and_validation_loss(self):
        done = self.run_it(["train"], {"workload.kind": "synthetic", "workload.parameters": 100, "train.steps": 3,
                                       "train.batch": 4, "optimizer.algorithm": "adam", "run.check_replicas_every": 0},
                           ranks=2)
        figures, passed, words = self.figures(done, "train", 2)
        self.check_run(figures)
        self.assertEqual((passed, words), (True, "final loss 0 is finite"))
        for name in ("final_validation_loss", "steps_to_target", "frozen_at"):
            self.assertNotIn(name, figures)

    def test_a_loss_above_its_bound_fails_with_complete_files(self):
        for ranks in (1, 2):
            done = self.run_it(["train"], {**QUADRATIC, "train.loss_at_most": 1e-6}, ranks, expected=1)
            figures, passed, words = self.figures(done, "train", ranks)
            row = self.check_run(figures)
            self.assertEqual((passed, words), (False, f"final validation loss {row['final_validation_loss']} is above "
                                                      "train.loss_at_most 1e-06"))
            self.assertIn(f"error: validation: {words}\n  remedy: ", done.stderr)
            self.assertEqual(len(read_csv(self.directory / "out/steps.csv")), 20)
            self.assertGreater(len(read_csv(self.directory / "out/profile.csv")), 20)
            self.assertFalse((self.directory / "out/watchdog.txt").exists())

    def test_losses_that_are_not_finite_fail(self):
        # After an update of the first step that no float can hold, in the last step and in its validation.
        beyond = {"workload.kind": "quadratic", "train.batch": 4, "optimizer.algorithm": "sgd", "optimizer.lr": 3e38}
        done = self.run_it(["train"], {**beyond, "train.steps": 2, "optimizer.on_nonfinite": "skip"}, 2, expected=1)
        figures, passed, words = self.figures(done, "train", 2)
        self.assertEqual((passed, words), (False, "the final loss is not finite, 1 of 2 steps were skipped, because "
                                                  "gradients were not finite, the final validation loss is not "
                                                  "finite"))
        self.assertFalse(math.isfinite(float(figures["final_loss"][0])))
        self.assertEqual(len(read_csv(self.directory / "out/steps.csv")), 2)
        # In the validation alone.
        done = self.run_it(["train"], {**beyond, "train.steps": 1}, expected=1)
        figures, passed, words = self.figures(done, "train", 1)
        self.assertEqual((passed, words), (False, "the final validation loss is not finite"))
        self.assertTrue(math.isfinite(float(figures["final_loss"][0])))
        # A run that ends there.
        done = self.run_it(["train"], {**QUADRATIC, "faults.kind": "nan", "faults.step": 3}, ranks=2, expected=1)
        figures, passed, words = self.figures(done, "train", 2)
        self.assertEqual((figures, passed), ({}, False))
        self.assertRegex(words, "^rank 1, step 3: .* is not finite$")
        self.assertIn(f"error: {words}", done.stderr)

    def test_replicas_that_differ_fail(self):
        done = self.run_it(["train"], {**QUADRATIC, "faults.kind": "desync", "faults.step": 3}, ranks=2, expected=1)
        figures, passed, words = self.figures(done, "train", 2)
        self.assertEqual((figures, passed), ({}, False))
        self.assertIn("differ from rank 0's", words)

    def test_a_json_file_that_cannot_be_written_is_refused_before_the_run(self):
        (self.directory / "file").write_text("")
        done = self.run_it(["train"], QUADRATIC, ranks=2, expected=2, options=["--json", "file/figures.json"])
        self.assertIn("--json: file 'file/figures.json' cannot be written: Not a directory\n  remedy: ", done.stderr)
        self.assertFalse((self.directory / "out").exists())

    def test_a_bound_on_no_loss_is_refused(self):
        done = self.run_it(["train"], {"workload.kind": "synthetic", "train.loss_at_most": 1}, expected=2)
        self.assertIn("workload synthetic has no validation loss", done.stderr)

    def test_averages(self):
        collectives, sizes, repetitions = ["mpi_allreduce", "pairwise_compressed"], (100, 1000), 5
        keys = {"bench.smallest": sizes[0], "bench.largest": sizes[1], "bench.factor": 10, "bench.warmup": 1,
                "bench.repetitions": repetitions, "bench.collectives": f"[{', '.join(collectives)}]"}
        for ranks in (1, 2):
            done = self.run_it(["bench", "collective"], keys, ranks)
            figures, passed, words = self.figures(done, "bench collective", ranks)
            checked = ranks * len(collectives) * sum(sizes)
            self.assertEqual((passed, words), (True, f"{checked} elements of averages equal their oracle"))
            rows = read_csv(self.directory / "out/collective.csv")
            for row in rows:
                if row["parameters"] == "1000":
                    for column, unit in (("p50_s", "s"), ("algbw_B_per_s", "B/s"), ("busbw_B_per_s", "B/s")):
                        value, of_value = figures.pop(f"{row['collective']}_{column}")
                        self.assertTrue(is_of(value, row[column]), f"{column}: {value}, and in the file {row[column]}")
                        self.assertEqual(of_value, unit)
            self.assertEqual(figures, {"parameters": ("1000", "elements"), "checked": (str(checked), "elements"),
                                       "wrong": ("0", "elements")})
            self.check_repetitions(rows, ranks, repetitions)

    def check_repetitions(self, rows, ranks, repetitions):
        """repetitions.csv and collective.csv agree."""
        calls = read_csv(self.directory / "out/repetitions.csv")
        self.assertEqual(len(calls), len(rows) * repetitions)
        for row in rows:
            of_row = [call for call in calls if (call["collective"], call["parameters"]) ==
                      (row["collective"], row["parameters"])]
            self.assertEqual([int(call["repetition"]) for call in of_row], list(range(1, repetitions + 1)))
            slowest, mean, least = ([float(call[name]) for call in of_row]
                                    for name in ("slowest_s", "mean_s", "least_s"))
            for number, call in enumerate(of_row):
                self.assertEqual((call["logical_bytes"], call["ranks"]), (row["logical_bytes"], str(ranks)))
                self.assertIn(int(call["slowest_rank"]), range(ranks))
                self.assertTrue(least[number] <= mean[number] * (1 + 1e-8) <= slowest[number] * (1 + 2e-8), call)
            for column, value in (("min_s", min(slowest)), ("p50_s", statistics.median(slowest)),
                                  ("mean_s", statistics.mean(slowest)), ("max_s", max(slowest)),
                                  ("avg_latency_s", statistics.mean(mean))):
                self.assertAlmostEqual(float(row[column]) / value, 1, delta=1e-7, msg=column)
            latencies = [float(row[f"{name}_latency_s"]) for name in ("min", "avg", "max")]
            self.assertEqual(latencies, sorted(latencies))
            if ranks == 1:
                self.assertEqual(latencies, [float(row["mean_s"])] * 3)


if __name__ == "__main__":
    skips.main(sys.argv[3:])
