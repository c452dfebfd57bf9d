#!/usr/bin/env python3
"""The files for the benchmark frameworks of computing centres, and the inputs of the run rules.

Usage: centres_test.py PROGRAM MPIEXEC [unittest arguments]

The regular expressions of Ramble's and JUBE's files are read without these programs and applied to the output of a
short run. They must find what its JSON file says. reframe_test.py runs ReFrame itself.
"""

import ast
import json
import pathlib
import re
import sys
import unittest
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import yaml

import skips
import support
from lib.launch import overrides
from lib.tables import read_csv

ROOT = support.ROOT
RULES = ROOT / "inputs/rules"
SHORT = {"train.steps": 20, "schedule.warmup_steps": 5, "freeze.step": 5, "train.batch": 8,
         "train.validation_batch": 16}
FIGURES = {"tokens_per_s", "step_s", "final_loss", "final_validation_loss", "bytes_sent", "reduction",
           "reduction_vs_16bit"}
# The input that a size of the run rules is, and the keys in which it may differ.
SAME = {"smoke": ("quickstart_onebit_adam.yaml", {"run.output", "train.loss_at_most", "train.target_loss"}),
        "cluster": ("bert_large_seq128.yaml",
                    {"run.output", "train.loss_at_most", "train.target_loss", "train.steps", "train.validate_every",
                     "freeze.step", "optimizer.lr", "schedule.warmup_steps", "schedule.decay", "schedule.rate",
                     "schedule.every"})}


def ramble_figures():
    """{figure: (regular expression, unit)}, and the expression of the verdict."""
    tree = ast.parse((ROOT / "packaging/ramble/applications/onebit/application.py").read_text())
    figures, verdict = {}, None
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        words = {keyword.arg: keyword.value.value for keyword in call.keywords
                 if isinstance(keyword.value, ast.Constant)}
        if call.func.id == "figure_of_merit":
            figures[call.args[0].value] = (words["fom_regex"], words["units"])
        elif call.func.id == "success_criteria":
            verdict = words["match"]
    return figures, verdict


def jube_figures():
    """The same of JUBE's file."""
    patterns = xml.etree.ElementTree.parse(ROOT / "packaging/jube/onebit.xml").iter("pattern")
    figures = {pattern.get("name"): (pattern.text, pattern.get("unit")) for pattern in patterns}
    return figures, figures.pop("validation")[0]


def flat(path):
    """{section.key: value} of an input."""
    sections = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {f"{section}.{key}": value for section, keys in sections.items() for key, value in keys.items()}


class Centres(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = support.scratch(cls)

    def train(self, bound, expected):
        """\\returns (standard output, content of the JSON file) of a short run of the size smoke"""
        figures = self.folder / "figures.json"
        settings = {**SHORT, "train.loss_at_most": bound, "run.output": self.folder / "results"}
        done = support.run(self, support.ranks_of(2, support.PROGRAM, "train", RULES / "smoke.yaml", "--json", figures,
                                                  *overrides(settings)), expected, cwd=ROOT)
        return done.stdout, json.loads(figures.read_text())

    def test_expressions_find_the_figures(self):
        output, content = self.train(bound=5, expected=0)
        for framework in (ramble_figures, jube_figures):
            with self.subTest(framework.__name__):
                figures, verdict = framework()
                self.assertLessEqual(FIGURES, figures.keys())
                for name, (expression, unit) in figures.items():
                    found = re.findall(expression, output, re.M)
                    self.assertEqual(len(found), 1, name)
                    figure = content["figures_of_merit"][name]
                    self.assertEqual(unit, figure["unit"], name)
                    self.assertAlmostEqual(float(found[0]) / figure["value"], 1, delta=1e-5, msg=name)
                self.assertEqual(len(re.findall(verdict, output, re.M)), 1)

    def test_a_failed_run_is_seen(self):
        output, content = self.train(bound=0.1, expected=1)
        self.assertFalse(content["validation"]["passed"])
        self.assertEqual(re.findall(ramble_figures()[1], output, re.M), [])
        self.assertEqual(re.findall(jube_figures()[1], output, re.M), ["FAILED"])

    def test_inputs_are_valid(self):
        for size in ("smoke", "node", "cluster"):
            support.run(self, [support.PROGRAM, "validate", RULES / f"{size}.yaml"], cwd=ROOT)

    def test_inputs_are_those_that_they_shorten(self):
        for size, (name, keys) in SAME.items():
            ours, theirs = flat(RULES / f"{size}.yaml"), flat(ROOT / "inputs" / name)
            differ = {key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)}
            self.assertEqual(differ, keys, size)

    def test_bound_of_the_loss_is_above_what_was_measured(self):
        for size in ("smoke", "node"):
            bound = flat(RULES / f"{size}.yaml")["train.loss_at_most"]
            losses = [float(row["final_validation_loss"]) for row in read_csv(ROOT / f"docs/results/{size}.csv")]
            self.assertGreaterEqual(len(losses), 5)
            self.assertLess(max(losses), bound)
            self.assertGreater(max(losses), bound - 0.1, "a bound far above them tells nothing")


if __name__ == "__main__":
    skips.main(sys.argv[3:])
