#!/usr/bin/env python3
"""The rows of scripts/experiments/performance.py, the operations that it counts, and its page. Measures nothing.

Usage: performance_test.py SOURCE_DIRECTORY [unittest arguments]
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "scripts/experiments"), str(ROOT / "tests")]
import performance_page
import performance_peers
import skips
from lib import models
from lib.tables import read_csv, write_csv


def row(program, milliseconds, mode="", machine="this", git="0123abc", run=1, model="bert_base"):
    origin = {"git": git, "machine": machine, "runs": 1}
    return performance_page.row_of(model, program, mode, "fp32", run, ("1.0", 7, milliseconds), 460.0, origin)


class Rows(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.output = pathlib.Path(directory.name) / "performance"
        self.steps = self.output / "steps.csv"

    def page(self):
        performance_page.render(self.output)
        return self.output.with_name("performance.md").read_text()

    def test_rows_of_this_machine_alone_are_replaced(self):
        earlier = [row("onebit", 1, machine="other"), row("onebit", 2),
                   row("onebit", 3, machine="other", git="0123abc-dirty"), row("onebit", 4, machine="")]
        write_csv(self.steps, earlier)
        performance_page.replace_rows(self.steps, performance_page.COLUMNS, [row("onebit", 5)])
        found = [(line["machine"], line["median_ms"]) for line in read_csv(self.steps)]
        self.assertEqual(found, [("other", "1.00"), ("this", "5.00")])

    def test_the_ratio_is_to_the_fastest_peer_of_the_machine(self):
        rows = [row("onebit", 1000), row("torch", 1500, "eager"), row("torch", 1200, "compile"),
                row("old_torch", 1300, "eager"), row("onebit", 1000, machine="other"),
                row("torch", 900, "eager", machine="other")]
        write_csv(self.steps, rows)
        lines = [line for line in self.page().splitlines() if line.startswith("| BERT-Base")]
        self.assertEqual(len(lines), 2)
        self.assertIn("| torch 1.0 compile | 1200 |", lines[0])
        self.assertTrue(lines[0].endswith("| 1.20 |"), lines[0])
        self.assertTrue(lines[1].endswith("| 0.90 |"), lines[1])
        self.assertNotIn("–", lines[0])

    def test_a_range_is_of_several_processes(self):
        rows = [row("onebit", time, run=run) for run, time in ((1, 1000), (2, 1100))]
        write_csv(self.steps, rows + [row("torch", 2000, "eager")])
        self.assertIn("| 1050 (1000 – 1100) |", self.page())

    def test_rows_of_uncommitted_sources_are_not_shown(self):
        write_csv(self.steps, [row("onebit", 1, git="0-dirty"), row("torch", 2, "eager", git="0-dirty")])
        self.assertNotIn("| BERT-Base", self.page())

    def test_unknown_model_is_named(self):
        done = subprocess.run([ROOT / "scripts/experiments/performance.py", "measure", "--models", "bert_small,gpt5"],
                              capture_output=True, text=True, timeout=30)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no model gpt5; remedy: choose from bert_small", done.stderr)


class Operations(unittest.TestCase):
    def test_a_step_has_the_operations_of_its_kernels(self):
        # Products (m, n, k) of a BERT-Base layer, 1024 rows, and of the head, 152 rows; 3: forward, d_input, d_weight.
        layer = sum(m * n * k
                    for m, n, k in ((1024, 2304, 768), (1024, 768, 768), (1024, 3072, 768), (1024, 768, 3072)))
        attention = 2 * 8 * 12 * 128 * 128 * 64
        head = 152 * 30522 * 768 + 152 * 768 * 768
        expected = 3 * 2 * (12 * (layer + attention) + head)
        self.assertEqual(models.step_flop(models.MODELS["bert_base"]), expected)

    def test_a_rate_is_operations_over_time(self):
        found = row("onebit", 1000)
        self.assertEqual((found["gflop_per_s"], found["peak_share"]), ("558.3", "1.214"))
        self.assertEqual(row("onebit", 25, model="optimizer")["gflop_per_s"], "")

    def test_models_are_those_of_the_inputs(self):
        for name, model in models.MODELS.items():
            path = ROOT / f"inputs/performance/{name}.yaml"
            if name == "bert_large":
                path = ROOT / "inputs/bert_large_seq128.yaml"
            text = path.read_text()
            self.assertRegex(text, rf"\n  architecture: {model.architecture}\n", name)
            self.assertRegex(text, rf"\n  sequence: {model.tokens}\b", name)
            if name != "bert_large":
                self.assertRegex(text, rf"\n  batch: {model.batch}\n", name)


class Shim(unittest.TestCase):
    def test_the_library_for_mkl_compiles_and_says_yes(self):
        with tempfile.TemporaryDirectory() as directory:
            library = f"{directory}/mkl.so"
            performance_peers.compile_mkl_library(library)
            ask = f"import ctypes; print(ctypes.CDLL('{library}').mkl_serv_intel_cpu_true())"
            said = subprocess.run([sys.executable, "-c", ask], stdout=subprocess.PIPE, text=True, check=True).stdout
        self.assertEqual(said, "1\n")


if __name__ == "__main__":
    skips.main(sys.argv[2:])
