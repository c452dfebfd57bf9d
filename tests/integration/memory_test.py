#!/usr/bin/env python3
"""Compares what a training run takes with the sums of docs/develop/performance.md.

Usage: memory_test.py PROGRAM MPIEXEC [unittest arguments]
"""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import skips
import support

SMALL, LARGE = 1_000_000, 13_000_000


class Memory(unittest.TestCase):
    def run_it(self, ranks, *settings):
        scratch = support.scratch(self)
        (scratch / "input.yaml").write_text(
            "train: {steps: 3, batch: 2, validate_every: 0, validation_batch: 1}\nfreeze: {step: 1}\n"
            "data: {corpus: [corpus.txt]}\n")
        (scratch / "corpus.txt").write_text("a text to learn, of few characters. " * 1000)
        support.run(self, support.ranks_of(ranks, support.PROGRAM, "train", "input.yaml", *support.overrides(
            ["run.output=out", *settings])), cwd=scratch)
        return support.read_csv(scratch / "out/run.csv")[0]

    def test_bytes_of_a_parameter(self):
        # Of the optimiser at the end, and of the whole process at its peak: what it takes beside its vectors does not
        # grow with them.
        n, bit = 2, 1 / 8
        compressed = 4 + 4 / n + (4 + 1 / n) * bit + bit  # c of the worker; c of the server's chunk; messages; tables
        expected = {
            # algorithm: (at the end, at the peak, inside MPI at the peak: the block of a ring's dense average)
            "adam": (8 + bit, 8 + bit, 4 / n),
            "onebit_adam": (4 + bit + compressed, 8 + bit + compressed, 0),
        }
        for algorithm, (at_end, at_peak, inside_mpi) in expected.items():
            runs = [self.run_it(n, "workload.kind=synthetic", f"optimizer.algorithm={algorithm}",
                                f"workload.parameters={d}", "comm.bucket_bytes=0")
                    for d in (SMALL, LARGE)]
            self.assertAlmostEqual(float(runs[1]["optimizer_bytes_per_parameter"]), at_end, delta=0.05, msg=algorithm)
            grown = LARGE - SMALL
            views = (float(runs[1]["peak_view_bytes"]) - float(runs[0]["peak_view_bytes"])) / grown
            at_peak += 12  # parameters, gradient, and the workload's own copy of it
            self.assertAlmostEqual(views, at_peak, delta=0.1, msg=algorithm)
            process = (float(runs[1]["peak_memory_bytes"]) - float(runs[0]["peak_memory_bytes"])) / grown
            self.assertAlmostEqual(process / (at_peak + inside_mpi), 1, delta=0.1, msg=algorithm)

    def test_bytes_of_a_parameter_with_sharded_state(self):
        n, bit = 8, 1 / 8
        # c of the worker; c of the server's chunk or m; residual of the update; v; table of weight decay
        vectors = 4 + 3 * 4 / n + bit
        expected = {
            # algorithm: at the end (messages; table of words), and at least what is promised
            "sharded_onebit_adam": (vectors + (5 + 2 / n) * bit + bit, 6.5),
            "server_onebit_adam": (vectors + (3 + 1 / n) * bit + bit, 6.5),
        }
        for algorithm, (at_end, promised) in expected.items():
            run = self.run_it(n, "workload.kind=synthetic", f"optimizer.algorithm={algorithm}",
                              f"workload.parameters={LARGE}", "comm.bucket_bytes=0", f"train.batch={n}")
            measured = float(run["optimizer_bytes_per_parameter"])
            self.assertAlmostEqual(measured, at_end, delta=0.05, msg=algorithm)
            self.assertLessEqual(measured, promised, msg=algorithm)

    def test_activations(self):
        L, H, A, F, V, T, dropout = 4, 256, 4, 1024, 8192, 128, 1
        for architecture in ("bert", "gpt"):
            def floats(batch, architecture=architecture):
                N = batch * T
                P, head = (batch * 19, 6) if architecture == "bert" else (N, 2)
                return ((2 * L + 1) * (2 * N * H + 2 * N) + 4 * L * N * H + L * N * A + L * N * F + P * V + head * P * H
                        + N * max(F, 3 * H) + (2 + dropout) * N * H)

            few, many = (self.run_it(1, "model.preset=small", f"model.architecture={architecture}",
                                     f"model.vocabulary={V}", f"model.sequence={T}", f"train.batch={batch}",
                                     "train.steps=1", "optimizer.algorithm=adam") for batch in (2, 26))
            whole = (16 + 1 / 8) * int(many["parameters"]) + 4 * floats(26)
            self.assertAlmostEqual(float(many["peak_view_bytes"]) / whole, 1, delta=0.03)
            grown = float(many["peak_memory_bytes"]) - float(few["peak_memory_bytes"])
            self.assertAlmostEqual(grown / (4 * (floats(26) - floats(2))), 1, delta=0.1)


if __name__ == "__main__":
    skips.main(sys.argv[3:])
