#!/usr/bin/env python3
"""Runs `onebit bench kernels` on small shapes: every kernel is there, right, and its floor is what its columns say.

Usage: kernels_test.py PROGRAM MPIEXEC [unittest arguments]
"""

import csv
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM, MPIEXEC = (os.path.abspath(sys.argv[1]), sys.argv[2]) if len(sys.argv) > 2 else [""] * 2
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive", "OMPI_ALLOW_RUN_AS_ROOT": "1",
               "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}
INPUT = """train: {batch: 4}
optimizer: {weight_decay: 0.01, bias_correction: true}
model: {preset: tiny, sequence: 24, vocabulary: 300}
bench: {smallest: 1001, largest: 100100, factor: 100, warmup: 0, repetitions: 2}
"""
OPTIMIZER = ["gradient_norm", "variance_norm", "adam", "momentum_compress", "compress", "residual_norm",
             "average_recompress", "decompress_update"]
LINEAR = [f"{layer}_{part}" for layer in ("qkv", "attention_output", "feed_forward_in", "feed_forward_out", "head")
          for part in ("forward", "d_input", "d_weight")]
NETWORK = [*LINEAR, "attention_forward", "attention_backward", "layer_norm_forward", "layer_norm_backward",
           "gelu_forward", "gelu_backward", "softmax_loss"]


class Kernels(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.directory = pathlib.Path(scratch.name)
        (self.directory / "input.yaml").write_text(INPUT)

    def run_it(self, *arguments, ranks=1, expected=0):
        done = subprocess.run([MPIEXEC, "-n", str(ranks), "--oversubscribe", PROGRAM, "bench", "kernels", "input.yaml",
                               "--set", "run.output=out", *arguments], cwd=self.directory, env=ENVIRONMENT,
                              timeout=240, capture_output=True, text=True)
        self.assertEqual(done.returncode, expected, done.stdout + done.stderr)
        if expected != 0:
            return done.stderr
        with open(self.directory / "out" / "kernels.csv") as file:
            return list(csv.DictReader(file))

    def check(self, rows, backend, ranks):
        self.assertEqual(sorted(row["kernel"] for row in rows),
                         sorted(["triad", "copy", "fma", "gemm", *OPTIMIZER, *OPTIMIZER, *NETWORK]))
        for row in rows:
            value = {name: float(row[name] or "nan") for name in row
                     if name not in ("kernel", "shape", "backend", "bound", "blas", "blas_core")}
            self.assertEqual((row["backend"], value["ranks"], value["repetitions"]), (backend, ranks, 2))
            self.assertEqual(value["wrong"], 0)
            self.assertGreaterEqual(value["checked"], ranks)
            self.assertLessEqual(value["min_s"], value["median_s"])
            self.assertLessEqual(value["median_s"], value["max_s"])
            floors = {"memory": value["bytes"] / value["bandwidth_B_per_s"]}
            if value["flop"] > 0:
                floors["compute"] = value["flop"] / value["peak_FLOP_per_s"]
            self.assertEqual(row["bound"], max(floors, key=floors.get))
            self.assertAlmostEqual(value["floor_s"] / max(floors.values()), 1, delta=1e-6)
            self.assertAlmostEqual(value["floor_share"] * value["median_s"] / value["floor_s"], 1, delta=1e-6)
            self.assertGreater(value["floor_share"], 0)
        by_name = {row["kernel"]: row for row in rows}
        d = 100100
        self.assertEqual(float(by_name["adam"]["bytes"]), 28 * d)
        self.assertEqual(float(by_name["adam"]["checked"]), 3 * d * ranks)
        self.assertEqual(float(by_name["decompress_update"]["bytes"]), 12 * d + d / 8)
        rows_of_rank, hidden = 4 * 24 // ranks, 64
        self.assertEqual(float(by_name["qkv_forward"]["flop"]), 2 * rows_of_rank * hidden * 3 * hidden)
        self.assertEqual(by_name["softmax_loss"]["shape"].split("x")[1], "300")

    def test_openmp(self):
        self.check(self.run_it(), "openmp", 1)

    def test_serial_on_two_ranks(self):
        self.check(self.run_it("--set", "run.backend=serial", "--set", "model.architecture=gpt", ranks=2), "serial", 2)

    def test_input_without_a_vocabulary(self):
        self.assertIn("model.vocabulary", self.run_it("--set", "model.vocabulary=0", expected=2))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
