"""What is checked: a build tree or an unpacked bundle, with the environment of its programs; and the GPUs here."""

import ctypes
import json
import os
import re
import shutil
import subprocess

from gpu_check import libraries
from gpu_check.verdicts import Failed
from lib import ROOT, launch

DRIVER = "libcuda.so.1"
DESCRIPTION = "bundle.json"  # names an unpacked bundle, at its root


class Installation:
    """`build` has onebit and tests/; `root` has inputs, corpus and fixtures; `units` and `mpi` are test programs."""

    def __init__(self, build, root, mpirun, tests, library_path=(), variables=None):
        self.build, self.root, self.mpirun = build, root, mpirun
        self.program = build / "onebit"
        self.units, self.mpi = tests["unit"], tests["mpi"]
        # The loader and Open MPI find what was built elsewhere, and so do the tests. Under mpirun, whose output is a
        # terminal, GoogleTest would write in colours.
        self.environment = libraries.with_paths({**os.environ, **(variables or {}), "ONEBIT_SOURCE_DIR": str(root),
                                                 "GTEST_COLOR": "no"}, library_path)

    def find_libraries(self, python):
        """Adds NVIDIA's libraries to the environment, wherever they are. Returns their places in words; raises Failed
        where a library is missing or too old."""
        missing = [name for name, path in libraries.needs([self.program], self.environment)[0].items() if path is None]
        if not loads(DRIVER):
            missing.append(DRIVER)  # the CUDA runtime and Open MPI load it by this name
        packages = dict.fromkeys([*libraries.python_packages(), *libraries.python_packages(python)])
        found, others = libraries.find(missing, libraries.nvidia_directories(self.environment, packages))
        self.environment = libraries.with_paths(self.environment, dict.fromkeys(found.values()))
        needed, too_old = libraries.needs([self.program], self.environment)
        if too_old:
            raise Failed(f"this system lacks {', '.join(too_old)}",
                         "make the bundle on a system that is as old as this one, or build here")
        if lost := [name for name, path in needed.items() if path is None]:
            seen = [path for name in lost for path in others.get(name, [])]
            raise Failed(f"not found: {', '.join(lost)}" + (f"; other versions: {', '.join(seen)}" if seen else ""),
                         "install the CUDA toolkit of this version, or name its directory in LD_LIBRARY_PATH")
        return "; ".join(f"{name} in {directory}" for name, directory in found.items()) or "all in the system's places"

    def test(self, name):
        return self.build / "tests" / name

    def on_ranks(self, ranks, *command):
        """The command on ranks of this machine; the launcher's script sets what Open MPI needs here."""
        return launch.mpirun(ranks, *command, mpiexec=self.mpirun)

    def backends(self):
        """The backends of the program, as `onebit list` says."""
        done = subprocess.run([self.program, "list"], env=self.environment, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace")
        found = re.search(r"^backends: (.*)$", done.stdout, re.M)
        if done.returncode != 0 or not found:
            raise Failed(f"`onebit list` ended with status {done.returncode}: {done.stdout.strip()[-300:]}")
        return found[1].split()


def loads(library):
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def tests_of(build):
    """{"unit": [program], "mpi": {program: [numbers of ranks]}} of a build tree, as ctest lists them."""
    path = build / "tests/CTestTestfile.cmake"
    names = re.findall(r"^add_test\(\[?=?\[?\"?(unit|mpi)\.(\w+)(?:\.(\d+))?[\]\" ]", path.read_text(), re.M)
    tests = {"unit": [], "mpi": {}}
    for kind, name, ranks in names:
        if not (build / "tests" / name).is_file():
            continue
        if kind == "unit":
            tests["unit"].append(name)
        else:
            tests["mpi"].setdefault(name, []).append(int(ranks))
    return tests


def of_build_tree(build):
    """The installation of a build tree of this checkout."""
    build = build.resolve()
    for path in (build / "onebit", build / "CMakeCache.txt", build / "tests/CTestTestfile.cmake"):
        if not path.is_file():
            raise Failed(f"{path} is not there", "build it with its tests (docs/guide/build.md), or name another "
                                                 "directory with --build")
    mpirun = re.search(r"^MPIEXEC_EXECUTABLE:\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.M)[1]
    return Installation(build, ROOT, mpirun, tests_of(build))


def of_bundle(root):
    """The installation of an unpacked bundle."""
    root = root.resolve()
    described = json.loads((root / DESCRIPTION).read_text())
    mpi = root / "openmpi"
    return Installation(root / "build", root, str(mpi / "bin/mpirun"), described["tests"], [root / "lib", mpi / "lib"],
                        {"OPAL_PREFIX": str(mpi), "PMIX_INSTALL_PREFIX": str(mpi)})


def ask_gpus(columns):
    """([a line of nvidia-smi for each GPU], why there are none)."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1"):
        return [], "CUDA_VISIBLE_DEVICES hides every GPU"
    path = os.environ.get("PATH", "") + ":/usr/local/nvidia/bin"
    tool = shutil.which("nvidia-smi", path=path)
    if not tool:
        return [], "nvidia-smi is not on PATH"
    asked = subprocess.run([tool, f"--query-gpu={columns}", "--format=csv,noheader"], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True)
    lines = asked.stdout.strip().splitlines()
    if asked.returncode != 0 or not lines:
        return [], f"nvidia-smi says: {' '.join(lines) or 'nothing'}"
    return lines, ""


def gpus():
    """([a GPU in words], why there are none)."""
    return ask_gpus("name,memory.total,driver_version,compute_cap")


def takes_one_process():
    """Whether a GPU here refuses a second process (compute mode Exclusive_Process)."""
    return any("Exclusive" in line for line in ask_gpus("compute_mode")[0])


def find_tool(name, environment):
    """A program of the CUDA toolkit, on PATH or in a toolkit; None where it is not here."""
    places = [toolkit / folder for toolkit in libraries.toolkits(environment) for folder in ("bin", name)]
    return shutil.which(name, path=os.pathsep.join([environment.get("PATH", ""), *map(str, places)]))
