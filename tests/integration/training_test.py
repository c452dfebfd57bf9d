#!/usr/bin/env python3
"""Trains tiny models with the program itself and checks what must hold between whole runs.

Usage: training_test.py PROGRAM MPIEXEC [unittest arguments]
"""

import math
import os
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import skips
import support

TINY_GPT = {
    "train.steps": 20, "train.batch": 12, "train.validate_every": 0, "train.validation_batch": 12,
    "optimizer.lr": 1e-3, "optimizer.beta2": 0.9, "optimizer.weight_decay": 0.01, "run.check_replicas_every": 1,
    "model.architecture": "gpt", "model.layers": 2, "model.hidden": 32, "model.heads": 2, "model.feed_forward": 64,
    "model.positions": 32, "model.sequence": 32, "model.dropout": 0, "freeze.step": 10, "optimizer.algorithm": "adam",
}
TINY_BERT = {**TINY_GPT, "model.architecture": "bert"}
ONE_BIT = {"model.quantization.kind": "fqt", "optimizer.lr": 1e-2, "model.initializer_range": 0.1}
EIGHT_BITS = {"model.quantization.kind": "psq", "model.quantization.layer_bits": 8, "model.quantization.bits": 8}


def words_of_a_chunk(parameters, ranks):
    """Words of 32 signs, of which every rank averages as many."""
    return math.ceil(math.ceil(parameters / 32) / ranks)


