#!/usr/bin/env python3
"""scripts/report.py over real runs, invented ones, hundreds, half-written and hostile ones.

Usage: report_test.py PROGRAM MPIEXEC [unittest arguments]
"""

import base64
import hashlib
import html.parser
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest
import urllib.parse

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent / "scripts")]
import report

import skips
import support
from lib import document
from lib.launch import mpirun
from lib.tables import read_csv, write_csv

INPUT = """
run: {output: %s}
train: {steps: 60, batch: 8, validate_every: 20}
optimizer: {algorithm: onebit_adam, lr: 0.01}
freeze: {step: 20}
workload: {kind: quadratic}
quadratic: {dimension: 500}
"""


def file_of(target):
    """The file that a link leads to, relative to the page."""
    return urllib.parse.unquote(target, errors="surrogateescape")


class Page(html.parser.HTMLParser):
    """What a browser would find in a page: elements, links, text, and cells of tables."""

    EMPTY = {"meta", "img", "br"}

    def __init__(self, text):
        super().__init__()
        self.elements, self.links, self.ids, self.texts, self.rows, self.open = [], [], set(), [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.elements.append((tag, attributes))
        if tag not in self.EMPTY:
            self.open.append(tag)
        if "id" in attributes:
            self.ids.add(attributes["id"])
        if tag == "a":
            self.links.append([attributes["href"], attributes.get("title", ""), ""])
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> where another element is open"

    def handle_data(self, data):
        self.texts.append(data)
        if "a" in self.open:
            self.links[-1][2] += data
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data

    def text(self):
        return " ".join(self.texts)


class Report(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.real = support.scratch(cls) / "real"
        for algorithm, backend, ranks in (("adam", "openmp", 1), ("adam", "openmp", 2), ("adam", "serial", 2),
                                          ("onebit_adam", "openmp", 1), ("onebit_adam", "openmp", 2)):
            cls.train(cls.real / f"{algorithm}_{backend}_{ranks}", ranks,
                      [f"optimizer.algorithm={algorithm}", f"run.backend={backend}"])

    @classmethod
    def train(cls, directory, ranks, overrides):
        directory.mkdir(parents=True)
        (directory / "input.yaml").write_text(INPUT % directory)
        subprocess.run(mpirun(ranks, support.PROGRAM, "train", directory / "input.yaml", *support.overrides(overrides),
                              mpiexec=support.MPIEXEC), check=True, stdout=subprocess.DEVNULL,
                       env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=300)

    def setUp(self):
        self.directory = support.scratch(self)

    def report(self, top, *options, expected=0):
        """Makes the page and checks what holds for every page; returns it, and what was printed."""
        done = support.run(self, [support.ROOT / "scripts/report.py", top, *options], expected, timeout=300)
        self.assertNotIn("Traceback", done.stderr)
        if expected:
            return None, done.stderr
        path = pathlib.Path(options[options.index("--output") + 1]) if "--output" in options else top / "report.html"
        page = Page(path.read_text())
        self.assertEqual(page.open, [])
        for tag, attributes in page.elements:
            self.assertIn(tag,
                          ("html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "a", "div", "table",
                                "thead", "tbody", "tr", "th", "td", "figure", "img", "figcaption", "script"))
            self.assertFalse([name for name in attributes if name.startswith("on")])
            if tag == "img":  # nothing is loaded from elsewhere
                self.assertTrue(attributes["src"].startswith("data:image/svg+xml;base64,"))
        for target, _, _ in page.links:
            if target.startswith("#"):
                self.assertIn(target[1:], page.ids)
            else:
                self.assertNotRegex(target, r"^[a-zA-Z]+:")
                self.assertTrue((path.parent / file_of(target)).is_file(), target)
        self.check_widths(page, path.read_text())
        self.check_script(page, path.read_text())
        markdown = path.with_suffix(".md").read_text()
        for target in re.findall(r"\]\(<([^>]*)>\)", markdown):
            if not target.startswith("#"):
                self.assertTrue((path.parent / file_of(target)).is_file(), target)
        return page, markdown

    def check_script(self, page, text):
        """The page runs one script, which sorts tables; its policy forbids any other, whatever the runs' names are."""
        scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
        self.assertEqual(scripts, [document.SCRIPT])
        self.assertEqual(sum(tag == "script" for tag, _ in page.elements), 1)
        policy, = (attributes["content"] for tag, attributes in page.elements
                   if attributes.get("http-equiv") == "Content-Security-Policy")
        digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
        self.assertIn(f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
                      policy)

    def check_widths(self, page, text):
        """A phone's window and A4 are narrower than tables and figures; these rules keep the page as narrow."""
        self.assertIn(("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}), page.elements)
        tables = sum(tag == "table" for tag, _ in page.elements)
        self.assertEqual(text.count('<div class="wide"><table>'), tables)
        style = text[text.index("<style>"):text.index("</style>")]
        screen, _, printed = style.partition("@media print {")
        for rule in (".wide { overflow-x: auto; }", "figure img { max-width: 100%; height: auto; }",
                     "figure { overflow-x: auto; } figure img { max-width: none; width: 44rem; }",
                     "@page { size: A4 landscape; margin: 12mm; }"):
            self.assertIn(rule, screen)
        for rule in (".wide { overflow: visible; }", "td, td:first-child { white-space: normal;",
                     "figure img { max-width: 100%;", "figure, tr { break-inside: avoid; }",
                     "thead { display: table-header-group; }"):
            self.assertIn(rule, printed)

    def test_labels_of_figures(self):
        """Long ones are on several lines, and no two look the same; marks of an axis have room."""
        longest = "onebit_adam, " + ", ".join(f"compression.key{n} value{n}" for n in range(9))
        labels = [longest + ", optimizer.lr 0.1", longest + ", optimizer.lr 0.2", "adam", "$x$", "_hidden", "n" * 300]
        short = report.shown_all(labels)
        self.assertEqual(len(set(short)), len(labels))
        self.assertEqual(short[2:5], ["adam", r"\$x\$", " _hidden"])
        for text in short:
            self.assertLessEqual(text.count("\n"), 2)
            self.assertLessEqual(max(map(len, text.split("\n"))), 50)
        self.assertIn("0.2", short[1])
        same = report.shown_all([longest + " a " + longest, longest + " b " + longest])
        self.assertEqual([text[-2:] for text in same], ["#1", "#2"])

    def test_tables_that_a_spreadsheet_saved(self):
        """A byte order mark and its line ends are read; other separators are told, and lose no other run."""
        for name in ("plain", "mark", "semicolons"):
            shutil.copytree(self.real / "adam_openmp_2", self.directory / name)
        path = self.directory / "mark/run.csv"
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
        path = self.directory / "semicolons/run.csv"
        path.write_bytes(path.read_bytes().replace(b",", b";"))
        page, _ = self.report(self.directory)
        self.assertIn("3 runs, 2 of them complete", page.text())
        rows = {row[0]: row for row in page.rows if len(row) == 3}
        self.assertIn("semicolons", rows["semicolons"][2])

    def test_quantized_gradients(self):
        shutil.copytree(self.real / "adam_openmp_2", self.directory / "plain")
        page, _ = self.report(self.directory)
        self.assertNotIn("Quantised gradients", page.texts)
        shutil.copytree(self.real / "onebit_adam_openmp_2", self.directory / "quantized")
        path = self.directory / "quantized/steps.csv"
        rows = read_csv(path)
        for row in rows:  # the variance is measured in some steps alone
            row.update(gradient_bits="1.5", pruned_share="0.75",
                       quantizer_variance="0.4" if row["validation_loss"] else "")
        write_csv(path, rows)
        resolved = path.with_name("input.resolved.yaml")
        text = resolved.read_text()
        self.assertIn("  quantization:\n    kind: none", text)
        resolved.write_text(text.replace("  quantization:\n    kind: none", "  quantization:\n    kind: fqt"))
        page, _ = self.report(self.directory)
        self.assertIn("2 runs, 2 of them complete, of 2 configurations in 1 problem", page.text())
        self.assertIn("Quantised gradients", page.texts)
        self.assertEqual([row[1:] for row in page.rows if "1.50" in row], [["1.50", "75 %", "0.40"]])

    def test_real_runs(self):
        page, markdown = self.report(self.real)
        for heading in ("Overview", "Configuration", "Results", "Loss", "Phases of a step", "Volume", "Backends",
                        "Scaling", "All runs"):
            self.assertIn(heading, page.texts)
            self.assertIn(f"# {heading}", markdown)
        self.assertNotIn("Incomplete", page.texts)
        self.assertIn("5 runs, 5 of them complete", page.text())
        self.assertIn(["machine", read_csv(self.real / "adam_openmp_2/run.csv")[0]["machine"]], page.rows)
        self.assertEqual(sum(tag == "img" for tag, _ in page.elements), 5)
        # Every link that names a column shows that column's value.
        checked = 0
        for target, title, text in page.links:
            found = re.fullmatch(r".*/run\.csv: (final_validation_loss|reduction|variance_frozen_at_step)", title)
            if not found or target.startswith("#"):
                continue
            value = float(read_csv(self.real / urllib.parse.unquote(target))[0][found[1]])
            self.assertLessEqual(abs(float(text) - value), 0.006 * max(1, abs(value)), title)
            checked += 1
        self.assertGreater(checked, 20)
        # Backends that end in the same bits say so.
        self.assertTrue(any("equal" in row for row in page.rows))

    def test_one_run(self):
        page, _ = self.report(self.real / "onebit_adam_openmp_2", "--output", self.directory / "deep/one.html",
                              "--title", "One")
        self.assertIn("1 run, 1 of them complete, of 1 configuration in 1 problem", page.text())
        self.assertIn("One", page.texts)
        self.assertNotIn("Scaling", page.texts)
        self.assertNotIn("Backends", page.texts)

    def test_half_written_runs(self):
        source = self.real / "onebit_adam_openmp_2"
        cut = self.directory / "cut"  # ended in the midst of a row
        cut.mkdir()
        text = (source / "steps.csv").read_bytes()
        end = text.index(b"\n", len(text) // 2) + 10  # some bytes into a row, whatever the lengths of the times are
        (cut / "steps.csv.partial").write_bytes(text[:end])
        shutil.copy(source / "input.resolved.yaml", cut / "input.resolved.yaml.partial")
        begun = self.directory / "begun"
        begun.mkdir()
        shutil.copy(source / "input.resolved.yaml", begun / "input.resolved.yaml.partial")
        (begun / "steps.csv.partial").write_bytes(text[:text.index(b"\n") + 1])
        again = self.directory / "again"  # whole results, and a later run that goes on
        shutil.copytree(source, again)
        shutil.copy(source / "input.resolved.yaml", again / "input.resolved.yaml.partial")
        lost = self.directory / "lost"
        lost.mkdir()
        shutil.copy(source / "run.csv", lost)
        empty = self.directory / "empty"
        empty.mkdir()
        for name in ("run.csv", "steps.csv", "profile.csv", "input.resolved.yaml"):
            (empty / name).touch()
        never = self.directory / "never"  # a cell of a sweep that has not begun
        never.mkdir()
        (never / "arguments").touch()
        shutil.copytree(source, self.directory / "whole")
        page, _ = self.report(self.directory)
        self.assertIn("7 runs, 2 of them complete", page.text())
        rows = {row[0]: row for row in page.rows if len(row) == 3}
        half = len(text[:end].splitlines()) - 2
        self.assertEqual(rows["cut"][1], f"incomplete: {half} of 60 steps")
        self.assertIn(f"the last row is cut off after {half} whole ones", rows["cut"][2])
        self.assertIn("no run.csv", rows["cut"][2])
        self.assertEqual(rows["begun"][1], "incomplete: no steps")
        self.assertIn("a later one has begun", rows["again"][2])
        self.assertEqual(rows["again"][1], "complete, and begun again")
        self.assertIn("no steps.csv", rows["lost"][2])
        self.assertIn("incomplete", rows["empty"][1])
        self.assertIn("incomplete", rows["never"][1])
        self.assertNotIn("whole", rows)

    def test_no_runs(self):
        _, said = self.report(self.directory, expected=2)
        self.assertIn("there are no runs here", said)
        self.assertIn("remedy", said)
        self.report(self.directory / "nowhere", expected=2)

    def test_hundreds_of_runs(self):
        """320 runs: 40 configurations, 8 seeds each; more than figures hold."""
        run, = read_csv(self.real / "onebit_adam_openmp_2/run.csv")
        resolved = (self.real / "onebit_adam_openmp_2/input.resolved.yaml").read_text()
        for rate in range(40):
            for seed in range(8):
                directory = self.directory / f"lr{rate}" / f"seed{seed}"
                directory.mkdir(parents=True)
                (directory / "input.resolved.yaml").write_text(re.sub(r"(?m)^( *lr:).*$", rf"\1 {(rate + 1) / 1000}",
                                                                      resolved))
                write_csv(directory / "run.csv", [{**run, "seed": seed, "final_validation_loss": rate + seed / 100}])
                write_csv(directory / "steps.csv",
                          [{"step": t, "loss": 10 / t, "bytes_sent": 100} for t in range(1, 41)])
                shutil.copy(self.real / "onebit_adam_openmp_2/profile.csv", directory)
        page, markdown = self.report(self.directory)
        self.assertIn("320 runs, 320 of them complete, of 40 configurations in 1 problem", page.text())
        self.assertIn("one colour for each algorithm", page.text())
        results = next(place for place, row in enumerate(page.rows) if row and row[0] == "configuration")
        third = page.rows[results + 3]
        self.assertIn("optimizer.lr 0.003", third[0])
        self.assertEqual(third[1:4], ["8", "2.0350", "2.0000–2.0700"])
        self.assertLess(len(markdown), 2e6)
        self.assertLess((self.directory / "report.html").stat().st_size, 5e6)

    def test_hostile_runs(self):
        """Text of files and names of directories stay text."""
        evil = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&|`[x](javascript:alert(1)) $\\frac{ _"
        directory = self.directory / "a<b>&\"'#?%41 |`_x" / "javascript:alert(1)"
        shutil.copytree(self.real / "onebit_adam_openmp_2", directory)
        shutil.copytree(self.real / "adam_openmp_2", directory.parent / "\udcff\udcfe")  # bytes that are no text
        run, = read_csv(directory / "run.csv")
        columns = [name for name in run if name not in ("input", "seed")]
        write_csv(directory / "run.csv", [{**run, **{name: evil for name in columns[:14]}, "algorithm": evil,
                                           "input": evil + ".yaml", "slurm_job_id": evil, "tokens_per_s": "1e999",
                                           "bytes_sent": "-inf", "reduction": "nan", evil: evil}])
        resolved = directory / "input.resolved.yaml"
        resolved.write_text(resolved.read_text().replace("lr: 0.01", "lr: '" + evil.replace("'", "''") + "'"))
        write_csv(directory / "profile.csv", [{"phase": "dense", "measure": "total", "mean_s": "1e400", "steps": evil},
                                              {"phase": evil, "measure": "total", "mean_s": "0x10", "steps": "1"}])
        bomb = self.directory / "bomb"
        bomb.mkdir()
        (bomb / "input.resolved.yaml").write_text(
            "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60)))
        (bomb / "run.csv").write_bytes(b"\0\xff\xfe\n\"" + b"x" * 300000)
        (bomb / "steps.csv").write_text("step,loss,bytes_sent\n1,2\n")
        (bomb / "profile.csv").write_bytes(bytes(range(256)) * 20)
        big = self.directory / "big"
        big.mkdir()
        (big / "input.resolved.yaml").write_text("x: " + "[" * 100000)
        write_csv(self.directory / "collective.csv",
                  [{"collective": evil, "logical_bytes": "1e3", "p50_s": "1", "ranks": evil,
                                                       "hosts": "<b>", "wire_bytes": "x"}])
        page, markdown = self.report(self.directory, "--title", evil)
        self.assertIn(evil, page.texts)
        self.assertIn("row 1 has 2 cells, not 3", page.text())
        self.assertNotRegex(markdown, r"(?<!\\)<(script|img)")
        self.assertNotRegex(markdown, r"(?<!\\)\[x(?<!\\)\]")
        for figure in (self.directory / "report_figures").glob("*.svg"):
            self.assertNotIn("<script", figure.read_text())


if __name__ == "__main__":
    skips.main(sys.argv[3:])
