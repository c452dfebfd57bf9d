#!/usr/bin/env python3
"""What a build with CUDA can be asked without a GPU.

Usage: without_gpu.py BUILD_DIRECTORY

1. No device lambda is in two object files of a program. nvcc keeps a pointer to the body of a KOKKOS_LAMBDA in each
   file. Where two files instantiate the function that makes it, the linker may keep one's caller and the other's
   pointer, which is null.
2. The host backends train, over a CUDA runtime that has no GPU (runtime.c), and over such a driver where Kokkos
   links it (driver.c).
"""

import collections
import csv
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE.parent), str(ROOT / "scripts")]
import skips
from lib import launch

BUILD = pathlib.Path(sys.argv[1]).resolve()


def cached(variable):
    """A variable of the build's CMake cache."""
    return re.search(rf"^{variable}:\w+=(.*)$", (BUILD / "CMakeCache.txt").read_text(), re.M)[1]


def lambdas(program):
    """{name: number of object files} of the pointers to lambdas' bodies."""
    names = subprocess.run(["nm", program], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    return collections.Counter(line.split()[-1] for line in names if "__nv_hdl_helper" in line and "fp_caller" in line)


class WithoutGpu(unittest.TestCase):
    def test_no_lambda_is_in_two_object_files(self):
        programs = [BUILD / "onebit", *sorted((BUILD / "tests").glob("*_test"))]
        self.assertGreater(len(lambdas(programs[0])), 100, "nvcc names the pointers in another way")
        for program in programs:
            twice = [name for name, files in lambdas(program).items() if files > 1]
            text = subprocess.run(["c++filt"], input="\n".join(twice), stdout=subprocess.PIPE, text=True).stdout
            functions = sorted(set(re.findall(r"&\(.*?\(", text)))
            self.assertEqual(functions, [], f"{program.name}: put such functions into source files, or structs in "
                             "place of the lambdas")

    def test_host_backends_train(self):
        with tempfile.TemporaryDirectory() as scratch:
            library = pathlib.Path(scratch) / "libcudart.so"
            linked = subprocess.run(["ldd", BUILD / "onebit"], stdout=subprocess.PIPE, text=True).stdout
            name = re.search(r"libcudart\.so\.\d+", linked)[0]
            (pathlib.Path(scratch) / "map").write_text(f"{name} {{ global: *; }};\n")
            toolkit = pathlib.Path(cached("CUDAToolkit_BIN_DIR")).parent
            architecture, = set(re.findall(r"-arch=sm_(\d+)", (BUILD / "build.ninja").read_text()))
            subprocess.run(["cc", "-shared", "-fPIC", "-w", f"-I{toolkit / 'include'}",
                            f"-DARCHITECTURE={architecture}", "-o", library.with_name(name),
                            HERE / "runtime.c", HERE / "succeed.c", f"-Wl,-soname,{name}",
                            f"-Wl,--version-script={scratch}/map"], check=True)
            if "libcuda.so.1" in linked:
                subprocess.run(["cc", "-shared", "-fPIC", f"-I{toolkit / 'include'}", "-o", f"{scratch}/libcuda.so.1",
                                HERE / "driver.c"], check=True)
            environment = {**os.environ, "OMP_NUM_THREADS": "2",
                           "LD_LIBRARY_PATH": f"{scratch}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
            losses = {}
            for backend in ("openmp", "serial"):
                output = pathlib.Path(scratch) / backend
                settings = {"train.steps": 20, "freeze.step": 10, "run.backend": backend, "run.output": output}
                done = subprocess.run([BUILD / "onebit", "train", ROOT / "inputs/quadratic.yaml",
                                       *launch.overrides(settings)], env=environment, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True)
                self.assertEqual(done.returncode, 0, done.stdout)
                with open(output / "steps.csv") as file:
                    losses[backend] = [row["loss"] for row in csv.DictReader(file)]
            self.assertEqual(losses["openmp"], losses["serial"])
            self.assertLess(float(losses["serial"][-1]), float(losses["serial"][0]))


if __name__ == "__main__":
    skips.main(sys.argv[2:])