class Training(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = support.scratch(cls)
        support.write_corpus(cls.directory / "corpus.txt")
        (cls.directory / "input.yaml").write_text("train: {steps: 1}\n")
        cls.count = 0

    def train(self, keys, ranks=1, threads=1, expected=0):
        """Runs the program; returns (row of run.csv, rows of steps.csv, standard error)."""
        type(self).count += 1
        run, steps, done = support.train(
            self, {**keys, "data.corpus": f"[{self.directory / 'corpus.txt'}]"}, self.directory / f"run{self.count}",
            self.directory / "input.yaml", ranks, expected=expected, timeout=120,
            env={**support.ENVIRONMENT, "OMP_NUM_THREADS": str(threads)})
        self.stdout = done.stdout
        return run, steps, done.stderr

    def diverged(self, keys, ranks):
        """Trains to a loss that is not finite, which fails with complete files; returns what `train` does."""
        _, _, error = self.train(keys, ranks, expected=1)
        self.assertRegex(self.stdout, "\nVALIDATION FAILED the final loss is not finite")
        output = self.directory / f"run{self.count}"
        return support.read_csv(output / "run.csv")[0], support.read_csv(output / "steps.csv"), error

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
            skipped = {**TINY_BERT, "faults.kind": "nan", "faults.rank": 0, "faults.step": 20,
                       "optimizer.on_nonfinite": "skip"}
            adam, adam_steps, _ = self.train(skipped, ranks)
            onebit, onebit_steps, _ = self.train(
                {**skipped, "optimizer.algorithm": "onebit_adam", "freeze.step": 19}, ranks)
            self.assertEqual(adam["parameters_hash"], onebit["parameters_hash"])
            self.assertEqual([row["loss"] for row in adam_steps], [row["loss"] for row in onebit_steps])
            self.assertEqual(onebit["variance_frozen_at_step"], "19")
            whole, _, _ = self.train(TINY_BERT, ranks)
            later, _, _ = self.train({**TINY_BERT, "optimizer.algorithm": "onebit_adam", "freeze.step": 19}, ranks)
            self.assertNotEqual(whole["parameters_hash"], later["parameters_hash"])

    def test_same_bits_again_and_with_other_threads_and_backend(self):
        onebit = {"optimizer.algorithm": "onebit_adam", "compression.group": "tensor"}
        quantised = {"optimizer.algorithm": "adam_nbit_variance", "optimizer.epsilon": 0.01}
        for keys in ({**TINY_GPT, **onebit}, {**TINY_BERT, "model.dropout": 0.1, **onebit}, {**TINY_GPT, **quantised},
                     {**TINY_BERT, **ONE_BIT, **onebit}, {**TINY_GPT, **ONE_BIT, "model.quantization.kind": "psq"},
                     {**TINY_BERT, **EIGHT_BITS, **onebit}):
            first, _, _ = self.train(keys, 2)
            for threads, backend in ((1, "openmp"), (2, "openmp"), (1, "serial")):
                again, _, _ = self.train({**keys, "run.backend": backend}, 2, threads)
                self.assertEqual(first["parameters_hash"], again["parameters_hash"], f"{threads} threads, {backend}")
                self.assertEqual(again["threads_per_rank"], str(threads))
            other_seed, _, _ = self.train({**keys, "run.seed": 2}, 2)
            self.assertNotEqual(first["parameters_hash"], other_seed["parameters_hash"])

    def test_quantized_gradients_have_one_bit(self):
        average = {"fqt": 1, "scq": 4, "psq": 4, "qat": None}
        for model in (TINY_BERT, TINY_GPT):
            for kind, bits in average.items():
                _, steps, _ = self.train({**model, **ONE_BIT, "model.quantization.kind": kind, "train.steps": 60,
                                          "train.validate_every": 30})
                self.assertLess(float(steps[-1]["loss"]), 0.9 * float(steps[0]["loss"]), f"{kind} learned nothing")
                for row in steps:
                    measured = row["step"] in ("30", "60") and bits is not None
                    self.assertEqual(row["quantizer_variance"] != "", measured)
                    if bits is None:
                        self.assertEqual((row["gradient_bits"], row["pruned_share"]), ("", ""))
                        continue
                    # Systematic pruning keeps ⌊N/b⌋ or ⌈N/b⌉ of N groups; in BERT's last layer fewer, where most tokens
                    # are not predicted and have no gradient.
                    self.assertAlmostEqual(float(row["gradient_bits"]), bits, delta=0.15 * bits)
                    self.assertAlmostEqual(float(row["pruned_share"]), 1 - bits / 4, delta=0.06)
                    if measured:
                        self.assertGreater(float(row["quantizer_variance"]), 0)

    def test_quantized_gradients_of_ranks_are_those_of_rounds(self):
        keys = {**TINY_BERT, **ONE_BIT, "model.dropout": 0.1, "train.steps": 2}
        for changes in (EIGHT_BITS, {}):
            found = [self.train({**keys, **changes, "train.accumulation": 4 // ranks}, ranks)[1] for ranks in (1, 2, 4)]
            for steps in found[1:]:
                self.assert_same_losses(found[0], steps, 1e-5)
        # The draws matter: other samples of the same batch have others.
        _, whole, _ = self.train(keys)
        difference = abs(float(whole[-1]["loss"]) - float(found[0][-1]["loss"]))
        self.assertGreater(difference, 1e-4 * float(whole[-1]["loss"]))

    def test_quantized_gradients_are_the_same_after_a_restart(self):
        first = {"optimizer.algorithm": "onebit_adam", "freeze.step": 4, "train.steps": 12}
        hashes = set()
        # The second restart is before the gradients are quantised.
        for name, changes in (("quantized", {}), ("late", {"model.quantization.gradients_after": 8}),
                              ("eight_bits", EIGHT_BITS)):
            keys = {**TINY_BERT, **ONE_BIT, **first, **changes}
            checkpoints = {"checkpoint.directory": self.directory / name}
            whole, _, _ = self.train(keys, 2)
            self.train({**keys, **checkpoints, "train.steps": 6, "checkpoint.every": 6}, 2)
            restarted, _, _ = self.train({**keys, **checkpoints, "checkpoint.restart": "auto"}, 2)
            self.assertEqual(restarted["restarts"], "1")
            self.assertEqual(whole["parameters_hash"], restarted["parameters_hash"])
            hashes.add(whole["parameters_hash"])
        self.assertEqual(len(hashes), 3)

    def test_first_steps_leave_gradients_in_full_precision(self):
        record = {"model.quantization.record_every": 4}
        keys = {**TINY_BERT, **ONE_BIT, "train.steps": 12, "train.validate_every": 4}
        qat, full, _ = self.train({**keys, "model.quantization.kind": "qat"})
        for kind in ("fqt", "scq", "psq"):
            _, steps, _ = self.train({**keys, **record, "model.quantization.kind": kind,
                                      "model.quantization.gradients_after": 6})
            self.assertEqual({row["step"] for row in self.recorded()}, {"8", "12"})
            # The loss of step 7 is that before its update.
            self.assertEqual([row["loss"] for row in steps[:7]], [row["loss"] for row in full[:7]])
            self.assertNotEqual([row["loss"] for row in steps[7:]], [row["loss"] for row in full[7:]])
            self.assertEqual([row["gradient_bits"] != "" for row in steps], 6 * [False] + 6 * [True])
            self.assertEqual([row["step"] for row in steps if row["quantizer_variance"] != ""], ["8", "12"])
            never, _, _ = self.train({**keys, "model.quantization.kind": kind,
                                      "model.quantization.gradients_after": 12})
            self.assertEqual(never["parameters_hash"], qat["parameters_hash"])

    def test_eight_bits_train_as_full_precision_does(self):
        for model in (TINY_BERT, TINY_GPT):
            keys = {**model, "model.initializer_range": 0.1}
            full, full_steps, _ = self.train(keys)
            found, steps, _ = self.train({**keys, **EIGHT_BITS})
            self.assertEqual(full["parameters"], found["parameters"])
            self.assertNotEqual(full["parameters_hash"], found["parameters_hash"])
            self.assertLess(float(full_steps[-1]["loss"]), 0.9 * float(full_steps[0]["loss"]), "nothing was learned")
            self.assert_same_losses(full_steps, steps, 0.02)
            self.assertTrue(all(row["gradient_bits"] == "8" and row["pruned_share"] == "0" for row in steps))

    def recorded(self):
        """The rows of gradient_groups.csv of the last run."""
        return support.read_csv(self.directory / f"run{self.count}/gradient_groups.csv")

    def test_gradient_groups_are_recorded(self):
        quantiles = ("min", "p10", "p25", "p50", "p75", "p90", "p99", "max")
        for kind, axes, changes in (("fqt", ["columns", "rows"], {}), ("psq", ["rows"], {}),
                                    ("psq", ["rows"], EIGHT_BITS)):
            keys = {**TINY_BERT, **ONE_BIT, "model.quantization.kind": kind, **changes, "train.steps": 30}
            plain, _, _ = self.train(keys, 2)
            self.assertFalse((self.directory / f"run{self.count}/gradient_groups.csv").exists())
            run, _, _ = self.train({**keys, "model.quantization.record_every": 5}, 2)
            self.assertEqual(run["parameters_hash"], plain["parameters_hash"])
            rows = self.recorded()
            gradients = {(row["step"], row["layer"], row["axis"]) for row in rows}
            self.assertEqual((len(rows), len(gradients)), (6 * 8 * len(axes), len(rows)), "a row is missing or twice")
            self.assertEqual(sorted({row["axis"] for row in rows}), axes)
            self.assertEqual({int(row["step"]) for row in rows}, {5, 10, 15, 20, 25, 30})
            sums = {"variance": 0, "paper_variance": 0, "drawn_error": 0}
            for row in rows:
                groups, elements, kept = int(row["groups"]), int(row["elements"]), int(row["kept"])
                # 6 samples of 32 tokens on a rank
                self.assertEqual(groups if row["axis"] == "rows" else elements, 6 * 32)
                self.assertLessEqual(kept, groups)
                ranges = [float(row[f"range_{name}"]) for name in quantiles]
                self.assertEqual(ranges, sorted(ranges))
                self.assertTrue(ranges[0] <= float(row["range_mean"]) <= ranges[-1])
                for name in sums:
                    sums[name] += float(row[name]) / float(row["norm_squared"])
                if kind == "psq":
                    self.assertEqual(kept, groups)
                    self.assertLessEqual(float(row["variance"]), float(row["paper_variance"]))
                else:
                    self.assertLessEqual(kept, math.ceil(groups / 4))
                    self.assertTrue(0.25 - 1e-6 <= float(row["share_of_greatest"]) <= 1)
            # Each draw differs from its mean, and their sum hardly: 96 or 48 draws of thousands of elements.
            self.assertAlmostEqual(sums["drawn_error"] / sums["variance"], 1, delta=0.1)
            if kind == "fqt":
                self.assertLess(sums["paper_variance"], 0.5 * sums["variance"], "Eq. 4 bounded the variance")

    def test_recorded_groups_continue_after_a_restart(self):
        keys = {**TINY_BERT, **ONE_BIT, "train.steps": 12, "model.quantization.record_every": 2}
        checkpoints = {"checkpoint.directory": self.directory / "recorded"}
        self.train(keys, 2)
        whole = self.recorded()
        self.train({**keys, **checkpoints, "train.steps": 6, "checkpoint.every": 6}, 2)
        self.train({**keys, **checkpoints, "checkpoint.restart": "auto"}, 2)
        self.assertEqual(self.recorded(), whole)
        # A run may also begin to record, or record other steps.
        self.train({**keys, **checkpoints, "checkpoint.restart": "auto", "model.quantization.record_every": 12}, 2)
        self.assertEqual({row["step"] for row in self.recorded()}, {"2", "4", "6", "12"})

    def test_excluded_layers_have_full_precision(self):
        sizes = {}
        for exclude in ("[]", "[first]", "[first, last]", "['encoder.*.feed_forward.*']"):
            run, _, _ = self.train({**TINY_BERT, **ONE_BIT, "train.steps": 1, "model.quantization.exclude": exclude})
            sizes[exclude] = int(run["parameters"])
        none = int(self.train({**TINY_BERT, "train.steps": 1})[0]["parameters"])
        of_layer = 3 * 32 + 32 + 64 + 32  # scales of the outputs
        self.assertEqual(sizes, {"[]": none + 2 * of_layer, "[first]": none + of_layer, "[first, last]": none,
                                 "['encoder.*.feed_forward.*']": none + 2 * (3 * 32 + 32)})

    def test_compressed_volume(self):
        for ranks in (2, 4):
            run, steps, _ = self.train(
                {**TINY_GPT, "model.hidden": 64, "optimizer.algorithm": "onebit_adam", "compression.group": "vector"},
                ranks)
            self.assertGreaterEqual(float(run["reduction_compressed_phase"]), 31)
            parameters = int(run["parameters"])
            for row in steps:
                compressed = int(row["step"]) > 10
                self.assertEqual(row["phase"], "compressed" if compressed else "dense")
                words = words_of_a_chunk(parameters, ranks)
                sent = (1 + words) * ranks if compressed else parameters
                self.assertEqual(int(row["bytes_sent"]), 2 * (ranks - 1) * 4 * sent // ranks)
            self.assertEqual(int(run["bytes_sent"]), sum(int(row["bytes_sent"]) for row in steps))

    def test_momenta_in_buckets_travel_during_the_backward_pass(self):
        buckets = {"model.hidden": 64, "optimizer.algorithm": "onebit_adam", "comm.compressed_bucket_bytes": 16384}
        skipped = {"faults.kind": "nan", "faults.rank": 0, "faults.step": 20, "optimizer.on_nonfinite": "skip"}
        clipped = {"optimizer.clip": 0.5, "optimizer.clip_norm": "last_step"}
        for model, keys, ranks in ((TINY_GPT, {}, 2), (TINY_BERT, skipped, 3), (TINY_GPT, clipped, 4)):
            keys = {**model, **buckets, **keys}
            run, steps, _ = self.train(keys, ranks)
            self.assertIn("during the backward pass, because each needs its own part", self.stdout)
            self.assertEqual((run["compressed_bucket_bytes"], run["compressed_overlap"]), ("16384", "backward"))
            whole, _, _ = self.train({**keys, "comm.compressed_bucket_bytes": 0}, ranks)
            self.assertEqual(whole["skipped_steps"], run["skipped_steps"])
            self.assertNotEqual(whole["parameters_hash"], run["parameters_hash"])  # other chunks and scales
            self.assertLess(float(run["final_validation_loss"]), float(steps[0]["loss"]) - 0.3)
            # One bucket is the average in one piece, whatever thread it is on.
            one, steps, _ = self.train({**keys, "comm.compressed_bucket_bytes": 1 << 24}, ranks)
            self.assertEqual(one["parameters_hash"], whole["parameters_hash"])
            # Buckets of a step that is skipped have travelled.
            self.assertEqual(int(one["bytes_sent"]) > int(whole["bytes_sent"]), "faults.kind" in keys)
        # A backward pass of 133 ms, of which a rank computes next to nothing.
        _, steps, _ = self.train({"workload.kind": "synthetic", "workload.parameters": 200000, "freeze.step": 2,
                                  "workload.compute_time_ms": 200, "train.steps": 8, "train.batch": 2,
                                  "train.validate_every": 0, "optimizer.algorithm": "onebit_adam",
                                  "comm.compressed_bucket_bytes": 16384}, 2)
        self.assertGreater(max(float(row["allreduce_hidden_s"]) for row in steps if row["phase"] == "compressed"), 0)
        # The norm of a whole gradient is known when no bucket is left to hide.
        clipped = {**TINY_GPT, **buckets, "optimizer.clip": 0.5}
        run, steps, _ = self.train(clipped, 2)
        self.assertIn("after the backward pass, because optimizer.clip needs", self.stdout)
        self.assertEqual(run["compressed_overlap"], "none")
        self.assertEqual({float(row["allreduce_hidden_s"]) for row in steps if row["phase"] == "compressed"}, {0})
        # The same buckets have the same bits during the backward pass and after it: no gradient is as long as this.
        unclipped, _, _ = self.train({**clipped, "optimizer.clip": 1e6}, 2)
        hidden, _, _ = self.train({**clipped, "optimizer.clip": 1e6, "optimizer.clip_norm": "last_step"}, 2)
        self.assertEqual([run["compressed_overlap"] for run in (unclipped, hidden)], ["none", "backward"])
        self.assertEqual(unclipped["parameters_hash"], hidden["parameters_hash"])

    def test_last_norm_clips_where_momenta_are_compressed(self):
        keys = {**TINY_GPT, "optimizer.algorithm": "onebit_adam", "optimizer.clip": 0.5}
        this, steps, _ = self.train(keys, 2)
        last, others, _ = self.train({**keys, "optimizer.clip_norm": "last_step"}, 2)
        self.assertNotEqual(this["parameters_hash"], last["parameters_hash"])
        # Adam's phase and the first compressed step's gradient do not depend on the rule.
        self.assertEqual([row["loss"] for row in steps[:11]], [row["loss"] for row in others[:11]])
        self.assertNotEqual([row["loss"] for row in steps[11:]], [row["loss"] for row in others[11:]])

    def test_volume_of_further_algorithms(self):
        # A large η: with few bits some elements of the variance round to 0, and the update would be m / η.
        ranks, bits, interval = 3, 5, 4
        for algorithm in ("adam_1bit_naive", "adam_nbit_variance", "adam_lazy_variance", "double_squeeze",
                          "ef_momentum_sgd", "efficient_adam", "local_sgd", "local_momentum_sgd", "momentum_sgd"):
            run, steps, _ = self.train({**TINY_GPT, "optimizer.algorithm": algorithm, "optimizer.variance_bits": bits,
                                        "optimizer.local_steps": interval, "optimizer.epsilon": 1, "train.steps": 10,
                                        "compression.group": "vector"}, ranks)
            parameters = int(run["parameters"])
            words = words_of_a_chunk(parameters, ranks)
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
                self.assertEqual(row["variance_l1"] != "", "adam" in algorithm)
                self.assertEqual(row["worker_residual_l2"] != "", not is_dense)

    def test_all_scales_and_groups_learn(self):
        for scale in ("l1", "l2"):
            for group in ("vector", "chunk", "tensor", "4096"):
                run, steps, _ = self.train({**TINY_GPT, "optimizer.algorithm": "onebit_adam",
                                            "compression.scale": scale, "compression.group": group}, 3)
                self.assertLess(float(steps[-1]["loss"]), float(steps[9]["loss"]), f"{scale} {group}")

    def test_automatic_t_w(self):
        # Δ = 1/(1 − 0.9) = 10 steps: not before step 11, and not before the rise of the learning rate has ended.
        keys = {**TINY_GPT, "optimizer.algorithm": "onebit_adam_32bit", "freeze.step": "auto", "train.steps": 80,
                "freeze.at_most": 1}
        run, steps, _ = self.train({**keys, "schedule.warmup_steps": 15})
        frozen = int(run["variance_frozen_at_step"])
        self.assertGreaterEqual(frozen, 15)
        ratios = [float(row["variance_ratio"]) if row["variance_ratio"] else None for row in steps]
        self.assertIsNone(ratios[9])

        def stable(ratio):
            return min(ratio, 1 / ratio) >= 0.96

        self.assertTrue(stable(ratios[frozen - 1]))
        self.assertFalse(any(stable(ratio) for ratio in ratios[14:frozen - 1]))

    def test_freeze_on_a_skipped_step_happens_at_the_next(self):
        t_w, steps = 10, 24
        keys = {"workload.kind": "quadratic", "quadratic.dimension": 1000, "train.steps": steps, "train.batch": 12,
                "optimizer.lr": 1e-3, "optimizer.beta2": 0.9, "optimizer.epsilon": 0.1, "run.check_replicas_every": 1,
                "optimizer.on_nonfinite": "skip", "train.validate_every": 0, "freeze.step": t_w,
                # The variance of zero_one_adam is updated in each step up to F.
                "zero_one.variance_freeze_step": t_w, "zero_one.variance_update_scaler": 1000,
                "zero_one.local_step_clipper": 1}
        for ranks, algorithm in enumerate(("onebit_lamb", "onebit_adam", "onebit_adam_32bit", "zero_one_adam"), 1):
            keys["optimizer.algorithm"] = algorithm
            for bad_step in (None, t_w - 1, t_w, t_w + 1):
                fault = {"faults.kind": "nan", "faults.rank": ranks - 1, "faults.step": bad_step} if bad_step else {}
                run, rows, _ = self.train({**keys, **fault}, ranks)
                frozen = t_w + (bad_step == t_w)
                what = f"{algorithm}, NaN in step {bad_step}"
                self.assertEqual(run["variance_frozen_at_step"], str(frozen), what)
                self.assertEqual([int(row["step"]) for row in rows if row["skipped"] == "1"],
                                 [bad_step] if bad_step else [])
                if algorithm != "onebit_adam_32bit":
                    compressed = [int(row["step"]) for row in rows if row["phase"] == "compressed"
                                  and row["skipped"] == "0"]
                    self.assertEqual(compressed, [t for t in range(frozen + 1, steps + 1) if t != bad_step], what)
                # ‖v‖₁ changes up to the freeze, and not behind it.
                norms = [float(row["variance_l1"]) for row in rows]
                self.assertNotEqual(norms[frozen - 2], norms[frozen - 1], what)
                self.assertEqual(len(set(norms[frozen - 1:])), 1, what)
                self.assertIn(f"variance frozen at step {frozen} of {steps}: by ", self.stdout, what)
                self.assertNotIn("warning: the variance", self.stdout, what)
                # The same step without a fault's help: as if T_w were what it came to.
                meant = {**keys, **fault, "freeze.step": frozen, "zero_one.variance_freeze_step": frozen}
                self.assertEqual(self.train(meant, ranks)[0]["parameters_hash"], run["parameters_hash"], what)

    def test_defaults_compress_most_steps(self):
        # An input of three lines; the model is small for the test's sake.
        small = {"model.layers": 1, "model.hidden": 32, "model.sequence": 16, "train.validation_batch": 4,
                 "train.batch": 4, "optimizer.algorithm": "onebit_adam"}
        for steps in (2, 3, 5, 10, 60):
            run, rows, _ = self.train({**small, "train.steps": steps}, 2)
            frozen = -(-steps // 5)
            self.assertEqual(run["variance_frozen_at_step"], str(frozen))
            self.assertEqual([row["phase"] for row in rows], ["dense"] * frozen + ["compressed"] * (steps - frozen))
            self.assertIn(f"variance frozen at step {frozen} of {steps}: by freeze.at_most; compression begins",
                          self.stdout)
            self.assertIn(f"{steps - frozen} of {steps} steps were compressed; reduction of the bytes "
                          f"sent: {float(run['reduction']):.1f} against dense fp32 averages", self.stdout)
            self.assertAlmostEqual(float(run["reduction_vs_16bit"]), float(run["reduction"]) / 2, delta=1e-6)
            self.assertEqual(self.stdout.count("variance"), 1, "no warning")
        # A rise of the learning rate that is longer is waited for.
        run, _, _ = self.train({**small, "train.steps": 20, "schedule.warmup_steps": 9}, 2)
        self.assertEqual(run["variance_frozen_at_step"], "9")
        # A trial of one step runs, and says that nothing was compressed.
        self.train({**small, "train.steps": 1}, 2)
        self.assertIn("warning: the variance was frozen at the last step", self.stdout)
        self.assertIn("raise train.steps", self.stdout)
        self.assertIn("0 of 1 steps were compressed", self.stdout)

    def test_run_without_a_freeze_says_so(self):
        overflows = {**TINY_GPT, "optimizer.lr": 1e38, "optimizer.on_nonfinite": "skip", "freeze.step": 10}
        for algorithm, key in (("onebit_adam", "freeze.step"), ("zero_one_adam", "zero_one.variance_freeze_step")):
            run, _, _ = self.diverged({**overflows, "optimizer.algorithm": algorithm, key: 10}, 2)
            self.assertEqual(run["variance_frozen_at_step"], "")
            self.assertRegex(self.stdout,
                             "warning: the variance was never frozen: it was due at step 10 of 20, and the "
                                          "steps from there on were skipped")
            self.assertRegex(self.stdout, rf"remedy: .*{key}")
        self.diverged({**overflows, "optimizer.algorithm": "onebit_adam", "freeze.step": "auto"}, 2)
        self.assertRegex(self.stdout, "(?s)never frozen: it was due at step 4 of 20.*remedy: .*freeze.at_most")
        self.train({**TINY_GPT, "optimizer.algorithm": "zero_one_adam"}, 2)
        self.assertIn("never frozen: it is due at step 300, and the run has 20 step(s)", self.stdout)
        # Neither an algorithm that does not freeze nor one that is frozen from the start.
        self.diverged({**overflows, "optimizer.algorithm": "adam"}, 2)
        self.assertNotIn("never frozen", self.stdout)
        state = self.directory / "frozen_from.h5"
        self.train({**TINY_GPT, "optimizer.algorithm": "adam", "run.dump_parameters": state}, 2)
        self.train({**TINY_GPT, "optimizer.algorithm": "onebit_adam", "freeze.step": 0, "freeze.from": state}, 2)
        self.assertNotIn("never frozen", self.stdout)
        # The line of the freeze is progress; one rank sends nothing.
        self.train({**TINY_GPT, "optimizer.algorithm": "onebit_adam", "run.progress_interval_s": 0})
        self.assertNotIn("variance frozen", self.stdout)
        self.assertIn("10 of 20 steps were compressed; nothing was sent", self.stdout)

    def test_restart_keeps_the_freeze_with_another_length(self):
        keys = {**TINY_GPT, "optimizer.algorithm": "onebit_adam", "freeze.step": "auto", "freeze.at_most": 0.4,
                "train.steps": 10, "checkpoint.every": 10, "run.dump_parameters": "state.h5"}
        first, _, _ = self.train(keys, 2)
        self.assertEqual(first["variance_frozen_at_step"], "4")
        checkpoint = self.directory / f"run{self.count}" / "checkpoints" / "step_00000010.h5"
        longer, rows, _ = self.train({**keys, "train.steps": 60, "checkpoint.restart": checkpoint}, 2)
        self.assertEqual(longer["variance_frozen_at_step"], "4")
        self.assertEqual({row["phase"] for row in rows[4:]}, {"compressed"})
        self.assertNotIn("variance frozen at", self.stdout)

    def test_bias_correction_of_an_earlier_variance(self):
        # The earlier run stays where it begins, so its variance, 1 − β2¹⁰⁰⁰ = 63 % of g², corrects to g².
        keys = {"workload.kind": "quadratic", "quadratic.noise": 0, "train.batch": 12, "train.steps": 12,
                "train.validate_every": 0, "optimizer.lr": 0.01, "optimizer.beta2": 0.999, "freeze.step": 5,
                "optimizer.bias_correction": "true"}
        state = self.directory / "corrected.h5"
        self.train({**keys, "optimizer.algorithm": "adam", "optimizer.lr": 1e-9, "train.steps": 1000,
                    "run.dump_parameters": state}, 2)
        for algorithm in ("adam", "onebit_adam_32bit"):
            plain = {**keys, "optimizer.algorithm": algorithm}
            second = {**plain, "freeze.from": state, "checkpoint.every": 4, "checkpoint.keep": 4}
            _, from_zero, _ = self.train(plain, 2)
            whole, rows, _ = self.train(second, 2)
            first, last = float(from_zero[0]["loss"]), float(from_zero[-1]["loss"])
            self.assertLess(last, 0.9 * first)
            # The twin's v follows its shrinking gradient, which the earlier v still outweighs: 2 %.
            self.assertAlmostEqual(float(rows[-1]["loss"]), last, delta=0.05 * (first - last), msg=algorithm)
            checkpoints = self.directory / f"run{self.count}" / "checkpoints"
            for step in (4, 8):
                again, _, _ = self.train({**second, "checkpoint.restart": checkpoints / f"step_{step:08}.h5"}, 2)
                self.assertEqual(again["parameters_hash"], whole["parameters_hash"], f"{algorithm} from step {step}")

    def test_variance_of_an_earlier_run_replaces_the_warm_up(self):
        state = self.directory / "state.h5"
        keys = {**TINY_GPT, "optimizer.algorithm": "onebit_adam", "train.steps": 40}
        _, first, _ = self.train({**keys, "optimizer.algorithm": "adam", "run.dump_parameters": state}, ranks=2)
        run, from_state, _ = self.train({**keys, "freeze.step": 0, "freeze.from": state}, ranks=2)
        self.assertEqual({row["phase"] for row in from_state}, {"compressed"})
        self.assertAlmostEqual(float(from_state[0]["variance_l1"]), float(first[-1]["variance_l1"]),
                               delta=1e-6 * float(first[-1]["variance_l1"]))
        self.assertLess(float(run["final_validation_loss"]), float(first[0]["loss"]) - 0.5)
        other = {**keys, "model.hidden": 64, "freeze.step": 0, "freeze.from": state}
        self.assertIn("there is no variance of", self.train(other, ranks=2, expected=2)[2])

    def test_a_restart_that_regroups_elements_says_so(self):
        keys = {"workload.kind": "quadratic", "train.batch": 12, "train.steps": 8, "freeze.step": 2,
                "optimizer.algorithm": "onebit_adam", "checkpoint.every": 4}
        self.train(keys, 2)
        restart = {**keys, "checkpoint.restart": self.directory / f"run{self.count}/checkpoints/step_00000004.h5"}
        self.train(restart, 2)
        self.assertNotIn("share a scale", self.stdout)
        self.train({**restart, "comm.compressed_bucket_bytes": 4096}, 2)
        self.assertRegex(self.stdout, r"warning: .*share a scale.*compressed_bucket_bytes \(there 0, here 4096\)")

    def test_time_to_target(self):
        keys = {**TINY_GPT, "optimizer.algorithm": "onebit_adam", "freeze.step": 8, "train.steps": 40,
                "train.validate_every": 4, "checkpoint.every": 20}
        without, rows, _ = self.train(keys, ranks=2)
        self.assertEqual([without[name] for name in ("target_loss", "steps_to_target")], ["", ""])
        found = [(int(row["step"]), float(row["validation_loss"])) for row in rows if row["validation_loss"]]
        target = found[len(found) // 2][1] + 1e-5  # the file rounds a loss, so the loss itself may be larger
        step = next(step for step, loss in found if loss <= target)
        with_target = {**keys, "train.target_loss": target}
        run, rows, _ = self.train(with_target, ranks=2)
        self.assertEqual(run["parameters_hash"], without["parameters_hash"])
        self.assertEqual(int(run["steps_to_target"]), step)
        before = [row for row in rows if int(row["step"]) <= step]
        self.assertEqual(int(run["bytes_to_target"]), sum(int(row["bytes_sent"]) for row in before))
        self.assertAlmostEqual(float(run["time_to_target_s"]), sum(float(row["step_s"]) for row in before), delta=1e-4)
        checkpoint = self.directory / f"run{self.count}" / "checkpoints/step_00000020.h5"
        again, _, _ = self.train({**with_target, "checkpoint.restart": checkpoint}, ranks=2)
        self.assertEqual([again[name] for name in ("steps_to_target", "bytes_to_target")],
                         [run[name] for name in ("steps_to_target", "bytes_to_target")])
        never, _, _ = self.train({**keys, "train.target_loss": 1e-6}, ranks=2)
        self.assertEqual((float(never["target_loss"]), never["steps_to_target"]), (1e-6, ""))

    def test_nonfinite_gradients(self):
        # The update of step 1 overflows every parameter, so step 2 has no finite gradient on any rank.
        keys = {**TINY_GPT, "optimizer.lr": 1e38}
        _, _, error = self.train(keys, 2, expected=1)
        self.assertIn("step ", error)
        self.assertIn("tensor", error)
        self.assertIn("remedy:", error)
        run, steps, _ = self.diverged({**keys, "optimizer.on_nonfinite": "skip"}, 2)
        self.assertGreater(int(run["skipped_steps"]), 0)
        self.assertEqual(int(run["skipped_steps"]), sum(int(row["skipped"]) for row in steps))

    def test_a_restart_does_not_forget_that_the_validation_was_nan(self):
        # The loss of step 1 is finite, and its update overflows every parameter.
        keys = {**TINY_GPT, "optimizer.lr": 1e38, "train.steps": 1, "train.validate_every": 1, "checkpoint.every": 1}
        self.train(keys, expected=1)
        self.assertRegex(self.stdout, "\nVALIDATION FAILED the final validation loss is not finite")
        checkpoint = self.directory / f"run{self.count}" / "checkpoints/step_00000001.h5"
        self.train({**keys, "checkpoint.restart": checkpoint}, expected=1)
        self.assertRegex(self.stdout, "\nVALIDATION FAILED the final validation loss is not finite")

    def test_earlier_results_survive_a_failed_run(self):
        run, _, _ = self.train(TINY_GPT)
        output = self.directory / f"run{self.count}"
        before = (output / "steps.csv").read_bytes()
        keys = {**TINY_GPT, "optimizer.lr": 1e38}
        type(self).count -= 1
        self.train(keys, expected=1)
        self.assertEqual(before, (output / "steps.csv").read_bytes())
        self.assertTrue((output / "steps.csv.partial").read_text().startswith("step,phase,loss"))

    def test_phases_add_up(self):
        """To a step, whatever it does, norms too.

        What no phase counts is missing in every step, and what two phases count is double in every step. A process that
        is suspended between two phases spoils one step alone.
        """
        parts = ("forward", "backward", "allreduce", "compress", "all_to_all", "average", "all_gather", "update",
                 "check", "agree")
        shape = {**TINY_GPT, "model.hidden": 128, "model.feed_forward": 512, "optimizer.algorithm": "onebit_adam"}
        quadratic = {"workload.kind": "quadratic", "quadratic.dimension": 400000, "train.steps": 30, "train.batch": 4,
                     "train.validate_every": 0, "freeze.step": 10}
        for keys in ({**quadratic, "optimizer.algorithm": "onebit_adam"}, {**quadratic, "optimizer.algorithm": "adam",
                     "freeze.step": "auto"}, shape, {**shape, "comm.compressed_bucket_bytes": 65536}):
            self.train(keys, 2)
            rows = support.read_csv(self.directory / f"run{self.count}/steps.csv")
            for phase in {row["phase"] for row in rows}:
                shares = [sum(float(row[part + "_s"]) for part in parts) / float(row["step_s"])
                          for row in rows if row["phase"] == phase]
                self.assertGreater(max(shares), 0.98, msg=(keys, phase, shares))
                self.assertLess(min(shares), 1.02, msg=(keys, phase, shares))
            rows = support.read_csv(self.directory / f"run{self.count}/profile.csv")
            self.assertTrue(all(float(row["mean_s"]) > 0 for row in rows if row["measure"] in ("check", "agree")))

    def test_lines_of_a_log(self):
        """Standard output that is no terminal gets a line a minute, unless the input says otherwise."""
        slow = {"workload.kind": "synthetic", "workload.parameters": 10, "workload.compute_time_ms": 50,
                "train.steps": 60, "train.batch": 4, "freeze.step": 3}
        for keys, least, most in (({}, 2, 3), ({"run.progress_interval_s": 0.1}, 10, 60)):
            self.train({**slow, **keys}, 2)
            lines = self.stdout.count("\nstep ")
            self.assertTrue(least <= lines <= most, self.stdout)
        self.assertRegex(self.stdout, r"  time left \d s\n")

    def test_crowded_cores_are_told(self):
        cores = len(os.sched_getaffinity(0))
        keys = {"workload.kind": "quadratic", "train.steps": 2, "train.batch": 4, "freeze.step": 1}
        for ranks, threads, crowded in ((1, 1, False), (2, cores, True)):
            self.train({**keys, "run.threads": threads}, ranks)
            self.assertIn(f"threads: {threads} a rank; ranks on this host: {ranks}; a rank may run on {cores} of",
                          self.stdout)
            self.assertEqual(f"start {ranks * threads} threads and may run on {cores} core(s)" in self.stdout, crowded,
                             self.stdout)
            self.assertEqual("set OMP_NUM_THREADS" in self.stdout, crowded)

    def test_quadratic_reaches_its_optimum(self):
        for algorithm in ("adam", "onebit_adam"):
            run, steps, _ = self.train({
                "workload.kind": "quadratic", "quadratic.dimension": 1000, "quadratic.condition": 10,
                "train.steps": 400, "train.batch": 4, "optimizer.algorithm": algorithm, "optimizer.lr": 0.02,
                "schedule.decay": "linear", "freeze.step": 100, "quadratic.noise": 0.1, "run.check_replicas_every": 1},
                4)
            self.assertLess(float(run["final_validation_loss"]), 1e-2 * float(steps[0]["loss"]), algorithm)

    def test_precision_that_is_measured_is_the_one_that_runs(self):
        model = {**TINY_GPT, "train.steps": 4}
        for ranks in (1, 2):
            measured, _, _ = self.train({**model, "model.precision": "auto"}, ranks)
            if "no bfloat16" in measured["precision_reason"] or "no oneDNN" in measured["precision_reason"]:
                self.assertEqual(measured["precision"], "fp32")
            else:
                self.assertIn(measured["precision"], ("fp32", "bf16"))
                self.assertRegex(measured["precision_reason"], "fp32 [0-9.e+-]+ ms, bf16 [0-9.e+-]+ ms$")
            given, _, _ = self.train({**model, "model.precision": measured["precision"]}, ranks)
            self.assertEqual(given["precision_reason"], "the input says so")
            self.assertEqual(measured["parameters_hash"], given["parameters_hash"])

    def test_precision_without_products(self):
        run, _, _ = self.train({"workload.kind": "quadratic", "quadratic.dimension": 100, "train.steps": 2,
                                "model.precision": "auto"})
        self.assertEqual((run["precision"], run["precision_reason"]), ("fp32", "the workload has no products"))

    def test_a_grid_of_ranks_moves_the_same_words(self):
        for algorithm, keys in (("onebit_adam", {}), ("onebit_muon", {}), ("distributed_lion", {}),
                                ("adam_nbit_variance", {"optimizer.epsilon": 0.01})):
            with self.subTest(algorithm=algorithm):
                collective, grid = (self.train(
                    {**TINY_GPT, **keys, "optimizer.algorithm": algorithm, "comm.dense_type": "bf16", "train.steps": 6,
                     "freeze.step": 2, "comm.exchange": exchange}, 4)[0] for exchange in ("collective", "grid"))
                self.assertEqual(collective["parameters_hash"], grid["parameters_hash"])
                # On two rows and two columns an all-to-all has four messages a rank and not three, an all-gather three.
                self.assertGreater(int(grid["bytes_sent"]), int(collective["bytes_sent"]))
                self.assertLessEqual(int(grid["bytes_sent"]), 7 / 6 * int(collective["bytes_sent"]) + 1)

    def test_collective_that_is_measured_is_the_one_that_runs(self):
        model = {**TINY_GPT, "optimizer.algorithm": "onebit_adam", "comm.exchange": "pairwise", "train.steps": 20}
        measured, _, _ = self.train({**model, "comm.collective": "auto"}, 4)
        # All ranks are on one host, which leaves these two.
        self.assertIn(measured["collective"], ("flat", "dense"))
        for name in ("flat", "dense"):
            self.assertRegex(measured["collective_reason"], f"{name} [0-9.e+-]+ ms")
        self.assertNotIn("hierarchical", measured["collective_reason"])
        compressor = {"flat": "sign", "dense": "none"}[measured["collective"]]
        given, _, _ = self.train({**model, "compression.compressor": compressor}, 4)
        self.assertEqual(measured["parameters_hash"], given["parameters_hash"])
        self.assertEqual(measured["bytes_sent"], given["bytes_sent"])  # trials are not counted
        # A dense average of the frozen phase is what onebit_adam_32bit does.
        dense, steps, _ = self.train({**model, "compression.compressor": "none"}, 4)
        full, _, _ = self.train({**model, "optimizer.algorithm": "onebit_adam_32bit"}, 4)
        self.assertEqual(dense["parameters_hash"], full["parameters_hash"])
        self.assertEqual({row["phase"] for row in steps}, {"dense"})


if __name__ == "__main__":
    skips.main(sys.argv[3:])
