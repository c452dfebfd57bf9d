"""What the tests of the whole program share: where it is, how it runs, and scratch directories.

A test is called `NAME_test.py PROGRAM MPIEXEC …`. After this import the library of scripts/ can be imported too.
"""

import contextlib
import functools
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
from lib import provenance
from lib.launch import overrides
from lib.tables import read_csv

# Open MPI's files are in a place of their own: it trips over those of another test's program that ends meanwhile.
_temporary = tempfile.TemporaryDirectory(prefix="onebit.")
os.chmod(_temporary.name, 0o1777)  # as /tmp has: some programs run as another user
os.environ["TMPDIR"] = tempfile.tempdir = _temporary.name
# More ranks than cores are wanted, which only Open MPI 4 and 5 have to be told. Others know no option for it.
os.environ.update(OMPI_MCA_rmaps_base_oversubscribe="1", PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe")

PROGRAM, MPIEXEC = (os.path.abspath(sys.argv[1]), sys.argv[2]) if len(sys.argv) > 2 else ("", "")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1",
               "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}


def scratch(owner, parent=None):
    """A directory that lasts as long as a test or a class of tests.

    A build in a neighbour of the build directory finds that one's objects in ccache, which compares relative paths.
    """
    directory = tempfile.TemporaryDirectory(prefix="onebit-test.", dir=parent)
    (owner.addClassCleanup if isinstance(owner, type) else owner.addCleanup)(directory.cleanup)
    return pathlib.Path(directory.name)


def ranks_of(count, *command):
    """The command on some ranks of this machine, which may have fewer cores."""
    return [MPIEXEC, "-n", str(count), *command]


@functools.cache
def is_open_mpi():
    """Whether MPIEXEC is Open MPI's, whose variables have names of their own."""
    text = subprocess.run([MPIEXEC, "--version"], capture_output=True, text=True, check=True).stdout
    return "Open MPI" in text or "OpenRTE" in text  # mpirun, and mpiexec before Open MPI 5


@functools.cache
def version():
    """PROGRAM's commit, asked once."""
    return provenance.program_version(PROGRAM)


def run(test, command, expected=0, **options):
    """Runs a command to its end and checks its exit status."""
    options = {"env": ENVIRONMENT, "timeout": 240, **options}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, **options)
    test.assertEqual(done.returncode, expected, done.stdout + done.stderr)
    return done


def cmake_cache(build):
    """The variables of a build directory's CMakeCache.txt."""
    return dict(re.findall(r"(?m)^(\w+):\w+=(.*)$", (pathlib.Path(build) / "CMakeCache.txt").read_text()))


def same_objects(cache):
    """Of a build's variables, those with which another build compiles the same, so that ccache has the objects, and
    links the same MPI."""
    names = ("ONEBIT_NATIVE", "CMAKE_UNITY_BUILD", "CMAKE_UNITY_BUILD_BATCH_SIZE", "CMAKE_CXX_COMPILER_LAUNCHER",
             "MPI_C_COMPILER", "MPI_CXX_COMPILER")
    return {name: cache[name] for name in names if name in cache}


def train(test, keys, output, path, ranks=1, **options):
    """Runs `onebit train`; returns (row of run.csv, rows of steps.csv, finished process), without rows on failure."""
    done = run(test, ranks_of(ranks, PROGRAM, "train", path, *overrides({**keys, "run.output": output})), **options)
    if done.returncode != 0:
        return None, None, done
    return read_csv(output / "run.csv")[0], read_csv(output / "steps.csv"), done


def check_figure(test, path):
    """A figure of scripts/lib/plots.py: vectors alone, no wider than pages show without shrinking, and no date."""
    root = xml.etree.ElementTree.parse(path).getroot()
    tags = [element.tag.rpartition("}")[2] for element in root.iter()]
    test.assertEqual(tags[0], "svg", path)
    test.assertGreater(tags.count("path"), 20, path)
    test.assertFalse({"image", "script", "date"} & set(tags), path)
    test.assertLessEqual(float(root.get("width").removesuffix("pt")), 8 * 72 + 1, path)
    test.assertLess(path.stat().st_size, 300e3, path)


def figures(test, text):
    """What standard output ends with: ({name: (value as text, unit)}, whether the validation passed, its words)."""
    lines = text.splitlines()
    verdict = re.fullmatch(r"VALIDATION (PASSED|FAILED) (.+)", lines.pop())
    test.assertTrue(verdict, text)
    found = {}
    while lines and (figure := re.fullmatch(r"FOM (\S+) (\S+) (\S+)", lines[-1])):
        test.assertRegex(figure[1], "^[a-z][A-Za-z0-9_]*$")
        test.assertEqual(figure[2], f"{float(figure[2]):.6g}")
        found = {figure[1]: (figure[2], figure[3]), **found}
        lines.pop()
    test.assertNotRegex("\n".join(lines), "(?m)^(FOM|VALIDATION) ")
    return found, verdict[1] == "PASSED", verdict[2]


class Draws:
    """Integers below n that are the same in every run."""

    def __init__(self):
        self.state = 1

    def __call__(self, n):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % n


def write_corpus(path):
    """Text of eight words, so that there is something to learn; the same in each call."""
    words = ["the ", "king ", "sang ", "of ", "a ", "river ", "and ", "stones. "]
    draw = Draws()
    path.write_text("".join(words[draw(len(words))] for _ in range(20000)))


class Skip(Exception):
    """Why a case cannot be tried here."""


@contextlib.contextmanager
def mounted(path, size):
    """A small file system at `path`, where that is allowed."""
    if os.geteuid() != 0:
        raise Skip("only root may mount a small file system")
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], capture_output=True,
                           text=True)
    if mount.returncode != 0:
        raise Skip("no small file system can be mounted: " + mount.stderr.strip())
    try:
        yield
    finally:
        subprocess.run(["umount", path], check=True)
