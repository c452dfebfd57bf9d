#!/usr/bin/env python3
"""Runs the reduced study through scripts/study.py: fails if Adam ≈ 1-bit Adam ≪ naive compression is lost, and checks
that the page is made from what is kept, that nothing runs twice, and that a claim that does not hold is seen.

Usage: study_test.py PROGRAM MPIEXEC [unittest arguments]
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM, MPIEXEC = (os.path.abspath(sys.argv[1]), sys.argv[2]) if len(sys.argv) > 2 else ("", "")
HERE = pathlib.Path(__file__).resolve().parent
FIGURES = ("samples", "bytes", "variance", "learning_rate", "final")


def invented_text(words=40, length=60000):
    """Words of random letters, each with few followers: much to learn in 300 steps, and little that is left over."""
    state = 1

    def draw(n):
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (state >> 33) % n

    letters = "aeiouaeioubcdfghklmnprst"
    vocabulary = ["".join(letters[draw(len(letters))] for _ in range(2 + draw(6))) for _ in range(words)]
    text, word = [], 0
    for _ in range(length):
        word = (word * 7 + draw(1 + draw(12))) % words if draw(4) else draw(1 + draw(words))
        text.append(vocabulary[word])
    return " ".join(text)


class ReducedStudy(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.directory = pathlib.Path(cls.scratch.name)
        (cls.directory / "corpus.txt").write_text(invented_text())
        cls.first = cls.study(HERE / "study/reduced.yaml")

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    @classmethod
    def study(cls, path, *options):
        command = [HERE.parent.parent / "scripts/study.py", "--onebit", PROGRAM, "--mpiexec", MPIEXEC, "--check",
                   "--set", f"data.corpus=[{cls.directory / 'corpus.txt'}]", "--machine", "the test's machine",
                   "--results", cls.directory / "results", "--page", cls.directory / "page.md", *options, path]
        return subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)

    def test_a_claims_hold(self):
        self.assertEqual(self.first.returncode, 0, self.first.stdout + self.first.stderr)
        page = (self.directory / "page.md").read_text()
        for text in ("the test's machine", "NaN at step 2", "1-bit Adam is as good as Adam"):
            self.assertIn(text, page)
        for figure in FIGURES:
            image = self.directory / f"page/reduced_{figure}.png"
            self.assertEqual(image.read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
            self.assertLess(image.stat().st_size, 100e3)
            self.assertIn(f"(page/{image.name})", page)

    def test_b_complete_runs_are_not_run_again(self):
        again = self.study(HERE / "study/reduced.yaml")
        self.assertEqual(again.returncode, 0, again.stdout + again.stderr)
        self.assertIn("0 of 5 runs to do", again.stdout)

    def test_c_page_comes_from_what_is_kept(self):
        page = self.directory / "page.md"
        before = page.read_text()
        page.unlink()
        redrawn = self.study(HERE / "study/reduced.yaml", "--draw-only", "--results", self.directory / "nowhere")
        self.assertEqual(redrawn.returncode, 0, redrawn.stdout + redrawn.stderr)
        self.assertEqual(page.read_text(), before)

    def test_d_lost_ordering_is_seen(self):
        wrong = self.directory / "reduced.yaml"
        text = (HERE / "study/reduced.yaml").read_text().replace("base: ", f"base: {HERE}/study/")
        self.assertIn("run: naive, against: onebit_adam, at_least: 0.15", text)
        wrong.write_text(text.replace("run: naive, against: onebit_adam, at_least: 0.15",
                                      "run: naive, against: onebit_adam, within: 0.15"))
        seen = self.study(wrong)
        self.assertEqual(seen.returncode, 1, seen.stdout + seen.stderr)
        self.assertIn("0 of 5 runs to do", seen.stdout)
        self.assertIn("does not hold: Naive compression is worse than 1-bit Adam", seen.stdout)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
