#!/usr/bin/env python3
"""Every algorithm of the program trains transformers: after T_w, where it has one, below the losses before it.

Usage: algorithms_test.py PROGRAM MPIEXEC [unittest arguments]
"""

import pathlib
import re
import statistics
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import skips
import support

STEPS, WARM_UP, T_W, LAST = 60, 10, 30, 8
GPT = {"model.architecture": "gpt", "data.tokenizer": "characters", "model.layers": 2, "model.hidden": 32,
       "model.heads": 2, "model.feed_forward": 64, "model.positions": 32, "model.sequence": 32, "model.dropout": 0}
# All defaults: half of the positions, a token type and the next-sentence head have no gradient.
BERT = {}
COMMON = {"train.steps": STEPS, "train.batch": 8, "train.validate_every": 0, "train.validation_batch": 2,
          "optimizer.beta2": 0.98, "schedule.warmup_steps": WARM_UP, "freeze.step": T_W,
          "zero_one.variance_freeze_step": T_W, "optimizer.local_steps": 4}
# Steps of another size than Adam's (docs/reference/algorithms/README.md).
RATES = {"sgd": 0.3, "double_squeeze": 0.3, "local_sgd": 0.3, "momentum_sgd": 0.3, "ef_momentum_sgd": 0.3,
         "onebit_sgd": 0.3, "local_momentum_sgd": 0.3, "signum": 3e-4, "distributed_lion": 3e-4, "onebit_lion": 3e-4,
         "onebit_lamb": 1e-2}
# A counter-example of the 1-bit Adam paper, and what docs/reference/algorithms/averages.md says of it.
DIVERGES = {"adam_nbit_variance": "(In the paper no n ≤ 8 converges.)"}


class Algorithms(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = support.scratch(cls)
        support.write_corpus(cls.directory / "corpus.txt")
        (cls.directory / "input.yaml").write_text(f"data: {{corpus: [{cls.directory / 'corpus.txt'}]}}\n")
        listed = support.subprocess.run([support.PROGRAM, "list"], capture_output=True, text=True, check=True).stdout
        cls.algorithms = re.search(r"(?m)^algorithms:\s*(.*)$", listed)[1].replace(",", " ").split()

    def losses(self, algorithm, model, **more):
        keys = {**COMMON, **model, "optimizer.algorithm": algorithm, "optimizer.lr": RATES.get(algorithm, 1e-3), **more}
        run, rows, _ = support.train(self, keys, self.directory / f"{algorithm}_{len(model)}",
                                     self.directory / "input.yaml", ranks=2)
        return [float(row["loss"]) for row in rows], run["variance_frozen_at_step"] != ""

    def trains(self, model):
        self.assertGreater(len(self.algorithms), 20)
        self.assertLess(DIVERGES.keys(), set(self.algorithms))
        for algorithm in self.algorithms:
            if algorithm in DIVERGES:
                continue
            with self.subTest(algorithm=algorithm):
                losses, freezes = self.losses(algorithm, model)
                first, at_t_w, last = (statistics.mean(part) for part in
                                       (losses[:2], losses[T_W - LAST:T_W], losses[-LAST:]))
                self.assertLess(last, 0.9 * first)
                if freezes:
                    self.assertLess(last, at_t_w)

    def test_the_page_says_what_does_not_train(self):
        page = (support.ROOT / "docs/reference/algorithms/averages.md").read_text()
        for algorithm, words in DIVERGES.items():
            self.assertIn(f"`{algorithm}`", page)
            self.assertIn(words, page)

    def test_a_gpt(self):
        self.trains(GPT)

    def test_a_bert_with_parameters_that_have_no_gradient(self):
        self.trains(BERT)


if __name__ == "__main__":
    skips.main(sys.argv[3:])
