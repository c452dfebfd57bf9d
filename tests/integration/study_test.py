#!/usr/bin/env python3
"""Runs the reduced study through scripts/experiments/study.py: fails if Adam ≈ 1-bit Adam ≪ naive compression is lost,
and checks that the page is made from what is kept, that nothing runs twice, and that a claim that does not hold is
seen. A study of runs without a model checks what makes a result another one, grids, tables and what is refused.

Usage: study_test.py PROGRAM MPIEXEC [unittest arguments]
"""

import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import skips
import support
from support import MPIEXEC, PROGRAM, ROOT

HERE = pathlib.Path(__file__).resolve().parent
FIGURES = ("samples", "bytes", "variance", "learning_rate", "reduction", "final")


def invented_text(words=40, length=60000):
    """Words of random letters, each with few followers: much to learn in 300 steps, and little that is left over."""
    draw = support.Draws()
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
        cls.directory = support.scratch(cls)
        (cls.directory / "corpus.txt").write_text(invented_text())
        cls.first = cls.study(HERE / "study/reduced.yaml")

    @classmethod
    def study(cls, path, *options):
        command = [ROOT / "scripts/experiments/study.py", "--onebit", PROGRAM, "--mpiexec", MPIEXEC, "--check",
                   "--set", f"data.corpus=[{cls.directory / 'corpus.txt'}]", "--machine", "the test's machine",
                   "--results", cls.directory / "results", "--page", cls.directory / "page.md", *options, path]
        return subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)

    def test_a_claims_hold(self):
        self.assertEqual(self.first.returncode, 0, self.first.stdout + self.first.stderr)
        page = (self.directory / "page.md").read_text()
        for text in ("the test's machine", "NaN at step 2", "1-bit Adam is as good as Adam"):
            self.assertIn(text, page)
        for figure in FIGURES:
            image = self.directory / f"page/reduced_{figure}.svg"
            support.check_figure(self, image)
            self.assertIn(f"(page/{image.name})", page)

    def test_b_complete_runs_are_not_run_again(self):
        again = self.study(HERE / "study/reduced.yaml")
        self.assertEqual(again.returncode, 0, again.stdout + again.stderr)
        self.assertIn("0 of 15 runs to do", again.stdout)

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
        self.assertIn("0 of 15 runs to do", seen.stdout)
        self.assertIn("does not hold: Naive compression is worse than 1-bit Adam", seen.stdout)


