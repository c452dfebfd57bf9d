#!/usr/bin/env python3
"""Every CSV file under docs/results is made by one part of scripts/experiments/all.py, or is named as made by hand.

Usage: all_test.py PROGRAM MPIEXEC [unittest arguments]
"""

import argparse
import collections
import functools
import importlib.util
import pathlib
import re
import subprocess
import sys
import threading
import time
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import skips
import support
from support import PROGRAM, ROOT

sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "scripts/experiments")]
import losses_check
import parts

import study_runs
from lib import provenance, tables

RESULTS = ROOT / "docs/results"
ALL = ROOT / "scripts/experiments/all.py"


def module():
    """all.py, whose name is a builtin's."""
    spec = importlib.util.spec_from_file_location("all_parts", ALL)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def part(commands, files=("some.csv",), needs=(), keeps_machines=False):
    return parts.Part("some", "speed", 1, needs, list(files), commands, keeps_machines)


class Parts(unittest.TestCase):
    def test_every_file_is_made_once(self):
        made = collections.Counter([*(name for some in parts.PARTS for name in some.files), *parts.BY_HAND])
        there = {str(path.relative_to(RESULTS)) for path in RESULTS.rglob("*.csv")}
        self.assertEqual({name: count for name, count in made.items() if count > 1}, {})
        self.assertEqual(there - made.keys(), set(), "no part makes these; remedy: scripts/experiments/parts.py")
        self.assertEqual(made.keys() - there, set(), "parts name these, and docs/results has none")

    def test_list_has_every_part_and_file(self):
        listed = support.run(self, [ALL, "--list"]).stdout
        for some in parts.PARTS:
            for word in (some.name, *some.files, *some.needs):
                self.assertIn(word, listed)

    def test_names_are_distinct(self):
        names = [some.name for some in parts.PARTS]
        self.assertEqual(len(set(names) | {some.group for some in parts.PARTS}), len(names) + 3)

    def test_commands_exist_with_their_options(self):
        @functools.cache
        def help_of(*command):
            said = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=60)
            self.assertEqual(said.returncode, 0, said.stderr)
            return said.stdout

        for command in {command for some in parts.PARTS for command in some.commands}:
            script, *words = command.split()
            if script == "mpirun":
                continue
            with self.subTest(command):
                first = [word for word in words[:1] if re.fullmatch(r"[a-z]+", word)]  # a command of the script
                said = help_of(ROOT / script, *first)
                for option in (word for word in words if word.startswith("--")):
                    self.assertIn(option, said)
                for name in (word for word in words if word.startswith("inputs/")):
                    self.assertTrue((ROOT / name).is_file(), name)

    def test_idle_machine_comes_first(self):
        idle = ["idle" in some.needs for some in module().in_order(parts.PARTS)]
        self.assertEqual(idle, sorted(idle, reverse=True))


