#!/usr/bin/env python3
"""The paper map, docs/reference/papers, has a row with a status for each item of the five sources in papers.csv:
sections, equations, algorithms, assumptions, theorems, lemmas, figures and tables, done or not.

Usage: papers_test.py SOURCE_DIRECTORY [unittest arguments]
"""

import csv
import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import skips

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
PAGES = "docs/reference/papers"
STATUS = re.compile(r"reproduced\b|predicted\b|(in part|not done): \S")


def items():
    """{source: [item]} of papers.csv."""
    found = {}
    with open(pathlib.Path(__file__).with_name("papers.csv"), newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["source"], []).append(row["item"])
    return found


def rows(text, sources):
    """{source: [(items, status, cells after the status)]} of the tables with a status, by the pages' headings."""
    found, source, status_at = {}, None, None
    for line in text.splitlines():
        if (heading := re.match(r"##? (.*)", line)) and (heading[1] in sources or line.startswith("# ")):
            source = heading[1]
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not cells:
            status_at = None
        elif status_at is None:  # a table's first line
            status_at = cells.index("status") if "status" in cells and cells[0] != "status" else -1
        elif status_at >= 0 and not set(cells[0]) <= {"-"}:
            found.setdefault(source, []).append((cells[0].split("; "), cells[status_at], cells[status_at + 1:]))
    return found


def errors_of(text, wanted):
    """What is wrong with the pages' rows, where `wanted` are the items of the sources."""
    errors, there = [], rows(text, wanted)
    for source in there.keys() | wanted.keys():
        named = [item for some, *_ in there.get(source, []) for item in some]
        errors += [f"{source}: no row of {item}" for item in wanted.get(source, []) if item not in named]
        errors += [f"{source}: {item} is not in papers.csv" for item in named if item not in wanted.get(source, [])]
        errors += [f"{source}: {item} has two rows" for item in sorted(set(named)) if named.count(item) > 1]
        for some, status, where in there.get(source, []):
            if not STATUS.match(status):
                errors.append(f"{source}: {some[0]} has the status '{status}'")
            elif status.startswith("reproduced") and not any(cell.strip("–") for cell in where):
                errors.append(f"{source}: {some[0]} is reproduced, and nothing says where")
    return errors


class Papers(unittest.TestCase):
    def test_every_item_has_a_row(self):
        wanted = items()
        self.assertEqual(len(wanted), 5)
        pages = "\n".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / PAGES).glob("*.md")))
        self.assertEqual(errors_of(pages, wanted), [])

    def test_what_is_wrong_is_seen(self):
        head = "# Paper\n\n## Part\n\n| paper | what | status | test |\n|---|---|---|---|\n"
        wanted = {"Paper": ["Figure 1", "Lemma 2"]}
        good = head + "| Figure 1 | a | reproduced | `x` |\n| Lemma 2 | b | not done: no time | – |\n"
        self.assertEqual(errors_of(good, wanted), [])
        self.assertEqual(errors_of(head + "| Figure 1; Lemma 2 | a \\| b | in part: a | – |\n", wanted), [])
        for bad, said in ((head + "| Figure 1 | a | reproduced | `x` |\n", "no row of Lemma 2"),
                          (good + "| Lemma 2 | b | predicted | – |\n", "two rows"),
                          (good + "| Lemma 3 | b | predicted | – |\n", "Lemma 3 is not in"),
                          (good.replace("not done: no time", "not done"), "Lemma 2 has the status"),
                          (good.replace("reproduced", ""), "Figure 1 has the status"),
                          (good.replace("`x`", "–"), "nothing says where"),
                          (good.replace("# Paper", "# Another"), "Paper: no row of Figure 1")):
            self.assertRegex("\n".join(errors_of(bad, wanted)), said)


if __name__ == "__main__":
    skips.main(sys.argv[2:])
