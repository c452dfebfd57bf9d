"""The files that a run leaves in its directory (run.output), however far it came."""

import math
import os
import pathlib
import subprocess
import sys
import tempfile

from lib import ROOT, launch, program_name, require
from lib.tables import number, read_rows

require({"yaml": "PyYAML"})
import yaml  # noqa: E402

LONGEST_INPUT = 1 << 20  # bytes; the program refuses longer ones too


def flat(sections, prefix=""):
    """Yields (section.key, value) of sections, in which other sections may lie."""
    for name, value in sections.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def as_text(item):
    """The map of texts that an item of a list may be, as one text; anything else as it is."""
    if isinstance(item, dict) and all(isinstance(value, str) for value in item.values()):
        return "{" + ", ".join(f"{key}: {value}" for key, value in item.items()) + "}"
    return item


def read_keys(path):
    """{section.key: value as written, or list of values} of a resolved input. Raises ValueError where it is none."""
    if path.stat().st_size > LONGEST_INPUT:
        raise ValueError("longer than 1 MiB")
    return keys_in(path.read_text(encoding="utf-8-sig", errors="replace"))


def keys_in(text):
    """The same of its text."""
    try:
        given = yaml.load(text, yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error).splitlines()[0]) from None
    if not isinstance(given, dict) or not all(isinstance(section, dict) for section in given.values()):
        raise ValueError("no sections of keys")
    values = {key: [as_text(item) for item in value] if isinstance(value, list) else value
              for key, value in flat(given)}
    for key, value in values.items():
        if not all(isinstance(item, str) for item in (value if isinstance(value, list) else [value])):
            raise ValueError(f"{key} is neither a value nor a list of values")
    return values


def in_one_text(keys):
    """{section.key: value}, where a list is one text."""
    return {key: f"[{', '.join(value)}]" if isinstance(value, list) else value for key, value in keys.items()}


def read_input(text):
    """{section.key: value} of the text of a resolved input."""
    return in_one_text(keys_in(text))


class Run:
    """One run's rows and resolved input.

    Files under their own names belong to a run that ended well. Names that end in `.partial` belong to a run that goes
    on or ended early. Rows come from the first kind where it exists.
    """

    FILES = ("run.csv", "steps.csv", "profile.csv", "input.resolved.yaml")

    def __init__(self, directory):
        self.directory = directory
        self.problems = []
        self.paths = {name: path for name in self.FILES if (path := self._find(name))}
        self.run = next(iter(self._rows("run.csv")), {})
        self.steps, self.profile = self._rows("steps.csv"), self._rows("profile.csv")
        self.keys = {}  # as read_keys
        if path := self.paths.get("input.resolved.yaml"):
            try:
                self.keys = read_keys(path)
            except (OSError, ValueError) as error:
                self.problems.append(f"{path.name}: {error}")
        self.input = in_one_text(self.keys)
        self.unfinished = sorted(path.name for path in directory.glob("*.partial"))
        # A whole run.csv may be an earlier run's.
        self.complete = bool(self.run) and "input.resolved.yaml.partial" not in self.unfinished

    @classmethod
    def is_one(cls, names):
        """True when a directory that holds files of these names is a run's."""
        return any(name in names or f"{name}.partial" in names for name in cls.FILES)

    def _find(self, name):
        return next((path for path in (self.directory / name, self.directory / f"{name}.partial") if path.is_file()),
                    None)

    def _rows(self, name):
        if name not in self.paths:
            self.problems.append(f"no {name}")
            return []
        rows, problem = read_rows(self.paths[name])
        if problem:
            self.problems.append(f"{self.paths[name].name}: {problem}")
        return rows

    def steps_done(self):
        value = number(self.steps[-1].get("step")) if self.steps else 0
        return int(value) if math.isfinite(value) else 0

    def steps_wanted(self):
        value = number(self.input.get("train.steps"))
        return int(value) if math.isfinite(value) else 0


def run_in(directory, ranks, onebit, source, settings):
    """The Run of `onebit train` on ranks of this machine, one thread each, with its files in this directory. A run that
    fails ends the script."""
    command = launch.mpirun(ranks, onebit, "train", source,
                            *launch.overrides(settings), "--set", f"run.output={directory}")
    done = subprocess.run(command, check=False, cwd=ROOT, stdout=subprocess.DEVNULL,
                          env={"OMP_NUM_THREADS": "1", **os.environ})
    if done.returncode != 0:
        sys.exit(f"{program_name()}: `onebit train {source}` on {ranks} rank(s) failed, see above")
    return Run(pathlib.Path(directory))


def run_here(*run):
    """The Run of the same arguments after the directory. Its files are not kept."""
    with tempfile.TemporaryDirectory() as directory:
        return run_in(directory, *run)
