#!/usr/bin/env python3
"""The library from C and Python, on some ranks: the programs of tests/library.

Usage: python_test.py RANKS MPIEXEC LIBRARY BITS_CPP BITS_C [unittest arguments]

LIBRARY is the path of libonebit.so. Python is one that has mpi4py and PyTorch: this one, or the system's, for which
scripts/setup.sh --python installs them.
"""

import os
import pathlib
import re
import socket
import subprocess
import sys
import unittest

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))
import skips
import support

RANKS, MPIEXEC, LIBRARY, BITS_CPP, BITS_C = sys.argv[1:6] if len(sys.argv) > 5 else ("1", "", "", "", "")
PROGRAMS, PACKAGE = TESTS / "library", TESTS.parent / "python"
BUILD_BACKEND = pathlib.Path(os.environ.get("ONEBIT_DEPS", TESTS.parent / ".deps")) / "scikit-build-core"
CASES = 32  # of bits.h
ENVIRONMENT = {**support.ENVIRONMENT, "PYTHONPATH": f"{PACKAGE}:{TESTS}", "ONEBIT_LIBRARY": LIBRARY,
               "PYTHONDONTWRITEBYTECODE": "1"}


# Ends with 0 where PyTorch is there, and an mpi4py of the MPI library that libonebit is linked with.
HAS_MODULES = """
import importlib.util, sys
if not all(map(importlib.util.find_spec, ("mpi4py", "torch"))):
    sys.exit(1)
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
from onebit._ranks import check_library
check_library(MPI)
"""


def has_modules(python):
    return os.path.exists(python) and subprocess.run([python, "-c", HAS_MODULES], env=ENVIRONMENT).returncode == 0


PYTHON = next(filter(has_modules, (sys.executable, "/usr/bin/python3")), None) if LIBRARY else None
needs_python = unittest.skipUnless(PYTHON, "no PyTorch here, or no mpi4py of this build's MPI library: "
                                   "scripts/setup.sh --python installs both for Open MPI")


