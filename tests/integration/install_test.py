#!/usr/bin/env python3
"""Links other programs with OneBit, installed (tests/install) and as a part of their project (tests/subdirectory): the
examples of docs/reference/library.md. And OneBit's version is the same everywhere.

Usage: install_test.py BUILD_DIRECTORY MPIEXEC SOURCE_DIRECTORY CXX_COMPILER [unittest arguments]
"""

import os
import pathlib
import re
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import skips
import support

BUILD, MPIEXEC, SOURCE, COMPILER = sys.argv[1:5] if len(sys.argv) > 4 else ("", "", "", "")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1",
               "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
# It must be found where the caller says it is, and Kokkos where OneBit was built with it.
for name in ("CMAKE_PREFIX_PATH", "Kokkos_ROOT", "OneBit_ROOT"):
    ENVIRONMENT.pop(name, None)


class Install(unittest.TestCase):
    def setUp(self):
        self.directory = support.scratch(self)

    def command(self, *arguments):
        done = subprocess.run([str(argument) for argument in arguments], env=ENVIRONMENT, cwd=self.directory,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=540, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def test_another_program_links_it(self):
        prefix = self.directory / "prefix"
        self.command("cmake", "--install", BUILD, "--prefix", prefix)
        # No header that could stand before one of the caller's.
        self.assertEqual([str(p.relative_to(prefix)) for p in sorted((prefix / "include").rglob("*.h*"))],
                         ["include/onebit/compressed_allreduce.hpp", "include/onebit/onebit.h"])
        symbols = self.command("nm", "-D", "--defined-only", prefix / "lib" / "libonebit.so.1")
        self.assertEqual([line for line in symbols.splitlines() if not re.search(" (onebit_|ONEBIT_1)", line)], [])
        self.assertIn("onebit_adam", self.command(prefix / "bin" / "onebit", "list"))
        # Nothing may lead back to where it was built.
        for file in prefix.rglob("*.cmake"):
            for place in (SOURCE + "/src", BUILD):
                self.assertNotIn(place, file.read_text(), file)
        self.check_project("install", self.directory / "build", {"CMAKE_PREFIX_PATH": prefix})

    def test_another_project_adds_it(self):
        settings = {"CMAKE_BUILD_TYPE": "Release", "Kokkos_ROOT": support.cmake_cache(BUILD)["Kokkos_DIR"]}
        build = support.scratch(self, pathlib.Path(BUILD).parent)
        targets = self.check_project("subdirectory", build, settings)
        self.assertNotRegex(targets, "(?m)^(test|onebit_app|onebit_train):")
        done = subprocess.run(["cmake", "--install", build, "--prefix", self.directory / "prefix"])
        self.assertEqual((done.returncode, (self.directory / "prefix").exists()), (0, False))

    def check_project(self, name, build, settings):
        """Builds a project of tests/ and runs its programs. \\returns the targets of its build"""
        settings = {**support.same_objects(support.cmake_cache(BUILD)), "CMAKE_CXX_COMPILER": COMPILER, **settings}
        self.command("cmake", "-G", "Ninja", "-S", pathlib.Path(SOURCE) / "tests" / name, "-B", build,
                     *(f"-D{name}={value}" for name, value in settings.items()))
        self.command("cmake", "--build", build)
        for program in ("average", "average_c"):
            self.check_average(self.command(MPIEXEC, "-n", "2", build / program).split())
        return self.command("cmake", "--build", build, "--target", "help")

    def test_version_is_the_same_everywhere(self):
        version = support.cmake_cache(BUILD)["CMAKE_PROJECT_VERSION"]
        major, minor, patch = map(int, version.split("."))
        number = 10000 * major + 100 * minor + patch
        for header in ("onebit.h", "compressed_allreduce.hpp"):
            lines = (pathlib.Path(SOURCE) / "src/comm/library" / header).read_text().splitlines()
            self.assertIn(f'#define ONEBIT_VERSION "{version}"', lines)
            self.assertIn(f"#define ONEBIT_VERSION_NUMBER {number}", lines)
        self.assertRegex(self.command(pathlib.Path(BUILD) / "onebit", "--version"), f"^onebit {re.escape(version)} ")
        self.assertIn(f"\nversion: {version}\n", (pathlib.Path(SOURCE) / "CITATION.cff").read_text())

    def check_average(self, words):
        self.assertEqual(words[0], "average")
        # The mean of what came from ranks 0 and 1. A call's result is one bit an element; the mean of 1,000 calls is
        # off by no more than what was still to be added, two residuals, over 1,000.
        for value, exact in zip(map(float, words[1:5]), [0.5, 2, -1.5, 0.25]):
            self.assertAlmostEqual(value, exact, delta=0.03)


if __name__ == "__main__":
    skips.main(sys.argv[5:])
