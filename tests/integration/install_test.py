#!/usr/bin/env python3
"""Installs OneBit and links another program with it: the example of docs/reference/library.md, in tests/install.

Usage: install_test.py BUILD_DIRECTORY MPIEXEC SOURCE_DIRECTORY CXX_COMPILER [unittest arguments]
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import skips  # noqa: E402

BUILD, MPIEXEC, SOURCE, COMPILER = sys.argv[1:5] if len(sys.argv) > 4 else ("", "", "", "")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1",
               "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
# It must be found where the caller says it is, and Kokkos where OneBit was built with it.
for name in ("CMAKE_PREFIX_PATH", "Kokkos_ROOT", "OneBit_ROOT"):
    ENVIRONMENT.pop(name, None)


class Install(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.directory = pathlib.Path(scratch.name)

    def command(self, *arguments):
        done = subprocess.run([str(argument) for argument in arguments], env=ENVIRONMENT, cwd=self.directory,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=240, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def test_another_program_links_it(self):
        prefix, build = self.directory / "prefix", self.directory / "build"
        self.command("cmake", "--install", BUILD, "--prefix", prefix)
        # No header that could stand before one of the caller's.
        self.assertEqual([str(p.relative_to(prefix)) for p in sorted((prefix / "include").rglob("*.h*"))],
                         ["include/onebit/compressed_allreduce.hpp", "include/onebit/onebit.h"])
        symbols = self.command("nm", "-D", "--defined-only", prefix / "lib" / "libonebit.so.1")
        self.assertEqual([line for line in symbols.splitlines() if not re.search(" (onebit_|ONEBIT_1)", line)], [])
        self.assertIn("onebit_adam", self.command(prefix / "bin" / "onebit", "list"))
        # Nothing may lead back to where it was built.
        for file in prefix.rglob("*.cmake"):
            self.assertNotIn(SOURCE + "/src", file.read_text(), file)
        self.command("cmake", "-G", "Ninja", "-S", pathlib.Path(SOURCE) / "tests" / "install", "-B", build,
                     f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_CXX_COMPILER={COMPILER}")
        self.command("cmake", "--build", build)
        for program in ("average", "average_c"):
            self.check_average(self.command(MPIEXEC, "-n", "2", "--oversubscribe", build / program).split())

    def check_average(self, words):
        self.assertEqual(words[0], "average")
        # The mean of what came from ranks 0 and 1. A call's result is one bit an element; the mean of 1,000 calls is
        # off by no more than what was still to be added, two residuals, over 1,000.
        for value, exact in zip(map(float, words[1:5]), [0.5, 2, -1.5, 0.25]):
            self.assertAlmostEqual(value, exact, delta=0.03)


if __name__ == "__main__":
    skips.main(sys.argv[5:])
