"""Where a result comes from: the program's commit, the machine, and the number of runs.

Every row of a CSV file under docs/results has these columns; tests/integration/results_test.py checks them.
"""

import os
import pathlib
import platform
import re
import sys

from lib import ROOT, launch, program_name

COLUMNS = ["git", "machine", "runs"]


def machine():
    """This machine in words, for the column `machine`: processor, cores, system. ONEBIT_MACHINE replaces the words."""
    if os.environ.get("ONEBIT_MACHINE"):
        return os.environ["ONEBIT_MACHINE"]
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""

    def field(name):
        found = re.search(rf"^{name}\s*: (.*)$", text, re.M)
        return found[1].strip() if found else ""

    flags = field("flags").split()
    words = [f"{name} {field(key)}" for name, key in (("family", "cpu family"), ("model", "model")) if field(key)]
    words += [name for flag, name in (("avx512f", "AVX-512"), ("avx512_bf16", "AVX512_BF16"), ("amx_bf16", "AMX"))
              if flag in flags]
    if "hypervisor" in flags:
        words.append("virtual machine")
    processor = (field("model name") or platform.machine()) + (f" ({', '.join(words)})" if words else "")
    try:
        cores = len(os.sched_getaffinity(0))
        release = pathlib.Path("/etc/os-release").read_text()
        system = re.search(r'^PRETTY_NAME="?([^"\n]*)', release, re.M)[1]
    except (AttributeError, OSError, TypeError):  # not Linux, or a Linux without a name
        cores, system = os.cpu_count(), platform.system()
    return f"{processor}, {cores} cores, {system}"


def check_version(version, output):
    """Returns the commit `version` for the column `git` of the file `output`, or ends the program.

    Results under docs/results come from committed sources only, so that anyone can build the program again. Elsewhere
    every version is good.
    """
    kept = (ROOT / "docs/results") in pathlib.Path(output).resolve().parents
    if kept and (not version or version.endswith("-dirty")):
        origin = f"changed sources ({version})" if version else "an unknown commit"
        sys.exit(f"{program_name()}: {output}: the program is of {origin}; remedy: commit, build again in a git "
                 "checkout, and measure again, or write to a directory outside docs/results")
    return version


def program_version(program, output=None):
    """The commit that the program `onebit` was built from, checked where it is meant for the file `output`."""
    _, text, errors = launch.output_of(program, "--version")
    if not (version := re.match(r"onebit .*\((.*)\)", text)):
        answer = (text + errors).strip().split("\n")[0]
        sys.exit(f"{program_name()}: {program} is not OneBit's program: it answers --version with '{answer}'\n"
                 "  remedy: name the program that the build made (docs/guide/build.md)")
    return check_version(version[1], output) if output else version[1]


def of_program(program, output):
    """The columns `git` and `machine` for a row of the file `output`.

    Programs call this before they measure, because it refuses results of uncommitted sources for docs/results.
    """
    return {"git": program_version(program, output), "machine": machine()}
