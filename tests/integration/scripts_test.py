#!/usr/bin/env python3
"""What scripts/ shares: how many processors a build takes, and where results come from.

Usage: scripts_test.py SOURCE_DIRECTORY PROGRAM [unittest arguments]
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

ROOT, PROGRAM = (pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]) if len(sys.argv) > 2 else (pathlib.Path(), "")
sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1]), str(ROOT / "scripts")]
import skips
from lib import provenance, tables


class Scripts(unittest.TestCase):
    def test_processors_do_not_depend_on_threads(self):
        # nproc believes OMP_NUM_THREADS and OMP_THREAD_LIMIT, which a user sets for the program, not for a build.
        found = [(path, command) for path in sorted((ROOT / "scripts").rglob("*.sh"))
                 for command in re.findall(r"\$\(([^()]*\bnproc\b[^()]*)\)", path.read_text())]
        self.assertGreaterEqual(len(found), 3)
        cores = len(os.sched_getaffinity(0))
        for path, command in found:
            for setting in ({"OMP_NUM_THREADS": str(cores + 1)}, {"OMP_THREAD_LIMIT": "1", "OMP_NUM_THREADS": "1"}):
                said = subprocess.run(["bash", "-c", command], env={**os.environ, **setting}, capture_output=True,
                                      text=True)
                self.assertEqual(said.stdout.strip(), str(cores), f"{path}: {command} with {setting}")

    def test_machine_in_words(self):
        with mock.patch.dict(os.environ, {"ONEBIT_MACHINE": "a machine"}):
            self.assertEqual(provenance.machine(), "a machine")
        with mock.patch.dict(os.environ):
            os.environ.pop("ONEBIT_MACHINE", None)
            self.assertRegex(provenance.machine(), r"\S.*, \d+ cores, \S")

    def test_results_are_of_committed_sources(self):
        kept = ROOT / "docs/results/a_page/steps.csv"
        self.assertEqual(provenance.check_version("0123abc", kept), "0123abc")
        for version in ("0123abc-dirty", ""):
            self.assertEqual(provenance.check_version(version, "/tmp/steps.csv"), version)
            with self.assertRaises(SystemExit) as refusal:
                provenance.check_version(version, kept)
            self.assertIn("remedy: commit", str(refusal.exception))
        # What measures refuses before it measures.
        with tempfile.TemporaryDirectory() as directory:
            program = pathlib.Path(directory) / "onebit"
            program.write_text("#!/bin/sh\necho 'onebit 0.1.0 (0123abc-dirty)'\n")
            program.chmod(0o755)
            for command in ("measure", "threads", "checkpoints"):
                run = subprocess.run([sys.executable, ROOT / "scripts/experiments/performance.py", command, "--onebit",
                                      program], capture_output=True, text=True, timeout=30)
                self.assertEqual(run.returncode, 1)
                self.assertIn("the program is of changed sources (0123abc-dirty)", run.stderr)
        self.assertNotIn(" ", provenance.program_version(PROGRAM, "/tmp/steps.csv"))

    def test_a_program_that_is_not_there_is_named(self):
        with tempfile.TemporaryDirectory() as directory:
            (pathlib.Path(directory) / "run").mkdir()
            (pathlib.Path(directory) / "run/run.csv").write_text("seed\n1\n")
            for program, what, command in (
                    ("nowhere/onebit", "No such file or directory\n  remedy: build the program",
                     ["run_rules.py", directory]),
                    ("nowhere/onebit", "No such file or directory\n  remedy: build the program",
                     ["experiments/rules.py", "smoke", "--runs", directory]),
                    ("/bin/true", "/bin/true is not OneBit's program", ["run_rules.py", directory]),
                    ("/bin/true", "/bin/true is not OneBit's program", ["experiments/performance.py", "measure"])):
                with self.subTest(f"{command[0]} {program}"):
                    run = subprocess.run([sys.executable, ROOT / "scripts" / command[0], *command[1:], "--onebit",
                                          program], capture_output=True, text=True, timeout=30)
                    self.assertEqual(run.returncode, 1)
                    self.assertIn(what, run.stderr)

    def test_what_is_not_there_is_named_with_its_package(self):
        with tempfile.TemporaryDirectory() as directory:
            (pathlib.Path(directory) / "yaml.py").write_text("raise ImportError('no yaml here')\n")
            run = subprocess.run([sys.executable, ROOT / "scripts/onebit-sweep", "--help"], capture_output=True,
                                 text=True, timeout=30, env={**os.environ, "PYTHONPATH": directory})
        self.assertEqual(run.returncode, 1)
        self.assertIn("onebit-sweep: no yaml here. Install PyYAML (Debian: python3-yaml)", run.stderr)

    def test_every_program_has_its_help(self):
        programs = [path for path in (ROOT / "scripts").rglob("*") if path.is_file() and os.access(path, os.X_OK)
                    and path.read_text().startswith("#!/usr/bin/env python3")]
        self.assertGreater(len(programs), 10)
        for path in programs:
            if path.name in ("step_time.py", "optimizer_time.py", "peers_rank.py"):
                continue  # they need PyTorch
            with self.subTest(path.name):
                run = subprocess.run([path, "--help"], capture_output=True, text=True, timeout=30)
                self.assertEqual(run.returncode, 0, run.stderr)
                self.assertIn("usage: ", run.stdout)


    def test_paths_are_not_a_shells(self):
        with tempfile.TemporaryDirectory() as directory:
            for command in (["report.py", ".", "--output=~/page.html"],
                            ["compare_backends.py", "a", "b", "--output=~/page.md"],
                            ["onebit-sweep", "status", "x.yaml", "--results=$SCRATCH/sweep"]):
                run = subprocess.run([ROOT / "scripts" / command[0], *command[1:]], capture_output=True, text=True,
                                     timeout=30, cwd=directory)
                self.assertEqual(run.returncode, 2)
                self.assertIn("write the whole path", run.stderr)
                self.assertEqual(os.listdir(directory), [])


class Tables(unittest.TestCase):
    def test_files_that_a_spreadsheet_saved(self):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "some.csv"
            rows = [{"a": "x, \"y\"", "b": "=1"}, {"a": "µ", "b": " z "}]
            tables.write_csv(path, rows)
            plain = path.read_bytes()
            for content in (plain, b"\xef\xbb\xbf" + plain, plain.replace(b"\n", b"\r\n"), plain.replace(b"\n", b"\r")):
                path.write_bytes(content)
                self.assertEqual(tables.read_csv(path), rows)
                self.assertEqual(tables.read_rows(path), (rows, ""))
            for content, problem in ((b"a;b\n1;2\n", "semicolons"), (b"\xef\xbb\xbfa\tb\n1\t2\n", "tabs"),
                                     ("a,b\n1,2\n".encode("utf-16"), "not CSV in UTF-8")):
                path.write_bytes(content)
                self.assertIn(problem, tables.read_rows(path)[1])
                with self.assertRaises(ValueError):
                    tables.read_csv(path)

    def test_range(self):
        self.assertEqual(tables.with_range([3, 1, 2]), "2 (1 – 3)")
        self.assertEqual(tables.with_range([2.5]), "2.5")
        self.assertEqual(tables.with_range([2.00001, 2.00002]), "2")

    def test_bytes(self):
        self.assertEqual([tables.with_unit(count) for count in (0, 999, 1.2345e6, float("nan"))],
                         ["0 B", "999 B", "1.23 MB", ""])
        self.assertEqual(tables.with_unit(797122800, ".1f"), "797.1 MB")

    def test_plain_text(self):
        self.assertEqual(tables.aligned(["name", "s"], [["a", 1.5], ["longer", 10]], left=1),
                         "name      s\na       1.5\nlonger   10")

    def test_a_file_is_whole_or_as_it_was(self):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "some.csv"
            tables.write_csv(path, [{"a": 1}])
            with self.assertRaises(ValueError):
                tables.write_csv(path, [{"a": 1}, {"b": 2}])
            self.assertEqual(tables.read_csv(path), [{"a": "1"}])


if __name__ == "__main__":
    skips.main(sys.argv[3:])
