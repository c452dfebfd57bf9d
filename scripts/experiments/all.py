#!/usr/bin/env python3
"""Makes every CSV file and figure under docs/results from one commit on this machine.

parts.py lists the parts: their files, commands and needs. Parts that need an idle machine run first, the shortest ones
before the others, then those that do not. A part whose files name the program's commit already is skipped, so a call
that was interrupted goes on where it was. A part that fails leaves its files as they were, and the others go on. What a
part needs and this machine lacks is said, and the part is left out. The exit status is 1 if a part failed or lacked
something. README and some pages quote the files: integration.results says afterwards which sentences are to be changed.

The sources must be committed and the program must be theirs. --trial DIR takes any and writes below DIR.

--check shows in minutes whether the losses are this program's: it runs the shortest run of each study again
(losses_check.py).
"""

import argparse
import fnmatch
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from losses_check import check
from parts import PARTS, REMEDIES

from lib import ROOT, launch, provenance, tables

RESULTS = ROOT / "docs/results"
NEEDS = "left out: it needs "


def git(*arguments):
    return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=False)


def check_sources(version):
    """Ends the program unless the sources are committed and the program is theirs; docs/results may differ."""
    others = ["--", ".", ":(exclude)docs/results"]
    changed = git("status", "--porcelain", *others).stdout.splitlines()
    if changed:
        sys.exit(f"all: changed sources, {changed[0].strip()} among them; remedy: commit, or --trial DIR")
    if git("diff", "--quiet", version or "no-commit", "HEAD", *others).returncode != 0:
        sys.exit(f"all: the program is of {version or 'an unknown commit'} and not of HEAD; remedy: build it, or "
                 "--trial DIR")


def lacking(part, arguments):
    """What the part needs and this machine does not have, with the remedy; empty if nothing."""
    if "root" in part.needs and os.geteuid() != 0:
        return "root; remedy: sudo"
    if "python" in part.needs and not arguments.python:
        return "a Python with PyTorch; remedy: --python PROGRAM"
    return "; ".join(f"{need}; remedy: {REMEDIES[need]}" for need in part.needs
                     if need in REMEDIES and not (ROOT / need).exists())


def is_done(part, results, version):
    """True if the part's CSV files are of this program. A part without any is never done."""
    def rows(name):
        own = tables.read_csv(results / name) if (results / name).exists() else []
        return [row for row in own if row["machine"] == provenance.machine()] if part.keeps_machines else own

    return bool(part.files) and all(own and {row["git"] for row in own} == {version}
                                    for own in map(rows, part.files))


def copy(files, source, target):
    """Copies those of the files that there are."""
    for name in files:
        if (source / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, target / name)


def run(part, arguments):
    """True if all commands end with status 0. Otherwise the part's CSV files are what they were before.

    The earlier files lie in the output of runs until then, so that they come back after a SIGKILL, too.
    """
    earlier = arguments.runs / "earlier" / part.name
    if earlier.exists():
        copy(part.files, earlier, arguments.results)
    earlier.mkdir(parents=True, exist_ok=True)
    copy(part.files, arguments.results, earlier)
    for name in part.files:
        (arguments.results / name).parent.mkdir(parents=True, exist_ok=True)
    for command in part.commands:
        words = [word.format(onebit=arguments.onebit, results=arguments.results, runs=arguments.runs,
                             python=arguments.python) for word in shlex.split(command)]
        print("+", shlex.join(words), flush=True)
        options = {"cwd": ROOT}
        if words[0] == "mpirun":
            words, options["env"] = launch.in_environment(words), {"OMP_NUM_THREADS": "1", **os.environ}
        if launch.run_while_here(words, **options) != 0:
            copy(part.files, earlier, arguments.results)
            return False
    shutil.rmtree(earlier)
    return True


def in_order(parts):
    """Idle machine first, then by minutes."""
    return sorted(parts, key=lambda part: ("idle" not in part.needs, part.minutes))


def chosen(arguments):
    def named(part, patterns):
        return any(fnmatch.fnmatchcase(word, pattern) for word in (part.name, part.group) for pattern in patterns)

    for pattern in (*arguments.only, *arguments.skip):
        if not any(named(part, [pattern]) for part in PARTS):
            sys.exit(f"all: no part and no group is called '{pattern}'; remedy: --list")
    return [part for part in in_order(PARTS)
            if named(part, arguments.only or ["*"]) and not named(part, arguments.skip)]


def make(parts, arguments, version):
    """Runs the parts. \\returns [[name, outcome, minutes]]"""
    begin, outcomes = time.monotonic(), []
    for part in parts:
        start = time.monotonic()
        needed = lacking(part, arguments)
        unfinished = (arguments.runs / "earlier" / part.name).exists()
        if not unfinished and is_done(part, arguments.results, version):
            outcome = "done before"
        elif needed:
            outcome = NEEDS + needed
        elif (start - begin) / 60 + part.minutes > arguments.minutes:
            outcome = "left out: no time"
        else:
            print(f"\n=== {part.name}: about {part.minutes:.1f} minutes", flush=True)
            outcome = "done" if run(part, arguments) else "failed"
        outcomes.append([part.name, outcome, f"{(time.monotonic() - start) / 60:.1f}"])
    return outcomes


def listing(parts):
    return tables.aligned(["part", "group", "minutes", "needs", "files"], [
        [part.name, part.group, f"{part.minutes:.1f}", ", ".join(part.needs), " ".join(part.files) or "the page"]
        for part in parts], left=5) + f"\n{sum(part.minutes for part in parts):.0f} minutes"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onebit", type=launch.program, default=launch.ONEBIT, metavar="PROGRAM")
    parser.add_argument("--python", type=launch.program, metavar="PROGRAM",
                        help="with torch and deepspeed, for the parts that need it")
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN", help="parts or groups of this name")
    parser.add_argument("--skip", action="append", default=[], metavar="PATTERN")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="take the parts that fit into this time")
    parser.add_argument("--trial", type=pathlib.Path, metavar="DIR", help="write below DIR, from any sources")
    parser.add_argument("--list", action="store_true", help="run nothing, print the parts")
    parser.add_argument("--check", action="store_true", help="run a sample of the losses again and compare them")
    arguments = parser.parse_args()
    parts = chosen(arguments)
    if arguments.list:
        print(listing(parts))
        return 0
    if arguments.check:
        return check(arguments, parts, lambda part: lacking(part, arguments))
    version = provenance.program_version(arguments.onebit)
    if not arguments.trial:
        check_sources(version)
    arguments.results = (arguments.trial or RESULTS).resolve()
    arguments.runs = arguments.results / "runs" if arguments.trial else ROOT / "results"
    outcomes = make(parts, arguments, version)
    print("\n" + tables.aligned(["part", "outcome", "minutes"], outcomes, left=2))
    return 1 if any(outcome.startswith(("failed", NEEDS)) for _, outcome, _ in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
