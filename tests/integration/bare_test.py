#!/usr/bin/env python3
"""A program that was built without SentencePiece and HDF5 trains, and refuses the keys that need them.

Usage: bare_test.py PROGRAM MPIEXEC [unittest arguments]
"""

import pathlib
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import skips
import support
from lib.launch import overrides

QUADRATIC = {"workload.kind": "quadratic", "train.steps": 20, "optimizer.algorithm": "adam"}


class Bare(unittest.TestCase):
    def setUp(self):
        self.directory = support.scratch(self)
        self.input = self.directory / "input.yaml"
        self.input.write_text("run: {seed: 1}\n")

    def train(self, keys):
        keys = {**QUADRATIC, **keys, "run.output": self.directory / "run"}
        return [support.PROGRAM, "train", self.input, *overrides(keys)]

    def test_trains(self):
        done = support.run(self, support.ranks_of(2, *self.train({})))
        self.assertIn("VALIDATION PASSED", done.stdout)
        self.assertRegex(support.run(self, [support.PROGRAM, "list"]).stdout, "(?m)^libraries:$")

    def test_keys_are_refused(self):
        for key, value, library, further in (
                ("data.tokenizer", "sentencepiece", "SentencePiece", {"workload.kind": "transformer"}),
                ("replay.file", "gradients.h5", "parallel HDF5", {"workload.kind": "replay"}),
                ("checkpoint.every", 5, "parallel HDF5", {}),
                ("checkpoint.restart", "run.h5", "parallel HDF5", {}),
                ("checkpoint.initialize_from", "run.h5", "parallel HDF5", {}),
                ("freeze.from", "run.h5", "parallel HDF5", {"optimizer.algorithm": "onebit_adam", "freeze.step": 0}),
                ("run.dump_parameters", "final.h5", "parallel HDF5", {})):
            with self.subTest(key):
                done = support.run(self, support.ranks_of(2, *self.train({**further, key: value})), 2)
                self.assertRegex(done.stderr, f"error: .*{key}.*: {key} needs {library}, and this build has none\n"
                                              f"  remedy: build OneBit with {library} .docs/guide/build.md., or ")
                self.assertFalse((self.directory / "run").exists())

    def test_no_checkpoint_when_a_signal_stops_the_run(self):
        process = subprocess.Popen(self.train({"train.steps": 100000000}), env=support.ENVIRONMENT,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while process.poll() is None and not (self.directory / "run/steps.csv.partial").exists():
            time.sleep(0.1)
        process.send_signal(signal.SIGUSR1)
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1, errors)
        self.assertIn("not written, because this build has no HDF5\n  remedy: build OneBit with parallel", errors)


if __name__ == "__main__":
    skips.main(sys.argv[3:])
