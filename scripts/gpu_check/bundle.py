"""The bundle: programs, tests, inputs, Open MPI and libraries in one archive, for a machine with nothing but a GPU."""

import hashlib
import json
import lzma
import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile

from gpu_check import libraries
from gpu_check.installation import DESCRIPTION, tests_of
from gpu_check.verdicts import Failed
from lib import ROOT

MIB = 1 << 20
TOP = "gpu_check_bundle"  # the archive's one directory
FILES = ("scripts", "inputs", "corpus/kjv.txt", "docs/reference/input.md", "tests/reference/fixtures")
MPI_PROGRAMS = ("mpirun", "orterun", "orted")
# Several programs hold the same kernels. The compressor finds them again across this distance.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 256 * MIB}]


def build(architecture):
    """Builds what the bundle needs for GPUs of this compute capability. Returns the build tree."""
    tree = ROOT / "build/gpu_check"
    environment = {**os.environ, "ONEBIT_CUDA_ARCH": architecture}
    for command in (["scripts/setup.sh", "--cuda", "--cuda-mpi"], ["cmake", "--preset", "gpu_check"],
                    ["cmake", "--build", tree]):
        if subprocess.run(command, cwd=ROOT, env=environment).returncode != 0:
            raise Failed(f"{' '.join(map(str, command))} failed", "see its messages above")
    return tree


def default_mpi():
    """The CUDA-aware Open MPI of scripts/build_openmpi.sh."""
    return pathlib.Path(os.environ.get("ONEBIT_DEPS") or ROOT / ".deps") / "cuda-mpi"


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def copy_stripped(path, target):
    """Copies a file, without symbols and debug information if it is a program or a library. A link to a file beside it
    stays a link."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() and os.sep not in os.readlink(path):
        target.symlink_to(os.readlink(path))
        return
    shutil.copyfile(path, target)
    if is_elf(target):
        subprocess.run(["strip", "--strip-unneeded", target], check=True)
    target.chmod(0o755 if os.access(path, os.X_OK) else 0o644)


def copy_mpi(mpi, target):
    """Copies what running programs need of an Open MPI. Returns its programs and libraries in their old places."""
    wanted = [mpi / "bin" / name for name in MPI_PROGRAMS if (mpi / "bin" / name).exists()]
    if not wanted:
        raise Failed(f"no Open MPI in {mpi}", "run scripts/setup.sh --cuda --cuda-mpi, or name one with --mpi")
    wanted += sorted(path for path in mpi.glob("lib/**/*.so*") if path.is_file())
    for path in wanted:
        copy_stripped(path, target / path.relative_to(mpi))
    for folder in ("etc", "share/openmpi", "share/pmix"):
        if (mpi / folder).is_dir():
            shutil.copytree(mpi / folder, target / folder)
    return wanted


def collect(tree, mpi, directory):
    """Lays the bundle out in a directory."""
    of_mpi = copy_mpi(mpi, directory / "openmpi")
    tests = tests_of(tree)
    if not tests["unit"]:
        raise Failed(f"{tree} has no tests", "build it with ONEBIT_BUILD_TESTS=ON")
    programs = [tree / "onebit", *(tree / "tests" / name for name in sorted({*tests["unit"], *tests["mpi"]}))]
    for path in programs:
        copy_stripped(path, directory / "build" / path.relative_to(tree))
    # Open MPI's own libraries come first, as they will there.
    environment = libraries.with_paths(os.environ, [mpi / "lib"])
    try:
        needed = libraries.closure([*programs, *filter(is_elf, of_mpi)], environment)
    except FileNotFoundError as problem:
        raise Failed(f"{tree}: libraries {problem}", "build it again on this machine") from None
    for name, path in sorted(needed.items()):
        if not (directory / "openmpi/lib" / name).exists():
            copy_stripped(pathlib.Path(path).resolve(), directory / "lib" / name)
    for name in FILES:
        source, target = ROOT / name, directory / name
        if not source.exists():
            raise Failed(f"{source} is not there", "run scripts/setup.sh")
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, target)
    version = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, text=True).stdout.strip()
    (directory / DESCRIPTION).write_text(json.dumps({"git": version, "tests": tests}, indent=1) + "\n")


def sizes(directory):
    """The largest parts of a bundle in words, before compression."""
    parts = sorted(((sum(file.stat().st_size for file in path.rglob("*") if file.is_file()), path.name)
                    for path in directory.iterdir() if path.is_dir()), reverse=True)
    return ", ".join(f"{name} {size / MIB:.1f} MiB" for size, name in parts[:5])


def pack(directory, archive, largest):
    """Writes the archive. Raises Failed, and leaves none, where it is larger than `largest` MiB."""
    partial = archive.with_name(archive.name + ".partial")
    with lzma.open(partial, "wb", filters=FILTERS) as file, tarfile.open(fileobj=file, mode="w|") as tar:
        for path in sorted(directory.rglob("*")):
            tar.add(path, pathlib.PurePath(TOP) / path.relative_to(directory), recursive=False)
    size = partial.stat().st_size / MIB
    if size > largest:
        partial.unlink()
        raise Failed(f"the bundle has {size:.1f} MiB, more than {largest:g}: before compression {sizes(directory)}",
                     "allow more with --largest")
    partial.replace(archive)
    return size


def make(tree, mpi, archive, largest):
    """Makes the archive of a build tree."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
        collect(tree.resolve(), mpi.resolve(), pathlib.Path(scratch))
        size = pack(pathlib.Path(scratch), archive, largest)
        print(f"{archive}: {size:.1f} MiB of at most {largest:g}; before compression {sizes(pathlib.Path(scratch))}")


def unpack(archive):
    """Unpacks an archive beside itself, unless that was done before. Returns the bundle's root."""
    with open(archive, "rb") as file:
        sha256 = hashlib.sha256(file.read()).hexdigest()
    root = archive.resolve().parent / TOP
    stamp = root / ".archive"
    if stamp.is_file() and stamp.read_text() == sha256:
        return root
    shutil.rmtree(root, ignore_errors=True)
    try:
        with tarfile.open(archive, "r:xz") as tar:
            # Newer Pythons warn without a filter, older ones do not know it.
            tar.extractall(root.parent, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    except (OSError, EOFError, lzma.LZMAError, tarfile.TarError) as problem:
        raise Failed(f"{archive} cannot be unpacked: {problem}", "copy it again") from None
    if not (root / DESCRIPTION).is_file():
        raise Failed(f"{archive} is no bundle of gpu_check", "make one with scripts/gpu_check.sh --bundle")
    stamp.write_text(sha256)
    return root
