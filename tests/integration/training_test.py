#!/usr/bin/env python3
"""Trains tiny models with the program itself and checks what must hold between whole runs.

Usage: training_test.py PROGRAM MPIEXEC [unittest arguments]
"""

import csv
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM, MPIEXEC = (os.path.abspath(sys.argv[1]), sys.argv[2]) if len(sys.argv) > 2 else ("", "")

TINY_GPT = {
    "train.steps": 20, "train.batch": 12, "train.validate_every": 0, "train.validation_batch": 12,
    "optimizer.lr": 1e-3, "optimizer.beta2": 0.9, "optimizer.weight_decay": 0.01, "run.check_replicas_every": 1,
    "model.architecture": "gpt", "model.layers": 2, "model.hidden": 32, "model.heads": 2, "model.feed_forward": 64,
    "model.positions": 32, "model.sequence": 32, "model.dropout": 0, "warmup.steps": 10, "optimizer.algorithm": "adam",
}
TINY_BERT = {**TINY_GPT, "model.architecture": "bert"}


class Training(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.directory = pathlib.Path(cls.scratch.name)
        # Words of a small grammar, so that there is something to learn.
        words = ["the ", "king ", "sang ", "of ", "a ", "river ", "and ", "stones. "]
        state, text = 1, []
        for _ in range(20000):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            text.append(words[(state >> 33) % len(words)])
        (cls.directory / "corpus.txt").write_text("".join(text))
        (cls.directory / "input.yaml").write_text("train: {steps: 1}\n")
        cls.count = 0

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def train(self, keys, ranks=1, threads=1, expected=0):
        """Runs the program; returns (row of run.csv, rows of steps.csv, standard error)."""
        type(self).count += 1
        output = self.directory / f"run{self.count}"
        keys = {**keys, "run.output": output, "data.corpus": f"[{self.directory / 'corpus.txt'}]"}
        command = [MPIEXEC, "-n", str(ranks), "--oversubscribe", PROGRAM, "train", str(self.directory / "input.yaml")]
        for key, value in keys.items():
            command += ["--set", f"{key}={value}"]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMPI_ALLOW_RUN_AS_ROOT": "1",
                       "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
        self.assertEqual(done.returncode, expected, done.stdout + done.stderr)
        if expected != 0:
            return None, None, done.stderr
        with open(output / "run.csv") as run, open(output / "steps.csv") as steps:
            return next(csv.DictReader(run)), list(csv.DictReader(steps)), done.stderr

    def assert_same_losses(self, one, other, relative):
        self.assertEqual(len(one), len(other))
        for a, b in zip(one, other):
            self.assertAlmostEqual(float(a["loss"]), float(b["loss"]), delta=relative * float(a["loss"]))

    def test_dense_adam_agrees_over_rank_counts(self):
        for model in (TINY_GPT, TINY_BERT):
            _, alone, _ = self.train(model)
            self.assertLess(float(alone[-1]["loss"]), 0.9 * float(alone[0]["loss"]), "nothing was learned")
            for ranks in (2, 3, 4):
                _, together, _ = self.train(model, ranks)
                self.assert_same_losses(alone, together, 1e-6)

    def test_accumulation_is_the_same_batch(self):
        _, whole, _ = self.train(TINY_GPT)
        _, parts, _ = self.train({**TINY_GPT, "train.accumulation": 3}, 2)
        self.assert_same_losses(whole, parts, 1e-6)

    def test_onebit_adam_is_adam_before_t_w(self):
        for ranks in (1, 3):
            adam, adam_steps, _ = self.train(TINY_BERT, ranks)
            onebit, onebit_steps, _ = self.train(
                {**TINY_BERT, "optimizer.algorithm": "onebit_adam", "warmup.steps": 20}, ranks)
            self.assertEqual(adam["parameters_hash"], onebit["parameters_hash"])
            self.assertEqual([row["loss"] for row in adam_steps], [row["loss"] for row in onebit_steps])
            self.assertEqual(onebit["variance_frozen_at_step"], "20")
            later, _, _ = self.train({**TINY_BERT, "optimizer.algorithm": "onebit_adam", "warmup.steps": 19}, ranks)
            self.assertNotEqual(adam["parameters_hash"], later["parameters_hash"])

    def test_same_bits_again_and_with_other_threads_and_backend(self):
        onebit = {"optimizer.algorithm": "onebit_adam", "compression.group": "tensor"}
        quantised = {"optimizer.algorithm": "adam_nbit_variance", "optimizer.epsilon": 0.01}
        for keys in ({**TINY_GPT, **onebit}, {**TINY_BERT, "model.dropout": 0.1, **onebit}, {**TINY_GPT, **quantised}):
            first, _, _ = self.train(keys, 2)
            for threads, backend in ((1, "openmp"), (2, "openmp"), (1, "serial")):
                again, _, _ = self.train({**keys, "run.backend": backend}, 2, threads)
                self.assertEqual(first["parameters_hash"], again["parameters_hash"], f"{threads} threads, {backend}")
                self.assertEqual(again["threads_per_rank"], str(threads))
            other_seed, _, _ = self.train({**keys, "run.seed": 2}, 2)
            self.assertNotEqual(first["parameters_hash"], other_seed["parameters_hash"])

    def test_compressed_volume(self):
        for ranks in (2, 4):
            run, steps, _ = self.train(
                {**TINY_GPT, "model.hidden": 64, "optimizer.algorithm": "onebit_adam", "compression.group": "vector"}, ranks)
            self.assertGreaterEqual(float(run["reduction_compressed_phase"]), 31)
            parameters = int(run["parameters"])
            for row in steps:
                compressed = int(row["step"]) > 10
                self.assertEqual(row["phase"], "compressed" if compressed else "dense")
                words = -(-(-(-parameters // 32)) // ranks)
                expected = 2 * (ranks - 1) * 4 * (1 + words) if compressed else 2 * (ranks - 1) * 4 * parameters // ranks
                self.assertEqual(int(row["bytes_sent"]), expected)
            self.assertEqual(int(run["bytes_sent"]), sum(int(row["bytes_sent"]) for row in steps))

    def test_volume_of_further_algorithms(self):
        # A large η: with few bits some elements of the variance round to 0, and the update would be m / η.
        ranks, bits, interval = 3, 5, 4
        for algorithm in ("adam_1bit_naive", "adam_nbit_variance", "adam_lazy_variance", "double_squeeze",
                          "ef_momentum_sgd", "local_sgd", "local_momentum_sgd", "momentum_sgd"):
            run, steps, _ = self.train({**TINY_GPT, "optimizer.algorithm": algorithm, "optimizer.variance_bits": bits,
                                        "optimizer.local_steps": interval, "optimizer.epsilon": 1, "train.steps": 10,
                                        "compression.group": "vector"}, ranks)
            parameters = int(run["parameters"])
            words = -(-(-(-parameters // 32)) // ranks)
            dense = 2 * (ranks - 1) * 4 * parameters // ranks
            compressed = 2 * (ranks - 1) * 4 * (1 + words)
            quantised = (ranks - 1) * 4 * (-(-words // 16) + bits * words + 32 * words)
            for row in steps:
                averages = int(row["step"]) % interval == 0 or int(row["step"]) == 10
                expected = {"adam_nbit_variance": compressed + quantised,
                            "adam_lazy_variance": compressed + 2 * dense * averages,
                            "local_sgd": dense * averages, "local_momentum_sgd": 2 * dense * averages,
                            "momentum_sgd": dense}.get(algorithm, compressed)
                self.assertEqual(int(row["bytes_sent"]), expected, f"{algorithm} step {row['step']}")
                is_dense = algorithm in ("local_sgd", "local_momentum_sgd", "momentum_sgd")
                self.assertEqual(row["phase"], "dense" if is_dense else "compressed")
                self.assertEqual(row["variance_l1"] != "", algorithm.startswith("adam"))
                self.assertEqual(row["worker_residual_l2"] != "", not is_dense)

    def test_all_scales_and_groups_learn(self):
        for scale in ("l1", "l2"):
            for group in ("vector", "chunk", "tensor", "4096"):
                run, steps, _ = self.train({**TINY_GPT, "optimizer.algorithm": "onebit_adam", "compression.scale": scale,
                                            "compression.group": group}, 3)
                self.assertLess(float(steps[-1]["loss"]), float(steps[9]["loss"]), f"{scale} {group}")

    def test_automatic_t_w(self):
        # Δ = 1/(1 − 0.9) = 10 steps: not before step 11, and not before the rise of the learning rate has ended.
        keys = {**TINY_GPT, "optimizer.algorithm": "onebit_adam_32bit", "warmup.steps": "auto", "train.steps": 80}
        for criterion in ("two_sided", "paper"):
            run, steps, _ = self.train({**keys, "warmup.criterion": criterion, "schedule.warmup_steps": 15})
            frozen = int(run["variance_frozen_at_step"])
            self.assertGreaterEqual(frozen, 15)
            ratios = [float(row["variance_ratio"]) if row["variance_ratio"] else None for row in steps]
            self.assertIsNone(ratios[9])

            def stable(ratio):
                return (min(ratio, 1 / ratio) if criterion == "two_sided" else ratio) >= 0.96

            self.assertTrue(stable(ratios[frozen - 1]))
            self.assertFalse(any(stable(ratio) for ratio in ratios[14:frozen - 1]))

    def test_variance_of_an_earlier_run_replaces_the_warm_up(self):
        state = self.directory / "state.h5"
        keys = {**TINY_GPT, "optimizer.algorithm": "onebit_adam", "train.steps": 40}
        _, first, _ = self.train({**keys, "optimizer.algorithm": "adam", "run.dump_parameters": state}, ranks=2)
        run, from_state, _ = self.train({**keys, "warmup.steps": 0, "warmup.from": state}, ranks=2)
        self.assertEqual({row["phase"] for row in from_state}, {"compressed"})
        self.assertAlmostEqual(float(from_state[0]["variance_l1"]), float(first[-1]["variance_l1"]),
                               delta=1e-6 * float(first[-1]["variance_l1"]))
        self.assertLess(float(run["final_validation_loss"]), float(first[0]["loss"]) - 0.5)
        other = {**keys, "model.hidden": 64, "warmup.steps": 0, "warmup.from": state}
        self.assertIn("there is no variance of", self.train(other, ranks=2, expected=2)[2])

    def test_nonfinite_gradients(self):
        # The update of step 1 overflows every parameter, so step 2 has no finite gradient on any rank.
        keys = {**TINY_GPT, "optimizer.lr": 1e38}
        _, _, error = self.train(keys, 2, expected=1)
        self.assertIn("step ", error)
        self.assertIn("tensor", error)
        self.assertIn("remedy:", error)
        run, steps, _ = self.train({**keys, "optimizer.on_nonfinite": "skip"}, 2)
        self.assertGreater(int(run["skipped_steps"]), 0)
        self.assertEqual(int(run["skipped_steps"]), sum(int(row["skipped"]) for row in steps))

    def test_earlier_results_survive_a_failed_run(self):
        run, _, _ = self.train(TINY_GPT)
        output = self.directory / f"run{self.count}"
        before = (output / "steps.csv").read_bytes()
        keys = {**TINY_GPT, "optimizer.lr": 1e38}
        type(self).count -= 1
        self.train(keys, expected=1)
        self.assertEqual(before, (output / "steps.csv").read_bytes())
        self.assertTrue((output / "steps.csv.partial").read_text().startswith("step,phase,loss"))

    def test_quadratic_reaches_its_optimum(self):
        for algorithm in ("adam", "onebit_adam"):
            run, steps, _ = self.train({
                "workload.kind": "quadratic", "quadratic.dimension": 1000, "quadratic.condition": 10, "train.steps": 400,
                "train.batch": 4, "optimizer.algorithm": algorithm, "optimizer.lr": 0.02, "schedule.decay": "linear",
                "warmup.steps": 100, "quadratic.noise": 0.1, "run.check_replicas_every": 1}, 4)
            self.assertLess(float(run["final_validation_loss"]), 1e-2 * float(steps[0]["loss"]), algorithm)

    def test_collective_that_is_measured_is_the_one_that_runs(self):
        model = {**TINY_GPT, "optimizer.algorithm": "onebit_adam", "comm.exchange": "pairwise", "train.steps": 20}
        measured, _, _ = self.train({**model, "comm.collective": "auto"}, 4)
        # All ranks are on one host, which leaves these two.
        self.assertIn(measured["collective"], ("flat", "dense"))
        for name in ("flat", "dense"):
            self.assertRegex(measured["collective_reason"], f"{name} [0-9.e+-]+ ms")
        self.assertNotIn("hierarchical", measured["collective_reason"])
        given, _, _ = self.train({**model, "comm.collective": measured["collective"]}, 4)
        self.assertEqual(measured["parameters_hash"], given["parameters_hash"])
        self.assertEqual(measured["bytes_sent"], given["bytes_sent"])  # trials are not counted
        # A dense average of the frozen phase is what onebit_adam_32bit does.
        dense, steps, _ = self.train({**model, "comm.collective": "dense"}, 4)
        full, _, _ = self.train({**model, "optimizer.algorithm": "onebit_adam_32bit"}, 4)
        self.assertEqual(dense["parameters_hash"], full["parameters_hash"])
        self.assertEqual({row["phase"] for row in steps}, {"dense"})


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