class Runs(unittest.TestCase):
    def setUp(self):
        self.all, self.directory = module(), support.scratch(self)
        self.arguments = argparse.Namespace(results=self.directory / "results", runs=self.directory / "runs",
                                            onebit=PROGRAM, python=None, minutes=10)

    def write(self, git, machine=None, name="some.csv"):
        tables.write_csv(self.arguments.results / name, [{"git": git, "machine": machine or provenance.machine()}])

    def outcome(self, some, version="new"):
        return self.all.make([some], self.arguments, version)[0][1]

    def commits(self):
        return [row["git"] for row in tables.read_csv(self.arguments.results / "some.csv")]

    def test_a_part_runs_until_its_files_are_of_the_commit(self):
        self.write("old")
        (self.directory / "new.csv").write_text(f'git,machine\nnew,"{provenance.machine()}"\n')
        some = part([f"cp {self.directory}/new.csv {{results}}/some.csv"])
        self.assertEqual([self.outcome(some), self.commits(), self.outcome(some)], ["done", ["new"], "done before"])
        self.assertEqual(self.outcome(some, "newer"), "done")

    def test_a_part_that_fails_leaves_its_files(self):
        self.write("old")
        some = part(["rm {results}/some.csv", "false"])
        self.assertEqual([self.outcome(some), self.commits()], ["failed", ["old"]])

    def test_a_part_that_was_killed_runs_again(self):
        self.write("old", name="../runs/earlier/some/some.csv")
        self.write("new")  # half a file, which names the commit
        self.assertEqual([self.outcome(part(["false"])), self.commits()], ["failed", ["old"]])

    def test_what_is_lacking_and_what_has_no_time(self):
        self.assertRegex(self.outcome(part(["true"], needs=["python"])), "needs a Python with PyTorch; remedy: ")
        self.arguments.minutes = 0.5
        self.assertEqual(self.outcome(part(["true"])), "left out: no time")

    def test_rows_of_other_machines_count_where_they_are_not_kept(self):
        self.write("old", "another machine")
        for keeps, done in ((False, False), (True, False)):
            self.assertEqual(self.all.is_done(part([], keeps_machines=keeps), self.arguments.results, "new"), done)
        rows = [{"git": "new", "machine": provenance.machine()}, {"git": "old", "machine": "another"}]
        tables.write_csv(self.arguments.results / "some.csv", rows)
        for keeps in (False, True):
            self.assertEqual(self.all.is_done(part([], keeps_machines=keeps), self.arguments.results, "new"), keeps)

    def test_another_program_is_refused(self):
        program = self.directory / "onebit"
        program.write_text("#!/bin/sh\necho 'onebit 0.1.0 (0123abc)'\n")
        program.chmod(0o755)
        said = subprocess.run([ALL, "--onebit", program, "--only", "crossover"], capture_output=True, text=True,
                              timeout=60)
        self.assertEqual(said.returncode, 1)
        self.assertRegex(said.stderr, "all: (changed sources|the program is of 0123abc and not of HEAD).*remedy")

    def test_a_trial(self):
        said = support.run(self, [ALL, "--onebit", PROGRAM, "--trial", self.directory, "--only", "crossover"]).stdout
        self.assertRegex(said, "crossover  done")
        self.assertEqual(len(tables.read_csv(self.directory / "crossover.csv")),
                         len(tables.read_csv(RESULTS / "crossover.csv")))


class Cores(unittest.TestCase):
    def test_a_small_run_does_not_pass_a_large_one(self):
        cores, order = study_runs.Cores(2), []

        def run(name, ranks):
            with cores.of(ranks):
                order.append(name)

        threads = [threading.Thread(target=run, args=names) for names in (("large", 4), ("small", 1))]
        with cores.of(1):
            threads[0].start()
            while not cores._turn.locked():  # until the large one waits
                time.sleep(0.001)
            threads[1].start()
            time.sleep(0.05)
            self.assertEqual(order, [])
        for thread in threads:
            thread.join()
        self.assertEqual(order, ["large", "small"])

    def test_small_runs_share_the_cores(self):
        cores = study_runs.Cores(2)
        with cores.of(1), cores.of(1):
            self.assertEqual(cores._free, 0)
        with cores.of(8):
            self.assertEqual(cores._free, 0)
        self.assertEqual(cores._free, 2)


class Losses(unittest.TestCase):
    ROW = dict.fromkeys(("final_validation_loss", "bytes_sent", "data", "git", *losses_check.SAME), "1")

    def test_a_difference_counts_on_a_machine_that_promises_the_same_bits(self):
        other = {**self.ROW, "final_validation_loss": "1.0001"}
        self.assertEqual(losses_check.verdict(self.ROW, self.ROW), ("1, the same", True))
        self.assertEqual(losses_check.verdict(self.ROW, other), ("1, and 1.0001 of 1: DIFFERENT", False))
        for name in ("data", *losses_check.SAME):
            self.assertTrue(losses_check.verdict(self.ROW, {**other, name: "2"})[1])

    def test_the_shortest_run_with_what_it_needs(self):
        study = mock.Mock()
        study.name = "study"
        cells = {}
        for name, needs in (("start", []), ("long", []), ("short", [("study", "start", 1)])):
            cells["study", name, 1] = cell = mock.Mock(study=study, needs=needs, seed=1)
            cell.name = name
        study.cells = list(cells.values())[1:]
        rows = {("study", name, 1): {"wall_s": seconds, "machine": "another"}
                for name, seconds in (("start", "5"), ("long", "20"), ("short", "1"))}
        sample = losses_check.sample_of(study, cells, rows)
        self.assertEqual([cell.name for cell in sample], ["start", "short"])
        rows["study", "long", 1]["machine"] = provenance.machine()
        self.assertEqual([cell.name for cell in losses_check.sample_of(study, cells, rows)], ["long"])


if __name__ == "__main__":
    skips.main(sys.argv[3:])
