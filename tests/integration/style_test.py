#!/usr/bin/env python3
"""The layout of the sources: clang-format and ruff have nothing to say, lines and functions are short.

Usage: style_test.py SOURCE_DIRECTORY [unittest arguments]

clang-format comes from Debian; ruff from PyPI, where scripts/setup.sh --style puts it below ONEBIT_DEPS. Without one of
them its case is skipped.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import skips

COLUMNS, LINES = 120, 80  # most columns of a line, most lines of a function of src
TABLES = {"std::vector<Section> keys(Input& in) {"}  # functions that may be longer: the keys of the input, one by one
LAYOUT = "14"  # the version of clang-format whose layout this is; others lay out some lines in another way
CODE = {".cpp", ".hpp"}
TEXT = CODE | {".in", ".py", ".sh", ".sbatch", ".md", ".txt", ".yaml"}


def files(*folders, kinds=TEXT):
    found = [path for folder in folders for path in (ROOT / folder).rglob("*")
             if path.is_file() and (path.suffix in kinds or path.name == "onebit-sweep")]
    return sorted(path for path in found if "__pycache__" not in path.parts)


def long_lines(path):
    """Tables and links of pages may be long, and so may paragraphs of the pages that programs make."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        if re.search(r"^(<!-- )?Made by `?scripts/", text, re.M):
            return []
        text = re.sub(r"(?m)^\|.*|.*https?://\S.*", "", text)
    return [f"{path.relative_to(ROOT)}:{number}: {len(line)} columns"
            for number, line in enumerate(text.splitlines(), 1)
            if len(line) > COLUMNS]


def long_functions(text):
    """(first line, number of lines) of functions that are too long, by the layout that clang-format makes.

    A function ends with a brace at column 0 or, in a class, at column 2. It begins at the last line before with the
    same indentation that is neither a brace, a label, a comment nor for the preprocessor.
    """
    begins, found, lines = {}, [], text.splitlines()
    for number, line in enumerate(lines, 1):
        indent = len(line) - len(line.lstrip())
        if line in ("}", "  }") and number - begins.get(indent, number) >= LINES:
            found.append((begins[indent], number - begins[indent] + 1))
        elif indent in (0, 2) and not re.match(r"\s*($|#|//|\}|public:|private:|protected:)", line):
            begins[indent] = number
    return [(first, count) for first, count in found if lines[first - 1] not in TABLES]


class Style(unittest.TestCase):
    def refuse(self, errors, remedy):
        self.assertFalse(errors, f"remedy: {remedy}\n" + "\n".join(errors))

    def run_tool(self, command, remedy):
        done = subprocess.run(list(map(str, command)), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True)
        self.assertEqual(done.returncode, 0, f"remedy: {remedy}\n{done.stdout}")

    def test_clang_format(self):
        tool = shutil.which(f"clang-format-{LAYOUT}") or shutil.which("clang-format")
        if not tool:
            self.skipTest("no clang-format here: scripts/setup.sh --style installs it")
        version = subprocess.run([tool, "--version"], stdout=subprocess.PIPE, text=True).stdout
        if f"version {LAYOUT}." not in version:
            self.skipTest(f"no clang-format {LAYOUT} here, but {version.strip()}")
        paths = files("src", "tests", kinds=CODE)
        self.run_tool([tool, "--dry-run", "-Werror", *paths], f"clang-format-{LAYOUT} -i FILE …")

    def test_ruff(self):
        deps = pathlib.Path(os.environ.get("ONEBIT_DEPS", ROOT / ".deps"))
        tool = shutil.which("ruff") or shutil.which("ruff", path=str(deps / "ruff/bin"))
        if not tool:
            self.skipTest("no ruff here: scripts/setup.sh --style installs it from PyPI")
        self.run_tool([tool, "check", "--no-cache", "scripts", "tests"], "ruff check --fix scripts tests, or by hand")

    def test_lines(self):
        paths = files("src", "scripts", "tests") + files("docs", kinds={".md"})
        self.refuse([error for path in paths for error in long_lines(path)],
                    f"break lines of more than {COLUMNS} columns")

    def test_functions(self):
        self.refuse([f"{path.relative_to(ROOT)}:{first}: {count} lines" for path in files("src", kinds=CODE)
                     for first, count in long_functions(path.read_text(encoding="utf-8"))],
                    f"split functions of more than {LINES} lines")

    def test_a_long_function_is_seen(self):
        for first, head, tail in ((3, "void f(int a,\n       int b) {\n", "}\n"),
                                  (4, "struct S {\n  void f(int a,\n         int b) {\n", "  }\n};\n")):
            short, long = ("#include <a>\n\n" + head + "    g();\n" * (LINES - count) + tail for count in (3, 2))
            self.assertEqual(long_functions(short), [])
            self.assertEqual(long_functions(long), [(first, LINES + 1)])


if __name__ == "__main__":
    skips.main(sys.argv[2:])
