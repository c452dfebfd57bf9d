#!/usr/bin/env python3
"""Sound files that cannot be opened, read or locked just now: the message has the system's reason, and never says that
the file is broken or is to be written again. Locks that fail keep nobody from reading.

Usage: sound_files_test.py PROGRAM MPIEXEC MAKE_REPLAY FAILING_FILES [unittest arguments]
"""

import errno
import os
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import skips
import support
from support import PROGRAM, overrides

MAKE_REPLAY, FAILING_FILES = map(os.path.abspath, sys.argv[3:5]) if len(sys.argv) > 4 else ("", "")
BROKEN = ("truncated", "damaged", "not an HDF5", "not a checkpoint", "write it again", "delete this file", "h5dump",
          "Traceback", "terminate called")
QUADRATIC = {"workload.kind": "quadratic", "train.steps": 10, "train.batch": 4}
TEXT = {"train.steps": 2, "train.batch": 2, "train.validation_batch": 2, "model.sequence": 8, "freeze.step": 1,
        "data.corpus": "corpus.txt"}
SUBWORDS = {**TEXT, "data.tokenizer": "sentencepiece", "data.vocabulary": 300, "data.cache": "cache"}


class SoundFiles(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = support.scratch(cls)
        (cls.directory / "empty.yaml").write_text("run: {seed: 1}\n")
        (cls.directory / "corpus.txt").write_text("in the beginning was the word, and it was with rhyme\n" * 40)
        subprocess.run([MAKE_REPLAY, cls.directory / "gradients.h5", "4", "1", "100", "1", "complete"], check=True)
        subprocess.run([PROGRAM, "train", "empty.yaml", *overrides(
            {**QUADRATIC, "run.output": "first", "checkpoint.every": 5})], cwd=cls.directory, env=support.ENVIRONMENT,
            check=True, stdout=subprocess.DEVNULL)
        subprocess.run([PROGRAM, "train", "empty.yaml", *overrides({**SUBWORDS, "run.output": "subwords"})],
                       cwd=cls.directory, env=support.ENVIRONMENT, check=True, stdout=subprocess.DEVNULL)
        cls.checkpoint = "first/checkpoints/step_00000010.h5"

    def call(self, *command, fail=(), expected=0):
        call, error, name = fail or ("", 0, "")
        environment = {**support.ENVIRONMENT, "LD_PRELOAD": FAILING_FILES, "FAIL_CALL": call, "FAIL_NAME": name,
                       "FAIL_ERRNO": str(int(error))}
        done = support.run(self, [PROGRAM, *command], expected, cwd=self.directory, env=environment)
        return done.stdout + done.stderr

    def train(self, keys, **options):
        return self.call("train", "empty.yaml", *overrides({"run.output": "again", **keys}), **options)

    def readers(self):
        """(name of a file, what reads it)"""
        yield "step_00000010.h5", lambda **options: self.call("checkpoint", "info", self.checkpoint, **options)
        yield "step_00000010.h5", lambda **options: self.call("checkpoint", "verify", self.checkpoint, **options)
        for key in ("checkpoint.restart", "checkpoint.initialize_from", "freeze.from"):
            yield "step_00000010.h5", lambda key=key, **options: self.train(
                {**QUADRATIC, "train.steps": 12, key: self.checkpoint}, **options)
        yield "gradients.h5", lambda **options: self.train(
            {"workload.kind": "replay", "replay.file": "gradients.h5", "train.steps": 4}, **options)
        yield "corpus.txt", lambda **options: self.train(TEXT, **options)
        yield ".model", lambda **options: self.train(SUBWORDS, **options)
        yield "empty.yaml", lambda **options: self.train(QUADRATIC, **options)

    def refused(self, read, call, error, name):
        for expected in (2, 1):
            try:
                said = read(fail=(call, error, name), expected=expected)
                break
            except AssertionError:
                if expected == 1:
                    raise
        with self.subTest(name=name, call=call, error=errno.errorcode[error], said=said):
            self.assertIn(os.strerror(error), said)
            self.assertIn("remedy: ", said)
            for words in BROKEN:
                self.assertNotIn(words, said.replace(os.strerror(error), ""))

    def test_open(self):
        for name, read in self.readers():
            for error in (errno.EACCES, errno.EMFILE, errno.ESTALE):
                self.refused(read, "open", error, name)

    def test_read(self):
        for name, read in self.readers():
            self.refused(read, "read", errno.EIO, name)

    def test_locks(self):
        """Nothing is locked to be read."""
        for name, read in self.readers():
            for error in (errno.ENOLCK, errno.ENOSYS, errno.EWOULDBLOCK):
                if name.endswith(".h5"):
                    read(fail=("flock", error, name))
        # Unless the environment asks for it.
        support.ENVIRONMENT["HDF5_USE_FILE_LOCKING"] = "TRUE"
        self.addCleanup(support.ENVIRONMENT.pop, "HDF5_USE_FILE_LOCKING")
        self.refused(lambda **options: self.call("checkpoint", "info", self.checkpoint, **options), "flock",
                     errno.ENOLCK, "step_00000010.h5")
        said = self.call("checkpoint", "info", self.checkpoint, fail=("flock", errno.ENOLCK, "step_"), expected=2)
        self.assertIn("set HDF5_USE_FILE_LOCKING=FALSE", said)

    def test_names_that_are_too_long_or_go_in_circles(self):
        (self.directory / "circle.h5").symlink_to("circle.h5")
        for name, error in (("circle.h5", errno.ELOOP), ("x" * 300, errno.ENAMETOOLONG), ("none.h5", errno.ENOENT),
                            ("corpus.txt/below", errno.ENOTDIR)):
            for command in (["checkpoint", "info", name], ["train", name],
                            ["train", "empty.yaml", "--set", "workload.kind=replay", "--set", f"replay.file={name}"]):
                said = self.call(*command, expected=2)
                self.assertIn(os.strerror(error), said)

    def test_pipes_keep_nobody_waiting(self):
        os.mkfifo(self.directory / "pipe")
        for command in (["checkpoint", "info", "pipe"], ["train", "empty.yaml", "--set", "data.corpus=pipe"],
                        ["train", "empty.yaml", "--set", "workload.kind=replay", "--set", "replay.file=pipe"]):
            self.assertIn("file", self.call(*command, expected=2))
        # An input may come through a pipe.
        with subprocess.Popen(["echo", "train: {steps: 7}"], stdout=subprocess.PIPE) as writer:
            done = subprocess.run([PROGRAM, "validate", "/dev/stdin"], stdin=writer.stdout, env=support.ENVIRONMENT,
                                  capture_output=True, text=True, timeout=60)
        self.assertIn("steps: 7", done.stdout)

    def test_checkpoints_that_cannot_be_listed_are_not_taken_for_none(self):
        said = self.train({**QUADRATIC, "run.output": "first", "train.steps": 12, "checkpoint.restart": "auto"},
                          fail=("open", errno.ESTALE, "first/checkpoints"), expected=2)
        self.assertIn(os.strerror(errno.ESTALE), said)


if __name__ == "__main__":
    skips.main(sys.argv[5:])
