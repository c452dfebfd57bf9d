#!/usr/bin/env python3
"""Runs `onebit bench kernels` on small shapes: every kernel is there, right, and its fraction of the roofline as its columns say.
Then compares the backends with scripts/compare_backends.py.

Usage: kernels_test.py PROGRAM MPIEXEC [unittest arguments]
"""

import pathlib
import re
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import skips
import support
from lib import provenance
from support import PROGRAM

ENVIRONMENT = {**support.ENVIRONMENT, "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}
COMPARE = support.ROOT / "scripts/compare_backends.py"
INPUT = """train: {batch: 4, steps: 6, validate_every: 0, validation_batch: 4}
optimizer: {weight_decay: 0.01, bias_correction: true}
freeze: {step: 3}
data: {corpus: [corpus.txt]}
model: {preset: tiny, sequence: 24, vocabulary: 300}
bench: {smallest: 100100, largest: 100100, warmup: 0, repetitions: 1}
"""
OPTIMIZER = ["gradient_norm", "variance_norm", "adam", "momentum_compress", "compress", "residual_norm",
             "average_recompress", "decompress_update"]
LINEAR = [f"{layer}_{part}" for layer in ("qkv", "attention_output", "feed_forward_in", "feed_forward_out", "head")
          for part in ("forward", "d_input", "d_weight")]
NETWORK = [*LINEAR, "attention_forward", "attention_backward", "layer_norm_forward", "layer_norm_backward",
           "gelu_forward", "gelu_forward_subnormal", "gelu_backward", "softmax_loss"]


class Kernels(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = support.scratch(cls)
        (cls.directory / "input.yaml").write_text(INPUT)
        (cls.directory / "corpus.txt").write_text("a text to learn, of few characters. " * 300)

    def run_it(self, command, backend, *arguments, ranks=1, expected=0):
        full = [PROGRAM, *command, "input.yaml", "--set", f"run.backend={backend}", "--set", f"run.output={backend}",
                *arguments]
        return support.run(self, support.ranks_of(ranks, *full), expected, cwd=self.directory, env=ENVIRONMENT).stderr

    def kernels(self, *arguments, **options):
        self.run_it(["bench", "kernels"], *arguments, **options)
        return self.rows(arguments[0], "kernels.csv")

    def rows(self, *path):
        return support.read_csv(self.directory.joinpath(*path))

    def compare(self, *arguments, expected=0):
        return support.run(self, [sys.executable, COMPARE, *arguments, "--output", "compared"], expected,
                           cwd=self.directory).stderr

    def check(self, rows, backend, ranks, precision="fp32"):
        machine = ["triad", "copy", "fma", "gemm"] + [f"gemm_{precision}"] * (precision != "fp32")
        self.assertEqual(sorted(row["kernel"] for row in rows), sorted([*machine, *OPTIMIZER, *NETWORK]))
        for row in rows:
            rounded = row["kernel"] in LINEAR or row["kernel"].startswith("gemm_")
            self.assertEqual(row["precision"], precision if rounded else "fp32")
        for row in rows:
            value = {name: float(row[name] or "nan") for name in row
                     if name not in ("kernel", "shape", "precision", "backend", "bound", "blas", "blas_core", "git",
                                     "machine")}
            self.assertEqual((row["backend"], value["ranks"], value["repetitions"]), (backend, ranks, 1))
            self.assertEqual((value["wrong"], row["git"]), (0, provenance.program_version(PROGRAM)))
            self.assertGreaterEqual(value["checked"], ranks)
            self.assertLessEqual(value["min_s"], value["median_s"])
            self.assertLessEqual(value["median_s"], value["max_s"])
            bounds = {"memory": value["bytes"] / value["bandwidth_B_per_s"]}
            if value["peak_FLOP_per_s"] > 0:
                bounds["compute"] = value["flop"] / value["peak_FLOP_per_s"]
            self.assertEqual(row["bound"], max(bounds, key=bounds.get))
            if value["bytes"] > 0:
                self.assertAlmostEqual(value["arithmetic_intensity"] * value["bytes"], value["flop"],
                                       delta=1e-6 * value["flop"])
            else:
                self.assertEqual(row["arithmetic_intensity"], "")
            if row["kernel"] == "copy":  # moves bytes only
                rate, roofline = value["bytes"] / value["median_s"], value["bandwidth_B_per_s"]
            else:
                rate = value["flop"] / value["median_s"]
                roofline = min([value["peak_FLOP_per_s"]] * ("compute" in bounds)
                               + [value["arithmetic_intensity"] * value["bandwidth_B_per_s"]] * (value["bytes"] > 0))
            self.assertAlmostEqual(value["fraction_of_roofline"] * roofline / rate, 1, delta=1e-6)
            self.assertGreater(value["fraction_of_roofline"], 0)
        by_name = {row["kernel"]: row for row in rows}
        d = 100100
        self.assertEqual(float(by_name["adam"]["bytes"]), 28 * d)
        self.assertEqual(float(by_name["adam"]["checked"]), 3 * d * ranks)
        self.assertEqual(float(by_name["decompress_update"]["bytes"]), 12 * d + d / 8)
        rows_of_rank, hidden = 4 * 24 // ranks, 64
        self.assertEqual(float(by_name["qkv_forward"]["flop"]), 2 * rows_of_rank * hidden * 3 * hidden)
        self.assertEqual(by_name["softmax_loss"]["shape"].split("x")[1], "300")

    def test_gpt_on_two_threads(self):
        self.check(self.kernels("openmp", "--set", "model.architecture=gpt"), "openmp", 1)

    def test_rounded_factors(self):
        listing = subprocess.run([PROGRAM, "list"], env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout
        command = ["openmp", "--set", "model.precision=bf16"]
        if "bf16" in re.search("^precisions of openmp: (.*)$", listing, re.MULTILINE)[1].split():
            self.check(self.kernels(*command), "openmp", 1, "bf16")
        else:
            said = self.run_it(["bench", "kernels"], *command, expected=2)
            self.assertIn("model.precision", said)
            self.skipTest("bf16: " + re.search("bf16 cannot be used: (.*)", said)[1])

    def test_input_without_a_vocabulary(self):
        self.assertIn("model.vocabulary",
                      self.run_it(["bench", "kernels"], "openmp", "--set", "model.vocabulary=0", expected=2))

    def test_two_backends_and_their_comparison(self):
        measured = {}
        for backend in ("openmp", "serial"):
            measured[backend] = self.kernels(backend, ranks=2)
            self.check(measured[backend], backend, 2)
            self.run_it(["train"], backend, ranks=2)
        self.compare("openmp", "serial")
        page = (self.directory / "compared" / "comparison.md").read_text()
        for figure in ("phases", "losses", "kernels"):
            self.assertGreater((self.directory / "compared" / f"{figure}.png").stat().st_size, 1000)
            self.assertIn(f"({figure}.png)", page)
        # Serial is the baseline; both backends' losses are the same bits.
        losses = self.rows("compared", "losses.csv")
        self.assertEqual(len(losses), 6)
        for row, step in zip(losses, self.rows("openmp", "steps.csv")):
            self.assertEqual(float(row["openmp"]), float(step["loss"]))
            self.assertEqual(float(row["openmp_difference"]), 0)
        self.assertIn("the same bits", page)
        profiles = {backend: {(row["phase"], row["measure"]): float(row["mean_s"])
                              for row in self.rows(backend, "profile.csv")} for backend in measured}
        phases = self.rows("compared", "phases.csv")
        self.assertEqual({(row["phase"], row["measure"]) for row in phases}, profiles["serial"].keys())
        total = next(row for row in phases if (row["phase"], row["measure"]) == ("compressed", "total"))
        base, other = (profiles[backend]["compressed", "total"] for backend in ("serial", "openmp"))
        self.assertAlmostEqual(float(total["openmp_speedup"]) / (base / other), 1, delta=1e-6)
        # The harmonic mean of two shares a, b that are at most 1 is 2ab/(a+b).
        shares = {backend: {(row["kernel"], row["shape"]): min(1, float(row["fraction_of_roofline"])) for row in rows}
                  for backend, rows in measured.items()}
        compared = self.rows("compared", "kernels.csv")
        self.assertEqual(len(compared), len(measured["serial"]) - 4)
        for row in compared:
            one, other = (of[row["kernel"], row["shape"]] for of in shares.values())
            self.assertAlmostEqual(float(row["portability"]), 2 * one * other / (one + other), delta=1e-6)

        # A platform without results has portability 0; runs of other inputs and unknown directories are refused.
        self.compare("openmp", "serial", "--platforms", "openmp,serial,cuda")
        self.assertEqual({float(row["portability"]) for row in self.rows("compared", "kernels.csv")}, {0.0})
        self.run_it(["train"], "openmp", "--set", "optimizer.lr=0.01", "--set", "run.output=other", ranks=2)
        self.assertIn("optimizer.lr", self.compare("serial", "faster=other", expected=1))
        self.assertIn("kernels.csv", self.compare("nowhere", expected=1))


if __name__ == "__main__":
    skips.main(sys.argv[3:])
