#!/usr/bin/env python3
"""Code that docs/*.md show is code of the repository: a block that begins with ```LANGUAGE FILE is an excerpt of FILE.

Usage: docs_test.py SOURCE_DIRECTORY
"""

import pathlib
import re
import sys

# Pages without such blocks would pass unseen.
LEAST_BLOCKS = {"extending.md": 8, "library.md": 2}


def lines_of(text: str) -> list[str]:
    """Lines without the indentation that all of them have."""
    lines = [line.rstrip() for line in text.splitlines()]
    indents = [len(line) - len(line.lstrip()) for line in lines if line]
    return [line[min(indents, default=0):] for line in lines]


def is_excerpt(block: str, file: pathlib.Path) -> bool:
    wanted, lines = lines_of(block), file.read_text(encoding="utf-8").splitlines()
    return any(lines_of("\n".join(lines[at:at + len(wanted)])) == wanted for at in range(len(lines)))


def main() -> None:
    source = pathlib.Path(sys.argv[1])
    errors, found = [], {}
    for page in sorted((source / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        for match in re.finditer(r"^```\w+ (\S+)\n(.*?)^```$", text, re.M | re.S):
            place = f"{page}:{text.count(chr(10), 0, match.start()) + 1}"
            found[page.name] = found.get(page.name, 0) + 1
            file = source / match[1]
            if not file.is_file():
                errors.append(f"{place}: there is no {match[1]}")
            elif not match[2].strip() or not is_excerpt(match[2], file):
                errors.append(f"{place}: these lines are not in {match[1]}")
    errors += [f"{page}: {found.get(page, 0)} of {least} blocks" for page, least in LEAST_BLOCKS.items()
               if found.get(page, 0) < least]
    print("\n".join(errors))
    print(f"{sum(found.values())} blocks looked at, {len(errors)} errors")
    sys.exit(bool(errors))


if __name__ == "__main__":
    main()
