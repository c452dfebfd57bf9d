"""Whole training steps on the simulated device: the loss is that of Serial, and schedules change no bit.

Called as `train_test.py SIMT_TRAIN MPIEXEC`.
"""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import skips
import support
from lib.tables import read_csv
from support import ENVIRONMENT, MPIEXEC, PROGRAM, ROOT

COMMON = {"train.steps": 4, "train.batch": 4, "train.validate_every": 0, "train.validation_batch": 8,
          "schedule.warmup_steps": 2, "model.dropout": 0.1}
ONEBIT_ADAM = {**COMMON, "optimizer.algorithm": "onebit_adam", "freeze.step": 2}
# Buckets are averaged by a thread of its own, whose copies have an instance of their own.
BUCKETS = {"comm.bucket_bytes": 65536, "comm.compressed_bucket_bytes": 65536}
FQT = {**COMMON, "optimizer.algorithm": "onebit_adam", "freeze.step": 2, "model.quantization.kind": "fqt"}


class Training(unittest.TestCase):
    def train(self, backend, keys, ranks, seed=1):
        """(parameters_hash, the losses of the steps)"""
        output = support.scratch(self) / "run"
        command = [PROGRAM, backend, ROOT / "inputs/bert_tiny.yaml", *(f"{k}={v}" for k, v in keys.items()),
                   f"run.output={output}"]
        if ranks > 1:
            command = [MPIEXEC, "-n", str(ranks), *command]
        support.run(self, command, env={**ENVIRONMENT, "ONEBIT_SIMT_SEED": str(seed)}, cwd=ROOT)
        losses = [float(row["loss"]) for row in read_csv(output / "steps.csv")]
        return read_csv(output / "run.csv")[0]["parameters_hash"], losses

    def check(self, keys, ranks, tolerance=1e-6):
        _, expected = self.train("serial", keys, ranks)
        hashes = []
        for seed in 1, 2, 3:
            parameters, losses = self.train("simt", keys, ranks, seed)
            hashes.append(parameters)
            self.assertEqual(len(losses), keys["train.steps"])
            self.assertLess(abs(losses[0] - expected[0]) / expected[0], tolerance)
            self.assertLess(abs(losses[-1] - expected[-1]) / expected[-1], 1e-2)
        self.assertEqual(len(set(hashes)), 1, hashes)

    def test_onebit_adam(self):
        self.check(ONEBIT_ADAM, 1)

    def test_onebit_adam_of_two_ranks_in_buckets(self):
        self.check({**ONEBIT_ADAM, **BUCKETS}, 2)

    def test_onebit_adam_over_device_memory(self):
        self.check({**ONEBIT_ADAM, **BUCKETS, "comm.transport": "device", "comm.exchange": "pairwise"}, 2)

    def test_quantized_training(self):
        self.check(FQT, 1)

    def test_quantized_training_of_two_ranks(self):
        self.check(FQT, 2)


if __name__ == "__main__":
    skips.main(sys.argv[3:])
