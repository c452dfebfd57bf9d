"""What runs leave in their directories, where results come from, and how both are shown: shared by all scripts."""

import csv
import importlib
import math
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Okabe and Ito's palette, which colour-blind readers can tell apart; yellow is left out: too light for a line.
COLORS = ["#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]
DASHES = ["-", "--", ":"]

LONGEST_INPUT = 1 << 20  # bytes; the program refuses longer ones too


def require(program, packages):
    """Ends the program with a remedy where modules are missing; `packages` is {module: its name for people}."""
    try:
        for module in packages:
            importlib.import_module(module)
    except ImportError as missing:
        # Debian's packages belong to Debian's Python, which another one on PATH may hide.
        debian = "/usr/bin/python3"
        if os.path.exists(debian) and not os.path.samefile(debian, sys.executable):
            os.execv(debian, [debian, *sys.argv])
        debian_names = " ".join(f"python3-{name.lower().replace('py', '', 1)}" for name in packages.values())
        sys.exit(f"{program}: {missing}. Install {' and '.join(packages.values())} (Debian: {debian_names})")


# --- numbers and text ---------------------------------------------------------


def number(text):
    """The number in a cell; NaN where it is empty or none."""
    try:
        return float(text)
    except (TypeError, ValueError):
        return math.nan


def mean(values):
    values = list(values)
    return sum(values) / len(values) if values else math.nan


def with_unit(count):
    """Bytes with a decimal prefix."""
    if not math.isfinite(count):
        return ""
    power = min(max(0, int(math.log10(max(count, 1))) // 3), 4)
    return f"{count / 1000 ** power:.3g} {['B', 'kB', 'MB', 'GB', 'TB'][power]}"


def table(header, rows):
    """A table in Markdown."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def with_range(values, digits=4):
    """The median, and behind it the least and greatest value where they differ as they are printed."""
    least, middle, most = (f"{value:.{digits}g}" for value in (min(values), statistics.median(values), max(values)))
    return middle if least == most else f"{middle} ({least} – {most})"


def style(place):
    """Colour and dashes of the line at this place of a figure."""
    return {"color": COLORS[place % len(COLORS)], "linestyle": DASHES[place // len(COLORS) % len(DASHES)]}


# --- files --------------------------------------------------------------------


def read_csv(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def read_rows(path):
    """(rows, what is wrong with the file in words or ""): of a broken file, the rows before the break."""
    rows, header = [], None
    try:
        with open(path, newline="", encoding="utf-8", errors="replace") as file:
            last_line = ""

            def lines():
                nonlocal last_line
                for last_line in file:
                    yield last_line.replace("\0", "�")

            for cells in csv.reader(lines()):
                if not last_line.endswith("\n"):
                    return rows, f"the last row is cut off after {len(rows)} whole ones" if header else "no whole line"
                if header is None:
                    header = cells
                elif len(cells) != len(header):
                    return rows, f"row {len(rows) + 1} has {len(cells)} cells, not {len(header)}"
                else:
                    rows.append(dict(zip(header, cells)))
    except (OSError, csv.Error) as error:
        return rows, str(error)
    return rows, "" if rows else "no rows"


def write_csv(path, columns, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with open(partial, "w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    partial.replace(path)


def read_input(path):
    """{section.key: value as written} of a resolved input; lists as [a, b]. Raises ValueError where it is none."""
    import yaml
    if path.stat().st_size > LONGEST_INPUT:
        raise ValueError("longer than 1 MiB")
    try:
        given = yaml.load(path.read_text(errors="replace"), yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error).splitlines()[0]) from None
    if not isinstance(given, dict) or not all(isinstance(section, dict) for section in given.values()):
        raise ValueError("no sections of keys")
    values = {}
    for section, keys in given.items():
        for key, value in keys.items():
            if isinstance(value, list) and all(isinstance(item, str) for item in value):
                value = f"[{', '.join(value)}]"
            if not isinstance(value, str):
                raise ValueError(f"{section}.{key} is neither a value nor a list of values")
            values[f"{section}.{key}"] = value
    return values


# --- where results come from --------------------------------------------------

# Every CSV file under docs/results says in each row which commit was measured, on which machine, and how many runs or
# repetitions the row's numbers come from, under these names. tests/integration/results_test.py checks them.
PROVENANCE = ["git", "machine", "runs"]


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
    except (AttributeError, OSError, TypeError):  # no Linux, or one that does not say which
        cores, system = os.cpu_count(), platform.system()
    return f"{processor}, {cores} cores, {system}"


def check_version(version, output):
    """The commit `version`, for the column `git` of the file `output`; ends the program where it names no commit.

    Under docs/results only a program of committed sources counts: anyone must be able to build it again. Elsewhere
    every version does.
    """
    if (ROOT / "docs/results") in pathlib.Path(output).resolve().parents and (not version or version.endswith("-dirty")):
        sys.exit(f"{os.path.basename(sys.argv[0])}: {output}: the program is of "
                 f"{f'changed sources ({version})' if version else 'an unknown commit'}; remedy: commit, build again in "
                 "a git checkout, and measure again, or write to a directory outside docs/results")
    return version


def program_version(program, output):
    """The commit that the program `onebit` was built from, as `check_version` allows it for the file `output`."""
    text = subprocess.run([program, "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout
    return check_version(re.search(r"\((.*)\)", text)[1], output)


def provenance(version, output, runs=1):
    """{column: value} of PROVENANCE for a row of the file `output`."""
    return dict(zip(PROVENANCE, (check_version(version, output), machine(), runs)))


class Run:
    """What a run left in its directory, however far it came.

    Files under their own names belong to a run that ended well; those that end in `.partial` to one that goes on or
    ended early. Rows come from the first, where there are any.
    """

    FILES = ("run.csv", "steps.csv", "profile.csv", "input.resolved.yaml")

    def __init__(self, directory):
        self.directory = directory
        self.problems = []
        self.paths = {name: path for name in self.FILES if (path := self._find(name))}
        self.run = next(iter(self._rows("run.csv")), {})
        self.steps, self.profile = self._rows("steps.csv"), self._rows("profile.csv")
        self.input = {}
        if path := self.paths.get("input.resolved.yaml"):
            try:
                self.input = read_input(path)
            except (OSError, ValueError) as error:
                self.problems.append(f"{path.name}: {error}")
        self.unfinished = sorted(path.name for path in directory.glob("*.partial"))
        # A whole run.csv may be an earlier run's.
        self.complete = bool(self.run) and "input.resolved.yaml.partial" not in self.unfinished

    @classmethod
    def is_one(cls, names):
        """Whether a directory that holds files of these names is a run's."""
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


def in_environment(command):
    """The command as a local mpirun needs it in a container or on a laptop; a site's own launcher takes no harm."""
    return ["bash", "-c", '. "$0" && exec "$@"', str(ROOT / "scripts/environment.sh"), *map(str, command)]


def file_name(text):
    """The text with every character that a file name should not have replaced."""
    return re.sub(r"[^A-Za-z0-9.=+-]+", "_", text)
