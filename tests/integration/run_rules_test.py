#!/usr/bin/env python3
"""scripts/run_rules.py passes a package that keeps the rules, and names each rule that one breaks.

scripts/experiments/rules.py, which makes the references, does not repeat a run that is whole.

Usage: run_rules_test.py PROGRAM MPIEXEC [unittest arguments]

The packages have the files of runs, with numbers of the test's; the program resolves their inputs.
"""

import csv
import pathlib
import re
import statistics
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import skips
import support

sys.path[:0] = [str(support.ROOT / "scripts"), str(support.ROOT / "scripts/experiments")]
import rules
import run_rules

from lib import provenance
from lib.launch import overrides
from lib.tables import number, read_csv

LOSSES = (1.662, 1.671, 1.655, 1.680, 1.668)
TIMES = (20, 30, 25, 90, 26)
ROW = {"git": "0123abc", "machine": "some", "ranks": 4, "threads_per_rank": 1, "mpi": "some", "blas": "some",
       "kokkos": "3.4.1", "restarts": 0, "tokens_per_s": 1000, "steps_to_target": 400}


class Package(unittest.TestCase):
    resolved = {}  # {settings: the text of the input with them}

    size = "smoke"

    def setUp(self):
        self.folder = support.scratch(self)

    def resolve(self, settings):
        key = (self.size, *overrides(settings))
        if key not in self.resolved:
            done = support.run(self, [support.PROGRAM, "validate", f"inputs/rules/{self.size}.yaml", *key[1:]],
                               cwd=support.ROOT)
            self.resolved[key] = done.stdout
        return self.resolved[key]

    def write(self, run, settings=None, seed=None, name="run{run}", **changed):
        """Writes the files of the run with this number, 0 to 4."""
        path = self.folder / name.format(run=run)
        path.mkdir(exist_ok=True)
        text, count = re.subn(r"\n  seed: 1\b.*", f"\n  seed: {seed or run + 1}", self.resolve(settings or {}))
        self.assertEqual(count, 1)
        (path / "input.resolved.yaml").write_text(text)
        row = {**ROW, "final_validation_loss": LOSSES[run], "time_to_target_s": TIMES[run], **changed}
        with open(path / "run.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, row)
            writer.writeheader()
            writer.writerow(row)

    def judge(self, status, *options):
        """The output of run_rules.py, which ends with this status."""
        done = support.run(self, [support.ROOT / "scripts/run_rules.py", self.folder, "--onebit", support.PROGRAM,
                                  *options], status)
        return done.stdout + done.stderr

    def test_a_package_that_keeps_the_rules(self):
        for run in range(5):
            self.write(run, {"comm.exchange": "pairwise", "model.precision": "bf16"})
        text = self.judge(0)
        self.assertIn("FOM time_to_target_s 27 s\n", text, "the mean of 25, 26 and 30")
        self.assertRegex(text, r"\nVALIDATION PASSED size smoke, division closed: mean final loss 1\.6672, .*\n$")

    def test_rules_that_one_run_breaks(self):
        for words, settings, changed in (
                ("optimizer.lr is 0.005, and 0.004 in the input", {"optimizer.lr": 5e-3}, {}),
                ("train.batch is 64, and 32", {"train.batch": 64}, {}),
                ("1.8, more than 1.75", {}, {"final_validation_loss": 1.8}),
                ("nan, more than 1.75", {}, {"final_validation_loss": "nan"}),
                ("no validation found a loss of at most 1.75", {}, {"time_to_target_s": ""}),
                ("one rank", {}, {"ranks": 1}), ("restarted 2 times", {}, {"restarts": 2}),
                ("'0123abc-dirty'", {}, {"git": "0123abc-dirty"})):
            with self.subTest(words):
                for run in range(5):
                    self.write(run, settings if run == 3 else {}, **(changed if run == 3 else {}))
                text = self.judge(1)
                self.assertIn(words, text)
                self.assertIn("\nrun3: ", text)
                self.assertRegex(text, r"\nVALIDATION FAILED 1 rules of size smoke, division closed\n$")
                self.assertNotIn("FOM", text)

    def test_another_text_breaks_the_rules(self):
        self.assertIn(run_rules.TEXT, (support.ROOT / "docs/guide/run_rules.md").read_text())
        text = self.folder / "other.txt"
        text.write_text("In the beginning\n" * 999)
        for run in range(5):
            self.write(run, {"data.corpus": f"[{text}]"} if run == 3 else {})
        self.assertRegex(self.judge(1), r"\nrun3: data\.corpus \[.*other\.txt\] has SHA-256 \w{64}, and the rules' ")
        text.unlink()
        self.assertRegex(self.judge(1), r"\nthe runs differ in data\.corpus\n")
        for run in range(5):
            self.write(run, {"data.corpus": f"[{text}]"})
        self.assertRegex(self.judge(0), r"\nVALIDATION PASSED .*; the text was not checked: .*other\.txt is not here\n")

    def test_rules_about_all_runs(self):
        for run in range(4):
            self.write(run)
        self.assertIn("4 runs are here, and 5 are asked", self.judge(1))
        for words, settings, changed in (("the same run.seed", {}, {"seed": 1}),
                                         ("differ in machine: other, some", {}, {"machine": "other"}),
                                         ("differ in comm.exchange", {"comm.exchange": "pairwise"}, {})):
            with self.subTest(words):
                self.write(4, settings, **changed)
                self.assertIn(words, self.judge(1))
        self.write(4)
        self.judge(0)
        (self.folder / "run4/input.resolved.yaml").rename(self.folder / "run4/input.resolved.yaml.partial")
        self.assertIn("run4: is not complete", self.judge(1))
        (self.folder / "run4/input.resolved.yaml.partial").unlink()
        self.assertIn("run4: data.corpus None has SHA-256", self.judge(1))

    def test_losses_that_are_worse_than_the_reference(self):
        for self.size, loss, words in (("smoke", 1.72, r"1\.7220, reference 1\.6\d+ of 17"),
                                       ("node", 3.08, r"3\.0820, reference 3\.0\d+ of 5")):
            for run in range(5):
                self.write(run, final_validation_loss=loss + 0.001 * run)
            self.assertRegex(self.judge(1, "--size", self.size), f"mean final loss {words} runs, p = ")

    def test_an_open_division_may_have_another_optimiser(self):
        for run in range(5):
            self.write(run, {"optimizer.algorithm": "onebit_muon", "optimizer.lr": 1e-2, "train.steps": 300})
        self.assertIn("run0: optimizer.algorithm is onebit_muon", self.judge(1))
        self.assertIn("VALIDATION PASSED size smoke, division open", self.judge(0, "--division", "open"))
        self.write(0, {"model.layers": 2})
        self.assertIn("run0: model.layers is 2", self.judge(1, "--division", "open"))

    def test_a_reference_takes_the_runs_that_are_whole(self):
        version, self.size = provenance.program_version(support.PROGRAM), "node"
        for run, (ranks, precision, seed) in enumerate(rules.RUNS["node"]):
            self.write(run, {"model.precision": precision}, seed, f"{ranks}_{precision}_{seed}", git=version,
                       reduction=5.7)
        output = self.folder / "node.csv"
        support.run(self, [support.ROOT / "scripts/experiments/rules.py", "node", "--onebit", support.PROGRAM, "--runs",
                           self.folder, "--output", output], timeout=60)
        rows = read_csv(output)
        self.assertEqual([row["seed"] for row in rows], ["1", "2", "3", "4", "5"])
        self.assertEqual(tuple(float(row["final_validation_loss"]) for row in rows), LOSSES)
        self.assertEqual({(row["git"], row["machine"]) for row in rows}, {(version, "some")})

        run = self.folder / "2_bf16_3"
        keys = run_rules.wanted(support.PROGRAM, "node", ["run.seed=3", "model.precision=bf16"])
        self.assertIsNotNone(rules.whole(run, version, keys))
        self.assertIsNone(rules.whole(run, "another", keys))
        self.assertIsNone(rules.whole(run, version, {**keys, "train.steps": "2"}))
        (run / "input.resolved.yaml").rename(run / "input.resolved.yaml.partial")
        self.assertIsNone(rules.whole(run, version, keys))
        self.assertIsNone(rules.whole(self.folder / "none", version, keys))

    def test_a_folder_without_runs(self):
        self.assertIn("no folder with the files of a run", self.judge(2))

    def test_chance(self):
        """Against tables of Student's t: with equal sides of 3 values, t = 2.132 at 5 % for 4 degrees of freedom."""
        values = [-1.0, 0.0, 1.0]
        difference = 2.132 * (2 / 3) ** 0.5
        self.assertAlmostEqual(run_rules.chance_of_a_greater([v + difference for v in values], values), 0.05, places=4)
        self.assertAlmostEqual(run_rules.chance_of_a_greater([v - difference for v in values], values), 0.95, places=4)
        self.assertEqual(run_rules.chance_of_a_greater([1.0, 1.0], [1.0, 1.0]), 1)
        reference = [number(row["final_validation_loss"]) for row in read_csv(run_rules.REFERENCES["smoke"])]
        self.assertGreater(run_rules.chance_of_a_greater(LOSSES, reference), 0.05)
        self.assertLess(statistics.mean(reference), 1.7)


if __name__ == "__main__":
    skips.main(sys.argv[3:])
