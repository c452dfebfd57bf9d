#!/usr/bin/env python3
"""Every piece that a test leaves out is reported by name and reason, and summed up.

Usage: skips_test.py BUILD_DIRECTORY PROGRAM MPIEXEC [unittest arguments]

Real tests are run where something that they need is hidden from them: a program on PATH, root, space for a file.
"""

import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import skips

BUILD, PROGRAM, MPIEXEC = (os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), sys.argv[3]) \
    if len(sys.argv) > 3 else [""] * 3
TESTS = pathlib.Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
# Runs the script behind it as if another user than root did.
NOT_ROOT = ("import os, runpy, sys; os.geteuid = os.getuid = lambda: 1000; sys.argv = sys.argv[1:]; "
            "sys.path.insert(0, os.path.dirname(sys.argv[0])); runpy.run_path(sys.argv[0], run_name='__main__')")


class Skips(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.path = pathlib.Path(scratch.name) / "skips"
        self.path.touch()

    def run_it(self, command, expected=0, **environment):
        """Standard output; self.path then holds what was reported."""
        settings = {**os.environ, "ONEBIT_SKIPS": str(self.path), "ONEBIT_TEST": "a.test", **environment}
        process = subprocess.Popen(list(map(str, command)), env=settings, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, preexec_fn=self.limit)
        said, _ = process.communicate(timeout=100)
        self.assertEqual(process.returncode, expected, said)
        return said

    def limit(self):
        """In a child process before it starts."""

    def reported(self):
        return [tuple(line.split("\t")) for line in self.path.read_text().splitlines()]

    # --- where tests skip ---------------------------------------------------------------------------------------------

    def test_googletest(self):
        def limit():  # files of 1 MiB at most: the test cannot have its sparse one of 15 TiB
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

        self.limit = limit
        piece = "DataCorpus.refuses_text_beyond_the_memory_before_it_allocates"
        self.run_it([f"{BUILD}/tests/data_test", f"--gtest_filter={piece}"])
        self.assertEqual(self.reported(), [(f"a.test: {piece}", "no sparse file of 15 TiB here")])

    def test_nothing_is_reported_that_runs_at_another_number_of_ranks(self):
        said = self.run_it([MPIEXEC, "-n", "1", f"{BUILD}/tests/comm_test",
                            "--gtest_filter=*volume_is_31_times_below_dense"],
                           OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMP_NUM_THREADS="1")
        self.assertIn("for other numbers of ranks: nothing travels", said)
        self.assertEqual(self.reported(), [])

    def test_namespaces(self):
        self.run_it([sys.executable, TESTS / "integration/bench_test.py", PROGRAM, MPIEXEC, "Bench.test_laboratory"],
                    PATH="/nonexistent")
        self.assertEqual(self.reported(),
                         [("a.test: Bench.test_laboratory", "no network namespaces here: no iproute2")])

    def test_bad_input(self):
        self.run_it([sys.executable, "-c", NOT_ROOT, TESTS / "integration/bad_input_test.py", PROGRAM, MPIEXEC, "none",
                     "^full_disk_in_the_run$"])
        self.assertEqual(self.reported(), [("a.test: full_disk_in_the_run", "only root may mount a small file system")])

    def test_faults(self):
        self.run_it([sys.executable, "-c", NOT_ROOT, TESTS / "faults/faults_test.py", PROGRAM, MPIEXEC,
                     "disk_full_of_rows"])
        self.assertEqual(self.reported(),
                         [("a.test: Faults.test_disk_full_of_rows", "only root may mount a small file system")])

    def test_whole_test(self):
        self.run_it([sys.executable, TESTS / "skips.py", "skip", "", "no clang here"], skips.SKIPPED)
        self.assertEqual(self.reported(), [("a.test", "no clang here")])

    @unittest.skipIf(shutil.which("slurmctld", path=os.environ["PATH"] + ":/usr/sbin"),
                     f"{skips.ELSEWHERE}Slurm is here")
    def test_without_slurm(self):
        self.run_it([sys.executable, "-c", NOT_ROOT, TESTS / "integration/slurm_test.py", PROGRAM, MPIEXEC, "Slurm"],
                    skips.SKIPPED, PATH="/nonexistent")
        self.assertEqual([test for test, _ in self.reported()], ["a.test"])

    def test_every_test_has_its_name(self):
        lists = (pathlib.Path(BUILD) / "tests/CTestTestfile.cmake").read_text()
        for name in re.findall(r"^add_test\(\[=\[(.*?)\]=\]", lists, re.M):
            self.assertRegex(lists,
                             rf"set_tests_properties\(\[=\[{re.escape(name)}\]=\] .*ONEBIT_TEST={re.escape(name)}[;\"]")

    def test_no_script_has_its_own_way(self):
        for path in TESTS.rglob("*.py"):
            if path not in (TESTS / "skips.py", pathlib.Path(__file__).resolve()):
                self.assertNotIn("unittest.main(", path.read_text(), f"{path}: skips.main reports what is skipped")

    # --- the summary --------------------------------------------------------------------------------------------------

    def summary(self, lines, expected=0, ci="true"):
        self.path.write_text("".join(f"{line}\n" for line in lines))
        return self.run_it([sys.executable, TESTS / "skips.py", "summary", self.path], expected, CI=ci)

    def test_summary(self):
        self.assertEqual(self.summary([]), "Skipped pieces: none\n")
        lines = ["b: Two\tno iproute2", "a: One\tno GPU here: no driver", "b: Two\tno iproute2"]
        listed = "Skipped pieces: 2\n  a: One: no GPU here: no driver\n  b: Two: no iproute2"
        self.assertEqual(self.summary(lines, ci=""), listed + "\n")
        said = self.summary(lines, 1)
        self.assertIn(listed + " [not allowed", said)
        self.assertIn("error: 1 of them", said)
        self.summary(lines[1:2])

    def test_test_sh_ends_with_it(self):
        # The script itself, in a tree where setting up and building do nothing and ctest runs one test, which skips.
        tree, tools = self.path.parent / "tree", self.path.parent / "tools"
        for name in ("scripts/test.sh", "scripts/environment.sh", "tests/skips.py", "tests/allowed_skips.txt"):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
        tools.mkdir()
        (tree / "build").mkdir()
        for path, does in ((tree / "scripts/setup.sh", ":"), (tools / "cmake", ":"),
                           (tools / "ctest", "printf 'a.test: A.piece\\tno iproute2\\n' >>\"$ONEBIT_SKIPS\"")):
            path.write_text(f"#!/bin/sh\n{does}\n")
            path.chmod(0o755)
        environment = {"PATH": f"{tools}:{os.environ['PATH']}"}
        said = self.run_it([tree / "scripts/test.sh", "--no-cuda"], CI="", **environment)
        self.assertRegex(said, r"\nSkipped pieces: 3\n  a\.test: A\.piece: no iproute2\n"
                               r"  cuda\.compilation: left out by --no-cuda\n  cuda\.tests: .+\n$")
        said = self.run_it([tree / "scripts/test.sh", "--no-cuda"], 1, CI="true", **environment)
        self.assertIn("a.test: A.piece: no iproute2 [not allowed", said)

    def test_a_file_that_is_not_there_is_no_summary(self):
        self.path.unlink()
        self.run_it([sys.executable, TESTS / "skips.py", "summary", self.path], 1)


if __name__ == "__main__":
    skips.main(sys.argv[4:])