class Results(unittest.TestCase):
    """Runs of milliseconds: which results count as complete, what grids and tables make, and what is refused."""

    STUDY = """
title: Quadratic
base: input.yaml
seeds: [1, 2, 3]
runs:
  state: {label: Adam, set: {optimizer.algorithm: adam, run.dump_parameters: state.h5}}
  from_state: {set: {optimizer.algorithm: adam, freeze.from: "{state}/state.h5"}}
"""

    def setUp(self):
        self.directory = support.scratch(self)
        self.write("input.yaml",
                   "workload: {kind: quadratic}\nquadratic: {dimension: 64}\ntrain: {steps: 4, batch: 4}\n")
        self.write("quadratic.yaml", self.STUDY)
        self.program = self.write("onebit", f'#!/bin/sh\nexec "{PROGRAM}" "$@"\n')

    def write(self, name, text):
        path = self.directory / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def study(self, *options, page="page.md"):
        command = [ROOT / "scripts/experiments/study.py", "--onebit", self.program, "--mpiexec", MPIEXEC, "--ranks",
                   "1", "--results", self.directory / "results", "--page", self.directory / page, *options,
                   self.directory / "quadratic.yaml"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        return done.returncode, done.stdout + done.stderr

    def runs_to_do(self, *options):
        status, said = self.study(*options)
        self.assertEqual(status, 0, said)
        return said.splitlines()[0]

    def test_a_study_takes_from_the_one_that_it_is_like_what_it_does_not_give(self):
        self.write("other.yaml", self.STUDY)
        self.write("quadratic.yaml", "title: Noise\nlike: other.yaml\nset: {quadratic.noise: 0.1}\nseeds: [4, 5]\n")
        self.assertEqual(self.runs_to_do(), "4 of 4 runs to do")
        rows = support.read_csv(self.directory / "page/quadratic_runs.csv")
        self.assertEqual({(row["run"], row["seed"]) for row in rows},
                         {(run, seed) for run in ("state", "from_state") for seed in "45"})
        self.assertTrue(all("quadratic.noise=0.1" in row["settings"] for row in rows))

    def rows(self):
        return support.read_csv(self.directory / "page/quadratic_runs.csv")

    def test_another_program_runs_again(self):
        self.assertEqual(self.runs_to_do(), "6 of 6 runs to do")
        self.assertEqual(self.runs_to_do(), "0 of 6 runs to do")
        before = {row.get("program") for row in self.rows()}
        self.program.write_text(self.program.read_text() + "# another one\n")
        # Rows of the old program stay until their runs have been made again, and the CSV tells which is which.
        self.assertEqual(self.runs_to_do("--only", "other/state"), "0 of 6 runs to do")
        self.assertEqual(self.runs_to_do("--only", "quadratic/state", "--only", "other/state"), "3 of 6 runs to do")
        rows = self.rows()
        self.assertEqual(len(rows), 6)
        self.assertEqual({row.get("program") for row in rows if row["run"] == "from_state"}, before)
        self.assertFalse({row.get("program") for row in rows if row["run"] == "state"} & before)
        self.assertEqual(self.runs_to_do(), "3 of 6 runs to do")
        self.assertEqual(self.runs_to_do(), "0 of 6 runs to do")

    def test_two_names_of_a_run_run_once(self):
        self.write("quadratic.yaml", self.STUDY.partition("runs:")[0] + """
runs:
  adam: {set: {optimizer.algorithm: adam, optimizer.lr: 1e-2}}
grids:
  adam_grid: {seeds: [1], set: {optimizer.algorithm: adam}, rates: [1e-2, 1e-1]}
""")
        calls = self.directory / "calls"
        self.program.write_text(f'#!/bin/sh\ncase $1 in train) echo >>"{calls}";; esac\nexec "{PROGRAM}" "$@"\n')
        self.assertEqual(self.runs_to_do("--cores", "1"), "5 of 5 runs to do")
        self.assertEqual(len(calls.read_text()), 4)
        first, *_, copied, _ = self.rows()
        self.assertEqual((first.pop("run"), copied.pop("run")), ("adam", "adam_grid_1e_2"))
        self.assertEqual((first.pop("runs"), copied.pop("runs")), ("3", "1"))
        self.assertEqual({**first, "settings": ""}, {**copied, "settings": ""})
        self.assertEqual(self.runs_to_do(), "0 of 5 runs to do")

    def test_other_data_runs_again(self):
        corpus = self.write("corpus.txt", "to be or not to be, that is the question\n" * 20)
        self.write("input.yaml", f"""
train: {{steps: 4, batch: 4, validation_batch: 4}}
model: {{layers: 1, hidden: 8, heads: 1, feed_forward: 8, positions: 4, sequence: 4}}
data: {{corpus: [{corpus}]}}
""")
        self.assertEqual(self.runs_to_do(), "6 of 6 runs to do")
        self.assertEqual(self.runs_to_do(), "0 of 6 runs to do")
        corpus.write_text("whether 'tis nobler in the mind to suffer\n" * 20)
        self.assertEqual(self.runs_to_do(), "6 of 6 runs to do")
        self.assertIn("corpus.txt (20 lines, ", self.rows()[0]["data"])

    def test_what_begins_with_another_run_is_run_again_with_it(self):
        self.runs_to_do()
        (self.directory / "results/quadratic/state/seed2/study.csv").unlink()
        self.assertEqual(self.runs_to_do(), "2 of 6 runs to do")

    def test_runs_begin_with_the_same_seed_of_another_study(self):
        self.write("first.yaml", self.STUDY)
        self.write("quadratic.yaml", self.STUDY.replace("{state}", "{first/state}"))
        self.assertEqual(self.runs_to_do(self.directory / "first.yaml"), "12 of 12 runs to do")
        for row in (row for row in self.rows() if row["run"] == "from_state"):
            resolved = self.directory / f"results/quadratic/from_state/seed{row['seed']}/input.resolved.yaml"
            self.assertIn(f"results/first/state/seed{row['seed']}/state.h5", resolved.read_text())
        (self.directory / "results/first/state/seed2/study.csv").unlink()
        self.assertEqual(self.runs_to_do(self.directory / "first.yaml"), "3 of 12 runs to do")

    def test_claims_on_two_seeds_are_refused(self):
        claim = "claims:\n  - {text: It is as good, run: from_state, against: state, within: 100}\n"
        self.write("quadratic.yaml", self.STUDY.replace("from_state: {", "from_state: {seeds: [2, 3, 4], ") + claim)
        status, said = self.study()
        self.assertEqual(status, 1, said)
        self.assertIn("rests on 2 seeds", said)
        self.assertFalse((self.directory / "results").exists())
        self.write("quadratic.yaml", self.STUDY + claim)
        self.assertEqual(self.runs_to_do("--check"), "6 of 6 runs to do")

    def test_what_a_study_does_not_know_is_refused_before_anything_runs(self):
        figure = "figures: {f: {kind: final, runs: [state], caption: C}}\n"
        claim = "claims:\n  - {text: T, run: from_state, against: state, within: 1}\n"
        table = ("tables: {t: {caption: C, rows: {a: {columns: [b]}}, columns: {b: {set: {train.steps: 5}}}, "
                 "beside: [state]}}\n")
        self.write("quadratic.yaml", self.STUDY + figure + claim + table)
        self.assertIn("0 of 9 runs to do", self.study("--only", "none")[1])
        self.write("quadratic.yaml", self.STUDY.replace("seeds: [1, 2, 3]", "seeds: [1, 2e1]\nranks: 1e0"))
        self.assertIn("0 of 4 runs to do", self.study("--only", "none")[1])
        self.write("quadratic.yaml", self.STUDY + figure + claim + table)
        for old, new, what in (
                ("runs:\n", "run:\n", ":5:1: unknown key 'run' in the study"),
                ("base: input.yaml\n", "", ": base is missing in the study"),
                ("base: input", "base: no", ":3:7: there is no file no.yaml"),
                ("title: Quadratic", "like: other.yaml", ":2:7: there is no file other.yaml"),
                ("seeds: [1, 2, 3]", "seeds: 123", ":4:8: seeds is not a list"),
                ("seeds: [1, 2, 3]", "seeds: [1, x]", ":4:12: seeds has to be an integer"),
                ("seeds: [1, 2, 3]", "seeds: [1, 2, 3]\nranks: two", ":5:8: the study.ranks has to be an integer"),
                ("label: Adam, set", "label: Adam, sets", ":6:24: unknown key 'sets' in runs.state"),
                ("optimizer.algorithm: adam, run", "algorithm: adam, run",
                 ":6:30: 'algorithm' in runs.state.set is not a key of the input"),
                ("run.dump_parameters", "run.seed", ":6:57: run.seed is given by study.py itself"),
                ("kind: final", "kind: pie", ":8:21: there is no figure of kind 'pie'"),
                ("kind: final, ", "", ":8:14: kind is missing in figures.f"),
                ("runs: [state], c", "runs: state, c", ":8:34: figures.f.runs is not a list"),
                ("runs: [state], c", "runs: [start], c", ": figures names 'start', and there is no such run"),
                ("within: 1", "at_least: 0, within: 1", ":10:5: a claim asks 2 of within, at_most, at_least"),
                ("within: 1", "within: one", ":10:56: within of a claim is not a number"),
                ("within: 1", "within: 1, of: loss", ":10:63: a claim is of no column 'loss'"),
                ("against: state", "against: start", ": the claim 'T' names 'start', and there is no such run"),
                ("columns: [b]", "columns: [c]", ":11:46: tables.t has no column 'c'"),
                ("beside: [state]", "beside: [start]", ": tables names 'start', and there is no such run"),
                ("title: Quadratic", "like: quadratic.yaml", ":2:7: quadratic.yaml is like itself"),
                ("claims:\n  - {", "claims:\n  {", ":10:3: claims is not a list"),
                ("against: state, w", "against: [state], w", ":10:41: the value of against of a claim is neither"),
                ("title: Quadratic", "title: [", "not YAML")):
            with self.subTest(new):
                text = self.STUDY + figure + claim + table
                self.assertIn(old, text)
                self.write("quadratic.yaml", text.replace(old, new))
                status, said = self.study()
                self.assertEqual(status, 2, said)
                self.assertIn(f"quadratic.yaml{what}" if what[0] == ":" else what, said)
                self.assertIn("remedy: ", said)
        self.assertFalse((self.directory / "results").exists())

    def test_uncommitted_programs_make_no_results_of_the_project(self):
        self.program.write_text('#!/bin/sh\necho "onebit 0.1.0 (abcdef0-dirty)"\n')
        page = ROOT / "docs/results/never_made.md"
        status, said = self.study(page=page)
        self.assertEqual(status, 1, said)
        self.assertIn("abcdef0-dirty", said)
        self.assertFalse(page.exists() or page.with_suffix("").exists())

    def test_grids_and_tables(self):
        self.write("quadratic.yaml", self.STUDY + """
grids:
  best: {label: SGD, set: {optimizer.algorithm: sgd}, rates: [1e-3, 1e-2, 1e-1]}
tables:
  grid:
    caption: Which scale?
    set: {optimizer.algorithm: double_squeeze, optimizer.lr: 1e-2}
    rows:
      sign: {label: sign, set: {compression.compressor: sign}}
      nbit: {label: 4 bits, set: {compression.compressor: nbit}, columns: [chunk], seeds: [1, 2]}
    columns:
      chunk: {label: a chunk, set: {compression.group: chunk}}
      n32: {label: 32 elements on two ranks, set: {compression.group: 32}, ranks: 2}
    beside: [best]
figures:
  learning_rate: {kind: learning_rate, runs: [best_*], caption: Rates.}
  ranks: {kind: ranks, runs: [grid_*], caption: Ranks.}
claims:
  - {text: The best rate is better, run: best, against: best_1e_3, at_most: -1e-9}
""")
        self.assertEqual(self.runs_to_do("--check"), "23 of 23 runs to do")
        page = (self.directory / "page.md").read_text()
        loss = {name: sum(float(row["final_validation_loss"]) for row in self.rows() if row["run"] == name) / 3
                for name in ("best_1e_1", "grid_sign_n32")}
        self.assertIn(f"| SGD | 0.001, 0.01, 0.1 | 0.1, the grid's edge | {loss['best_1e_1']:.3f} (", page)
        sign = next(line for line in page.splitlines() if line.startswith("| sign |"))
        self.assertIn(f"{loss['grid_sign_n32']:.3f} (", sign.split("|")[3])
        nbit = next(line for line in page.splitlines() if line.startswith("| 4 bits |"))
        self.assertEqual(nbit.split("|")[3], " – ")
        self.assertIn(f"For comparison, SGD, γ = 1e-1: {loss['best_1e_1']:.3f} (", page)
        self.assertEqual({row["runs"] for row in self.rows() if row["run"] != "grid_nbit_chunk"}, {"3"})
        self.assertEqual([row["runs"] for row in self.rows() if row["run"] == "grid_nbit_chunk"], ["2", "2"])
        self.assertEqual({row["run"] for row in self.rows() if row["ranks"] == "2"}, {"grid_sign_n32"})
        figure = self.directory / "page/quadratic_ranks.svg"
        support.check_figure(self, figure)
        for line in ("sign", "4 bits"):  # the rows' labels, beside the outlines of their letters
            self.assertIn(f"<!-- {line} -->", figure.read_text())


if __name__ == "__main__":
    skips.main(sys.argv[3:])
