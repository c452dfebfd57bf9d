#!/usr/bin/env python3
"""Retired words and phrases do not come back: comments of src, tests and scripts, and pages, are searched for them.

Usage: words_test.py SOURCE_DIRECTORY [--draw SEED]

docs/develop/design.md has the glossary. To retire a word, add a line to RETIRED: a regular expression, the folders and
files in which it has the retired meaning, and what to write instead. Case and line breaks of comments do not matter.

--draw prints ten comments of src, drawn at random, for a reader who judges whether they are plain English.
"""

import pathlib
import random
import re
import sys

EVERYWHERE = ("src", "docs", "inputs", "README.md", "CONTRIBUTING.md")
PAGES = ("docs", "inputs", "README.md", "CONTRIBUTING.md")
VECTORS = ("src/base", "src/comm", "src/compress", "src/optim", "docs/develop/design.md",
           "docs/reference/algorithms.md")

# Expression, where it counts, what to write instead.
RETIRED = [
    # Nouns for parts of a vector.
    (r"\bslots?\b", ("src/compress", "src/comm", "src/optim", "docs/reference"), "group"),
    (r"\bslices?\b", VECTORS, "range"),
    (r"\bruns? of (?:32|\d+|whole|several) (?:elements|words)\b", VECTORS, "32 elements, word"),
    (r"\bpieces? of (?:a |the )?(?:vector|message|gradient|momentum)\b", VECTORS, "block"),
    (r"\bshares? of (?:a |the |its )?(?:vector|word|message)\b", VECTORS, "range"),
    (r"\bunits? of (?:a |the )?(?:vector|word|elements)\b", VECTORS, "block"),
    # The learning-rate warm-up, and the freeze step.
    (r"\b(?:learning rate's|linear) rise\b|\brise of the learning rate\b", EVERYWHERE, "learning-rate warm-up"),
    (r"\brise (?:has ended|to the peak)\b|\bend of the rise\b|\bAfter the rise\b", EVERYWHERE, "warm-up"),
    (r"\bwarmup\.(?:steps|criterion|threshold|at_most|from)\b", EVERYWHERE, "freeze.…"),
    # The phases before and after the freeze step, and what a result is compared with.
    (r"\bcompression (?:stage|phase)\b|\bphase 2\b", EVERYWHERE, "compressed phase"),
    (r"\bAdam(?:'s)? phase\b|\bphase 1\b", EVERYWHERE, "dense phase"),
    (r"\boracles?\b|\bplain references?\b|\bserial simulations?\b", PAGES, "plain twin"),
    # A kernel's speed.
    (r"\b(?:share|part)s? of (?:the|its|their) (?:roofline|machine's own floor)\b", EVERYWHERE, "fraction of roofline"),
    (r"\bfloor_s(?:hare)?\b|\bof the floors?\b", EVERYWHERE, "fraction_of_roofline, of the roofline"),
    # Phrases that a reader must read twice.
    (r"\bthat of which\b|\bthose of which\b", EVERYWHERE, "a sentence with a subject"),
    (r"\bword is of its build\b", EVERYWHERE, "says how it was built"),
    (r"\bnowhere whole\b", EVERYWHERE, "never complete in memory"),
    (r"\bLet go of by\b", EVERYWHERE, "released by"),
    (r"\bwould else\b|\bcould else\b|\bmight else\b", EVERYWHERE, "would otherwise"),
    (r"\bwhich they do at full speed\b", EVERYWHERE, "busy-waiting"),
    (r"\bpart of what is to be\b|\bshare of what is to be\b", EVERYWHERE, "a name of the thing"),
    (r"\bsome (?:hours|commits) before\b|\bWhat was run of commit\b", EVERYWHERE, "a line of CHANGELOG.md"),
    (r"\bThe house of\b", EVERYWHERE, "floors"),
]


def comments(text: str) -> str:
    """The comments of C++ or of a script, each at its place, without the code."""
    kept = []
    for line in text.splitlines():
        found = re.search(r"(?:^|\s)(?://+[!<]*|#(?!include|if|el|end|def|pragma|un)) ?(.*)", line)
        kept.append(found[1] if found else "")
    return "\n".join(kept)


def searched(source: pathlib.Path, places) -> dict[pathlib.Path, str]:
    """Text that is searched, by file."""
    texts = {}
    for place in places:
        root = source / place
        for file in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if file.suffix in {".hpp", ".cpp", ".yaml"}:
                texts[file] = comments(file.read_text(encoding="utf-8"))
            elif file.suffix == ".md":
                texts[file] = file.read_text(encoding="utf-8")
    return texts


def errors_of(text: str, pattern: str, instead: str, name) -> list[str]:
    # A space of the expression is any white space, because a phrase may cross a line.
    found = re.finditer(pattern.replace(" ", r"\s+"), text, re.I)
    return [f"{name}:{text.count(chr(10), 0, match.start()) + 1}: '{' '.join(match[0].split())}' is retired; "
            f"write: {instead}" for match in found]


def drawn(source: pathlib.Path, seed: str, count: int = 10) -> list[str]:
    """Comments of src at random, with their places; lines of one comment stay together."""
    blocks = []
    for file, text in searched(source, ("src",)).items():
        lines = text.splitlines()
        begins = [i for i, line in enumerate(lines) if line and (i == 0 or not lines[i - 1])]
        for begin in begins:
            end = next((i for i in range(begin, len(lines)) if not lines[i]), len(lines))
            blocks.append(f"{file.relative_to(source)}:{begin + 1}: {' '.join(lines[begin:end])}")
    return random.Random(seed).sample(blocks, count)


def main() -> None:
    source = pathlib.Path(sys.argv[1])
    if sys.argv[2:3] == ["--draw"]:
        print("\n\n".join(drawn(source, sys.argv[3])))
        return
    errors, files = [], set()
    for pattern, places, instead in RETIRED:
        texts = searched(source, places)
        files |= texts.keys()
        for file, text in texts.items():
            errors += errors_of(text, pattern, instead, file.relative_to(source))

    # The search finds a phrase across two lines of a comment, and leaves code alone.
    seen = comments("/// at which the learning\n/// rate's rise has ended\nint rise = 1;  // slot\nlong slots;")
    assert len(errors_of(seen, r"\blearning rate's rise\b", "", "x")) == 1, seen
    assert len(errors_of(seen, r"\bslots?\b", "", "x")) == 1, seen

    print("\n".join(errors))
    print(f"{len(files)} files looked at, {len(errors)} errors")
    sys.exit(bool(errors) or not files)


if __name__ == "__main__":
    main()
