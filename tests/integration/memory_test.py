#!/usr/bin/env python3
"""Compares what a training run takes with what the check at its start counts (docs/develop/performance/memory.md).

Usage: memory_test.py PROGRAM MPIEXEC [unittest arguments]
"""

import pathlib
import re
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import skips
import support

FEW, MANY = 1_000_000, 6_000_000  # parameters


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

    def synthetic(self, ranks, algorithm, parameters, steps, *settings):
        return self.run_it(ranks, "workload.kind=synthetic", f"optimizer.algorithm={algorithm}", f"train.batch={ranks}",
                           f"workload.parameters={parameters}", f"train.steps={steps}", "comm.bucket_bytes=0",
                           f"freeze.step={1 if steps > 1 else 2}", *settings)

    def test_the_check_at_the_start_counts_what_each_algorithm_takes(self):
        listed = subprocess.run([support.PROGRAM, "list"], capture_output=True, text=True, check=True).stdout
        algorithms = re.search(r"(?m)^algorithms:(.*)$", listed)[1].split()
        self.assertGreater(len(algorithms), 20)
        dense, compressed = "predicted_dense_bytes", "predicted_compressed_bytes"
        few = self.synthetic(2, "adam", FEW, 1)

        def compare(algorithm, run, column):
            with self.subTest(algorithm=algorithm, column=column):
                predicted, measured = (float(run[name]) - float(few[of_few]) for name, of_few in (
                    (column, dense), ("peak_memory_bytes", "peak_memory_bytes")))
                self.assertAlmostEqual(measured / predicted, 1, delta=0.1)

        for algorithm in algorithms:
            whole = self.synthetic(2, algorithm, MANY, 3)
            compare(algorithm, whole, compressed)
            if whole[dense] != whole[compressed]:
                compare(algorithm, self.synthetic(2, algorithm, MANY, 1), dense)  # a run of one step ends before T_w

    def test_it_counts_other_exchanges_compressors_and_ranks(self):
        # MPI's own shared memory grows by some 10 MB until about MANY parameters; what is compared lies above.
        for ranks, *settings in ((4, "optimizer.algorithm=sharded_onebit_adam"), (4, "comm.exchange=pairwise"),
                                 (4, "comm.exchange=grid", "comm.dense_type=bf16"),
                                 (2, "compression.compressor=nbit", "compression.bits=8"), (1,),
                                 (2, "compression.compressor=none"), (2, "comm.dense_type=bf16"),
                                 (2, "comm.compressed_bucket_bytes=1048576", "optimizer.on_nonfinite=skip"),
                                 (2, "optimizer.algorithm=distributed_lion", "optimizer.vote=average")):
            with self.subTest(ranks=ranks, settings=settings):
                few, many = (self.synthetic(ranks, "onebit_adam", d, 3, *settings) for d in (MANY, 2 * MANY))
                predicted, measured = (
                    max(float(many[column]) for column in columns) - max(float(few[column]) for column in columns)
                    for columns in (("predicted_dense_bytes", "predicted_compressed_bytes"), ("peak_memory_bytes",)))
                self.assertAlmostEqual(measured / predicted, 1, delta=0.1)

    def test_bytes_of_a_parameter_with_sharded_state(self):
        n, bit = 8, 1 / 8
        # c of the worker; c of the server's chunk or m; residual of the update; v; table of weight decay
        vectors = 4 + 3 * 4 / n + bit
        expected = {  # at the end, with messages and a table of words
            "sharded_onebit_adam": vectors + (5 + 2 / n) * bit + bit,
            "server_onebit_adam": vectors + (4 + 1 / n) * bit + bit,
        }
        for algorithm, at_end in expected.items():
            measured = float(self.synthetic(n, algorithm, MANY, 3)["optimizer_bytes_per_parameter"])
            self.assertAlmostEqual(measured, at_end, delta=0.05, msg=algorithm)
            self.assertLessEqual(measured, 6.5, msg=algorithm)

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
            self.assertAlmostEqual(float(many["predicted_dense_bytes"]) / whole, 1, delta=0.01)
            grown = float(many["peak_memory_bytes"]) - float(few["peak_memory_bytes"])
            self.assertAlmostEqual(grown / (4 * (floats(26) - floats(2))), 1, delta=0.1)


if __name__ == "__main__":
    skips.main(sys.argv[3:])
