"""Starts programs: `mpirun` on this machine, and overrides of an input's keys."""

import argparse
import contextlib
import ctypes
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

from lib import ROOT, program_name, tables

ONEBIT = str(ROOT / "build/openmp/onebit")


def program(name):
    """The name of a program as an absolute path, unless it is to be found on PATH: the type of an option."""
    return os.path.abspath(name) if os.path.exists(name) else name


def output_of(onebit, *arguments):
    """What the program prints: (status, output, errors). Ends the script where it does not start."""
    try:
        done = subprocess.run([onebit, *arguments], check=False, capture_output=True, text=True, cwd=ROOT)
    except OSError as error:
        sys.exit(f"{program_name()}: {onebit}: {error.strerror}\n  remedy: build the program (docs/guide/build.md), or "
                 "name another one with --onebit")
    return done.returncode, done.stdout, done.stderr


def path(text):
    """A path as it stands: the type of an option. A shell replaces ~ and $NAME, but not ~ behind an equals sign."""
    if re.match("~", text) or re.search(r"\$[A-Za-z_{]", text):
        raise argparse.ArgumentTypeError(f"'{text}' holds ~ or $, which only a shell replaces: write the whole path")
    return pathlib.Path(text)


def overrides(settings):
    """{section.key: value}, or a list of `section.key=value`, as options of `onebit`."""
    pairs = (f"{key}={value}" for key, value in settings.items()) if isinstance(settings, dict) else settings
    return [word for pair in pairs for word in ("--set", pair)]


def in_environment(command):
    """The command in the environment that a local mpirun needs in a container or on a laptop (environment.sh).

    A site's own launcher takes no harm from it.
    """
    return ["bash", "-c", '. "$0" && exec "$@"', str(ROOT / "scripts/environment.sh"), *map(str, command)]


def mpirun(ranks, *command, mpiexec="mpirun"):
    return in_environment([mpiexec, "-n", ranks, *command])


@contextlib.contextmanager
def own_files(environment):
    """The environment with a TMPDIR that is removed at the end. Programs with Open MPI that start or end at once trip
    over each other's files in a shared one."""
    with tempfile.TemporaryDirectory(prefix="onebit.") as directory:
        yield {**environment, "TMPDIR": directory}


def run_while_here(command, **options):
    """The exit status of a command, which gets SIGTERM if this process ends before it does, even by SIGKILL."""
    set_option, parent_death_signal = ctypes.CDLL(None).prctl, 1  # PR_SET_PDEATHSIG of linux/prctl.h
    return subprocess.run(command, preexec_fn=lambda: set_option(parent_death_signal, signal.SIGTERM),
                          **options).returncode


def steps_of(command, settings, env):
    """The rows of steps.csv of a run of `onebit train`, whose files are not kept."""
    with tempfile.TemporaryDirectory() as directory:
        settings = {**settings, "run.output": directory}
        subprocess.run([*command, *overrides(settings)], check=True, cwd=ROOT, stdout=subprocess.DEVNULL, env=env)
        return tables.read_csv(f"{directory}/steps.csv")