def free_port():
    """Of torch.distributed's rank 0."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


class Library(unittest.TestCase):
    def run_ranks(self, *command):
        done = support.run(self, [MPIEXEC, "-n", RANKS, *command], timeout=200,
                           env={**ENVIRONMENT, "MASTER_PORT": free_port()})
        return done.stdout

    def run_torchrun(self, program, *arguments):
        # PyTorch 1.13 with Python 3.11 cannot leave all output where it is: let that of a tenth process go elsewhere.
        elsewhere = ("--redirects", "9:1", "--tee", "9:1")
        done = support.run(self, [PYTHON, "-m", "torch.distributed.run", *elsewhere, "--nproc_per_node", RANKS,
                                  "--master_port", free_port(), PROGRAMS / program, *arguments], timeout=100,
                           env=ENVIRONMENT)
        return done.stdout

    def run_python(self, program, *arguments):
        return self.run_ranks(PYTHON, "-m", "mpi4py", PROGRAMS / program, *arguments)

    def expect_bits(self, output):
        """Compares what bits.c or bits.py printed with what bits.cpp prints."""
        expected, found = (sorted(re.findall("(?m)^case .*", text)) for text in (self.run_ranks(BITS_CPP), output))
        self.assertEqual(len(expected), CASES * int(RANKS))
        self.assertEqual(found, expected)
        # Results that no option changes would be equal, too.
        self.assertEqual(len({line.split()[5] for line in expected}), CASES // 2, "exchanges alone give the same bits")

    def test_bits_of_c(self):
        self.expect_bits(self.run_ranks(BITS_C))

    @needs_python
    def test_bits_of_python(self):
        self.expect_bits(self.run_python("bits.py"))

    @needs_python
    def test_torchrun_bits(self):
        self.expect_bits(self.run_torchrun("bits.py"))

    @needs_python
    def test_torchrun_optimizer(self):
        self.run_torchrun("optimizer.py")

    @needs_python
    def test_torchrun_muon(self):
        self.run_torchrun("muon.py")

    @needs_python
    def test_torchrun_hook(self):
        self.run_torchrun("hook.py")

    @needs_python
    def test_torchrun_ends(self):
        self.run_torchrun("ends.py")

    @needs_python
    def test_launchers(self):
        for variables in ({"PMI_SIZE": "3", "PMI_RANK": "0"}, {"WORLD_SIZE": "2", "RANK": "0"}):
            with self.subTest(variables):
                support.run(self, [PYTHON, PROGRAMS / "launchers.py"], env={**ENVIRONMENT, **variables})

    @needs_python
    def test_arrays(self):
        self.run_python("arrays.py")

    @needs_python
    def test_optimizer(self):
        self.run_python("optimizer.py")

    @needs_python
    def test_muon(self):
        self.run_python("muon.py")

    @needs_python
    def test_hook(self):
        self.run_python("hook.py")

    @needs_python
    def test_training(self):
        print(self.run_python("training.py"))

    @needs_python
    def test_pages_scripts(self):
        for script, begin, end in (("ddp.py", 0.3, 0.15), ("adam.py", 0.3, 0.05)):
            with self.subTest(script):
                output = self.run_python(script)
                losses = [float(loss) for loss in re.findall("loss ([0-9.]+)", output)]
                self.assertGreater(losses[0], begin)
                self.assertLess(losses[-1], end)
                self.assertEqual(self.run_torchrun(script), output)

    @needs_python
    def test_installed(self):
        """A wheel in a new virtual environment: it brings the library, and says if another one cannot be loaded."""
        build = support.cmake_cache(pathlib.Path(LIBRARY).parent)
        version = build["CMAKE_PROJECT_VERSION"]
        program = "import onebit; print(onebit.__version__)"
        self.assertEqual(support.run(self, [PYTHON, "-c", program], env=ENVIRONMENT).stdout.strip(), version)
        if not BUILD_BACKEND.is_dir():
            self.skipTest("no scikit-build-core here: scripts/setup.sh --python installs it from PyPI")
        scratch = support.scratch(self)
        environment = {name: value for name, value in ENVIRONMENT.items()
                       if name not in ("PYTHONPATH", "ONEBIT_LIBRARY")}
        same = [f"-D{name}={value}" for name, value in support.same_objects(build).items()]
        support.run(self, [PYTHON, "-m", "pip", "wheel", "--no-index", "--no-build-isolation", "--no-deps",
                           f"--wheel-dir={scratch}", PACKAGE],
                    env={**environment, "PYTHONPATH": str(BUILD_BACKEND), "Kokkos_ROOT": build["Kokkos_DIR"],
                         "CC": build["CMAKE_C_COMPILER"], "CXX": build["CMAKE_CXX_COMPILER"],
                         "CMAKE_ARGS": " ".join(same),
                         "SKBUILD_BUILD_DIR": str(support.scratch(self, pathlib.Path(LIBRARY).parents[1]))})
        python = scratch / "venv/bin/python"
        support.run(self, [PYTHON, "-m", "venv", "--system-site-packages", scratch / "venv"])
        support.run(self, [python, "-m", "pip", "install", "--no-index", next(scratch.glob("onebit-*.whl"))])
        program = ("import numpy, onebit, onebit.torch; from mpi4py import MPI; print(onebit.__file__, "
                   "onebit.__version__, onebit._library.library()._name, "
                   "*onebit.CompressedAllreduce(MPI.COMM_WORLD, 2)(numpy.array([3, -3], 'f')))")
        done = support.run(self, [python, "-c", program], env=environment, cwd=scratch)
        file, installed, library, *values = done.stdout.split()
        package = pathlib.Path(file).parent
        self.assertEqual(package.parents[3], scratch / "venv")
        self.assertEqual(installed, version)
        self.assertEqual(library, str(package / "libonebit.so"))
        self.assertEqual(values, ["3.0", "-3.0"])
        done = support.run(self, [python, "-c", program], 1, env={**environment, "ONEBIT_LIBRARY": "/none.so"},
                           cwd=scratch)
        self.assertRegex(done.stderr, "library cannot be loaded: /none.so: .*\n.*remedy: .* ONEBIT_LIBRARY")


if __name__ == "__main__":
    skips.main(sys.argv[6:])
