#!/usr/bin/env python3
"""Reports the pieces that tests leave out, and sums them up.

Usage: skips.py summary FILE        the last lines of scripts/test.sh; under CI=true, status 1 for a skip not allowed
       skips.py skip PIECE REASON   a whole test that is left out; status 77, which ctest takes for a skip

Every piece that is left out is a line `test: piece<TAB>reason` of the file that the environment variable ONEBIT_SKIPS
names, if it names one. ctest gives each test its name as ONEBIT_TEST. tests/skips.hpp does the same for GoogleTest.
"""

import os
import pathlib
import re
import sys
import unittest

ELSEWHERE = "nothing is left out: "  # begins the reason of a piece that only other machines have
SKIPPED = 77  # exit status; SKIP_RETURN_CODE in tests/CMakeLists.txt
ALLOWED = pathlib.Path(__file__).with_name("allowed_skips.txt")


def report(piece, reason):
    """Reports a piece of this test that is left out; an empty `piece` is the whole test."""
    words = [os.environ.get("ONEBIT_TEST", os.path.basename(sys.argv[0])), piece]
    line = "\t".join(" ".join(text.split()) for text in (": ".join(word for word in words if word), str(reason)))
    print(f"SKIPPED {line}", file=sys.stderr, flush=True)
    if os.environ.get("ONEBIT_SKIPS"):
        with open(os.environ["ONEBIT_SKIPS"], "a", encoding="utf-8") as file:
            file.write(line + "\n")  # one write, so that tests side by side do not mix their lines


class Result(unittest.TextTestResult):
    """Results of unittest that report each skip."""

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        if not reason.startswith(ELSEWHERE):
            report(test.id().removeprefix("__main__."), reason)


def main(arguments):
    """unittest.main for the scripts of tests/: `arguments` are those behind the script's own."""
    unittest.main(argv=[sys.argv[0], *arguments], verbosity=2,
                  testRunner=unittest.TextTestRunner(resultclass=Result, verbosity=2))


def allowed():
    """Patterns of the lines of allowed_skips.txt: `pattern<TAB>why`, where the pattern is of a whole reason."""
    patterns = []
    for number, line in enumerate(ALLOWED.read_text(encoding="utf-8").splitlines(), 1):
        if line and not line.startswith("#"):
            pattern, _, why = line.partition("\t")
            if not why.strip():
                sys.exit(f"{ALLOWED}:{number}: no tab and no reason behind it; remedy: say why a machine cannot have "
                         "this")
            patterns.append(re.compile(pattern))
    return patterns


def summary(path):
    """Prints what was left out. \\returns 1 where that is not allowed on this machine, or else 0"""
    lines = sorted(set(pathlib.Path(path).read_text(encoding="utf-8").splitlines()))
    print(f"Skipped pieces: {len(lines) or 'none'}")
    patterns, refused = allowed(), 0
    for line in lines:
        piece, _, reason = line.partition("\t")
        mark = ""
        if os.environ.get("CI") == "true" and not any(pattern.fullmatch(reason) for pattern in patterns):
            refused += 1
            mark = " [not allowed: see below]"
        print(f"  {piece}: {reason}{mark}")
    if refused:
        print(f"error: {refused} of them can run on a machine of continuous integration (CI=true)\n"
              "  remedy: give the machine what the reason names; if no such machine can have it, say so in "
              "tests/allowed_skips.txt", file=sys.stderr)
    return 1 if refused else 0


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "summary":
        sys.exit(summary(sys.argv[2]))
    if len(sys.argv) == 4 and sys.argv[1] == "skip":
        report(sys.argv[2], sys.argv[3])
        sys.exit(SKIPPED)
    sys.exit(__doc__)
