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
import results  # noqa: E402
import skips  # noqa: E402


class Scripts(unittest.TestCase):
    def test_processors_do_not_depend_on_threads(self):
        # nproc believes OMP_NUM_THREADS and OMP_THREAD_LIMIT, which a user sets for the program, not for a build.
        found = [(path, command) for path in sorted((ROOT / "scripts").rglob("*.sh"))
                 for command in re.findall(r"\$\(([^()]*\bnproc\b[^()]*)\)", path.read_text())]
        self.assertGreaterEqual(len(found), 4)
        cores = len(os.sched_getaffinity(0))
        for path, command in found:
            for setting in ({"OMP_NUM_THREADS": str(cores + 1)}, {"OMP_THREAD_LIMIT": "1", "OMP_NUM_THREADS": "1"}):
                said = subprocess.run(["bash", "-c", command], env={**os.environ, **setting}, capture_output=True, text=True)
                self.assertEqual(said.stdout.strip(), str(cores), f"{path}: {command} with {setting}")

    def test_machine_in_words(self):
        with mock.patch.dict(os.environ, {"ONEBIT_MACHINE": "a machine"}):
            self.assertEqual(results.machine(), "a machine")
        with mock.patch.dict(os.environ):
            os.environ.pop("ONEBIT_MACHINE", None)
            self.assertRegex(results.machine(), r"\S.*, \d+ cores, \S")

    def test_results_are_of_committed_sources(self):
        kept = ROOT / "docs/results/a_page/steps.csv"
        self.assertEqual(results.check_version("0123abc", kept), "0123abc")
        for version in ("0123abc-dirty", ""):
            self.assertEqual(results.check_version(version, "/tmp/steps.csv"), version)
            with self.assertRaises(SystemExit) as refusal:
                results.check_version(version, kept)
            self.assertIn("remedy: commit", str(refusal.exception))
        # What measures refuses before it measures.
        with tempfile.TemporaryDirectory() as directory:
            program = pathlib.Path(directory) / "onebit"
            program.write_text("#!/bin/sh\necho 'onebit 0.1.0 (0123abc-dirty)'\n")
            program.chmod(0o755)
            for command in ("measure", "threads", "checkpoints"):
                run = subprocess.run([sys.executable, ROOT / "scripts/performance.py", command, "--onebit", program],
                                     capture_output=True, text=True, timeout=30)
                self.assertEqual(run.returncode, 1)
                self.assertIn("the program is of changed sources (0123abc-dirty)", run.stderr)
        self.assertNotIn(" ", results.program_version(PROGRAM, "/tmp/steps.csv"))


if __name__ == "__main__":
    skips.main(sys.argv[3:])
