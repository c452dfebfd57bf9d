#!/usr/bin/env python3
"""Phases of training, each from the checkpoint of the one before: a short sequence, a longer one, and fine-tuning on
labelled lines, with Adam and with 1-bit Adam.

Also the files that scripts/classification_tasks.py makes of package lists and of images.

Usage: fine_tuning_test.py PROGRAM MPIEXEC [unittest arguments]
"""

import os
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import skips
import support

INPUTS = support.ROOT / "inputs"

MODEL = {
    "train.batch": 32, "train.validation_batch": 64, "optimizer.lr": 1e-2, "optimizer.beta2": 0.9,
    "optimizer.epsilon": 1e-6, "run.check_replicas_every": 1, "run.dump_parameters": "parameters.h5",
    "model.layers": 1, "model.hidden": 32, "model.heads": 2, "model.feed_forward": 64, "model.positions": 24,
    "model.sequence": 12, "model.dropout": 0, "data.tokenizer": "characters", "optimizer.algorithm": "adam",
}


class Text:
    """Sentences of two kinds that share most of their words."""

    def __init__(self):
        self.draw = support.Draws()

    def sentence(self, kind):
        return f"{('sun', 'moon')[kind]} {('and', 'or', 'but')[self.draw(3)]} {('sea', 'tree', 'river')[self.draw(3)]}"


class FineTuning(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = support.scratch(cls)
        text = Text()
        cls.write("corpus.txt", [text.sentence(text.draw(2)) for _ in range(1000)])
        for name, lines in (("train.tsv", 200), ("held_out.tsv", 64)):
            cls.write(name, [f"{('day', 'night')[i % 2]}\t{text.sentence(i % 2)}" for i in range(lines)])
        cls.write("input.yaml", ["train: {steps: 60}"])

    @classmethod
    def write(cls, name, lines):
        (cls.directory / name).write_text("".join(line + "\n" for line in lines))

    def train(self, name, keys, ranks=2, path=None, expected=0):
        """Runs the program; returns (row of run.csv, rows of steps.csv, what it printed)."""
        run, steps, done = support.train(
            self, {**keys, "data.corpus": f"[{self.directory / 'corpus.txt'}]"}, self.directory / name,
            path or self.directory / "input.yaml", ranks, expected=expected, timeout=120)
        return run, steps, done.stderr if expected else done.stdout

    def classify(self, name, keys, **options):
        # A large ε: elements without a gradient (keys' biases, the second token type) would run away where the variance
        # is frozen.
        return self.train(name, {**MODEL, "workload.kind": "classification", "train.validate_every": 20,
                                 "optimizer.lr": 1e-2, "optimizer.beta2": 0.99, "optimizer.epsilon": 1e-3,
                                 "schedule.decay": "linear", "model.sequence": 24, "freeze.step": 30,
                                 "compression.group": "tensor",
                                 "data.labelled": self.directory / "train.tsv",
                                 "data.labelled_validation": self.directory / "held_out.tsv", **keys}, **options)

    def test_phases_and_fine_tuning(self):
        for architecture in ("bert", "gpt"):
            model = {"model.architecture": architecture}
            first, first_steps, _ = self.train(f"{architecture}_12", {**MODEL, **model, "train.steps": 80,
                                                                      "optimizer.algorithm": "onebit_adam",
                                                                      "freeze.step": 40})
            self.assertLess(float(first["final_loss"]), 0.95 * float(first_steps[0]["loss"]), "nothing was learned")

            # A longer sequence with its own T_w begins where the first one ended, not at an untrained model's loss.
            checkpoint = self.directory / f"{architecture}_12/parameters.h5"
            longer, steps, _ = self.train(f"{architecture}_24", {
                **MODEL, **model, "model.sequence": 24, "train.steps": 30, "optimizer.algorithm": "onebit_adam",
                "freeze.step": 10, "checkpoint.initialize_from": checkpoint})
            self.assertEqual(longer["variance_frozen_at_step"], "10")
            untrained, trained = float(first_steps[0]["loss"]), float(first["final_validation_loss"])
            # Positions 13 to 24 are new to it.
            self.assertLess(float(steps[0]["loss"]), (3 * untrained + trained) / 4)

            # The head that reads the mean over the tokens learns them too.
            run, _, _ = self.classify(f"{architecture}_mean", {
                **model, "checkpoint.initialize_from": self.directory / f"{architecture}_24/parameters.h5",
                "train.steps": 100, "optimizer.algorithm": "adam", "model.pooling": "mean"})
            self.assertGreaterEqual(float(run["final_validation_accuracy"]), 0.75, f"{architecture} mean")

            # Both algorithms learn the classes, with the same bits again and the same losses on one rank.
            keys = {**model, "checkpoint.initialize_from": self.directory / f"{architecture}_24/parameters.h5",
                    "train.steps": 100, "freeze.step": 50}
            for algorithm in ("adam", "onebit_adam"):
                run, steps, said = self.classify(f"{architecture}_{algorithm}",
                                                 {**keys, "optimizer.algorithm": algorithm})
                self.assertIn("begin anew: classifier", said)
                self.assertEqual("left out: head" in said, architecture == "bert")
                # Half are right by guessing; of three seeds tried the worst had 0.83.
                self.assertGreaterEqual(float(run["final_validation_accuracy"]), 0.75, f"{architecture} {algorithm}")
                self.assertEqual([row["step"] for row in steps if row["validation_accuracy"]],
                                 ["20", "40", "60", "80", "100"])
                self.assertEqual(run["final_validation_accuracy"], steps[-1]["validation_accuracy"])
                self.assertEqual({row["phase"] for row in steps[50:]},
                                 {"compressed" if algorithm == "onebit_adam" else "dense"})
                self.assertLess(abs(float(steps[0]["loss"]) - 0.693), 0.1)  # ln 2: the head is untrained
            alone, alone_steps, _ = self.classify(f"{architecture}_alone", keys, ranks=1)
            together_steps = support.read_csv(self.directory / f"{architecture}_adam/steps.csv")
            for a, b in list(zip(together_steps, alone_steps))[:10]:  # roundings grow
                self.assertAlmostEqual(float(a["loss"]), float(b["loss"]), delta=1e-3)

    def test_restart_of_fine_tuning_has_the_same_bits(self):
        keys = {"optimizer.algorithm": "onebit_adam", "model.dropout": 0.1, "checkpoint.every": 20,
                "checkpoint.keep": 9}
        whole, _, _ = self.classify("whole", keys)
        again, steps, _ = self.classify("again", {
            **keys, "checkpoint.restart": self.directory / "whole/checkpoints/step_00000020.h5"})
        self.assertEqual(whole["parameters_hash"], again["parameters_hash"])
        self.assertEqual(whole["final_validation_accuracy"], again["final_validation_accuracy"])
        self.assertEqual(len(steps), 60)

    def test_pairs_of_texts(self):
        # The second text has the label's kind, the first one none.
        text = Text()
        for name, lines in (("pairs.tsv", 200), ("pairs_held_out.tsv", 64)):
            self.write(name, [f"{('day', 'night')[i % 2]}\t{text.sentence(0).split(' ', 1)[1]}\t{text.sentence(i % 2)}"
                              for i in range(lines)])
        keys = {"data.labelled": self.directory / "pairs.tsv", "model.second_text": 12, "model.architecture": "bert",
                "data.labelled_validation": self.directory / "pairs_held_out.tsv", "optimizer.algorithm": "adam",
                "model.pooling": "mean", "checkpoint.every": 30, "checkpoint.keep": 9}
        whole, steps, said = self.classify("pairs", keys)
        self.assertIn("2 classes (day, night); 200 texts to train on, 64 to validate with", said)
        self.assertGreaterEqual(float(whole["final_validation_accuracy"]), 0.75)
        again, _, _ = self.classify("pairs_again", {
            **keys, "checkpoint.restart": self.directory / "pairs/checkpoints/step_00000030.h5"})
        self.assertEqual(again["parameters_hash"], whole["parameters_hash"])
        _, alone, _ = self.classify("pairs_alone", keys, ranks=1)
        for a, b in list(zip(steps, alone))[:10]:  # roundings grow
            self.assertAlmostEqual(float(a["loss"]), float(b["loss"]), delta=1e-3)
        _, _, error = self.classify("no_pairs", {**keys, "data.labelled": self.directory / "train.tsv"}, expected=2)
        self.assertRegex(error, "train.tsv:1: .*no second text")
        _, _, error = self.classify("no_place", {**keys, "model.second_text": 24}, expected=2)
        self.assertIn("model.second_text", error)

    def test_spans(self):
        # Which word of the sentence is of the kind that is asked for? The words stand in any order.
        text = Text()

        def line(i):
            words = text.sentence(i % 2).split(" ")
            words = words[i % 3:] + words[:i % 3]
            answer = {"sky": ("sun", "moon"), "earth": ("sea", "tree", "river")}[("sky", "earth")[i % 2]]
            return f"{next(word for word in words if word in answer)}\t{('sky', 'earth')[i % 2]}\t{' '.join(words)}"

        # The corpus has the letters of all questions.
        self.write("spans_corpus.txt", [f"sky earth {text.sentence(text.draw(2))}" for _ in range(1000)])
        for name, first, lines in (("spans.tsv", 0, 200), ("spans_held_out.tsv", 1, 64)):
            self.write(name, [line(i) for i in range(first, first + lines)])
        keys = {"workload.kind": "spans", "model.second_text": 8, "model.architecture": "bert",
                "data.labelled": self.directory / "spans.tsv", "train.steps": 200, "train.validate_every": 100,
                "data.labelled_validation": self.directory / "spans_held_out.tsv", "freeze.step": 100,
                "checkpoint.every": 60, "checkpoint.keep": 9}

        def train(name, changes=(), **options):
            given = {**MODEL, "optimizer.epsilon": 1e-3, "optimizer.beta2": 0.99, "model.sequence": 24,
                     "compression.group": "tensor", **keys, **dict(changes)}
            return support.train(self, {**given, "data.corpus": f"[{self.directory / 'spans_corpus.txt'}]"},
                                 self.directory / name, self.directory / "input.yaml", timeout=120, **options)

        for algorithm in ("adam", "onebit_adam"):
            whole, steps, done = train(f"spans_{algorithm}", {"optimizer.algorithm": algorithm}, ranks=2)
            self.assertIn("200 texts to train on, 64 to validate with; left out because their answer is cut: 0 and 0",
                          done.stdout)
            # By guessing fewer than one of twenty is exact.
            self.assertGreaterEqual(float(whole["final_validation_accuracy"]), 0.6, algorithm)
            self.assertGreaterEqual(float(whole["final_validation_f1"]), float(whole["final_validation_accuracy"]))
            self.assertEqual(whole["final_validation_f1"], steps[-1]["validation_f1"])
            self.assertIn(f"FOM final_validation_f1 {float(whole['final_validation_f1']):.6g}", done.stdout)
        again, _, _ = train("spans_again", {
            "optimizer.algorithm": "onebit_adam",
            "checkpoint.restart": self.directory / "spans_onebit_adam/checkpoints/step_00000120.h5"}, ranks=2)
        self.assertEqual([again[key] for key in ("parameters_hash", "final_validation_f1")],
                         [whole[key] for key in ("parameters_hash", "final_validation_f1")])
        _, alone, _ = train("spans_alone", {"optimizer.algorithm": "onebit_adam"}, ranks=1)
        for a, b in list(zip(steps, alone))[:10]:  # roundings grow
            self.assertAlmostEqual(float(a["loss"]), float(b["loss"]), delta=1e-3)

        for change, part in (({"model.architecture": "gpt"}, "model.architecture"),
                             ({"model.second_text": 0}, "model.second_text"),
                             ({"model.second_text": 1}, "model.second_text"),
                             ({"data.labelled": self.directory / "train.tsv"}, "train.tsv:1: .*no second text"),
                             ({"data.labelled": '""'}, "workload spans needs labelled texts")):
            _, _, done = train("spans_refused", change, ranks=2, expected=2)
            self.assertRegex(done.stderr, part)

    def test_checkpoints_of_other_models_are_refused(self):
        self.classify("model", {"train.steps": 1, "freeze.step": 1})
        keys = {"checkpoint.initialize_from": self.directory / "model/parameters.h5", "train.steps": 1,
                "freeze.step": 1}
        for change, part in (({"model.hidden": 16}, "but this one's is"),
                             ({"model.layers": 2}, "no tensor 'encoder.1."),
                             ({"model.architecture": "gpt"}, "embeddings."),
                             ({"data.tokenizer": "bytes"}, "word.weight")):
            _, _, error = self.classify("other", {**keys, **change}, expected=2)
            self.assertIn(part, error)
            self.assertIn("checkpoint.initialize_from", error)

    def test_papers_phases(self):
        # The inputs of sequence length 128 and 512, with a model of seconds.
        small = {"model.layers": 1, "model.hidden": 16, "model.heads": 2, "model.feed_forward": 32, "train.steps": 2,
                 "train.batch": 2, "train.accumulation": 1, "train.validation_batch": 2, "freeze.step": 1,
                 "schedule.warmup_steps": 0, "data.tokenizer": "bytes", "run.dump_parameters": "parameters.h5"}
        for model in ("base", "large"):
            self.train(f"{model}_128", small, path=INPUTS / f"bert_{model}_seq128.yaml")
            checkpoint = self.directory / f"{model}_128/parameters.h5"
            _, steps, said = self.train(f"{model}_512", {**small, "checkpoint.initialize_from": checkpoint},
                                        path=INPUTS / f"bert_{model}_seq512.yaml")
            self.assertIn("parameters: of ", said)
            self.assertNotIn("begin anew", said)
            self.assertEqual([row["phase"] for row in steps], ["dense", "compressed"])

    def task(self, name, directory, *options, expected=0, packages=""):
        """Makes a classification task; returns ({file: lines}, what ended)."""
        done = subprocess.run([INPUTS.parent / "scripts/classification_tasks.py", name, "--directory",
                               self.directory / directory, *options], capture_output=True, text=True, check=False,
                              env={**os.environ, "PYTHONPATH": str(packages)})
        self.assertEqual(done.returncode, expected, done.stdout + done.stderr)
        return {path.name: path.read_text().splitlines() for path in (self.directory / directory).glob("*")}, done

    def test_digits(self):
        # Images of random pixels in place of scikit-learn's, which need not be installed.
        draw = support.Draws()
        images = [[float(draw(17)) for _ in range(64)] for _ in range(300)]
        labels = [i % 10 for i in range(300)]
        for name, text in (("some/sklearn/__init__", ""), ("none/sklearn/__init__", "raise ImportError('no sklearn')"),
                           ("some/sklearn/datasets", "import types\ndef load_digits():\n    return types."
                            f"SimpleNamespace(data={images}, target={labels})\n")):
            path = self.directory / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        made, done = self.task("digits", "digits_once", packages=self.directory / "some")
        self.assertEqual(self.task("digits", "digits_again", packages=self.directory / "some")[0], made)
        train, held_out = (made[f"digits_{name}.tsv"] for name in ("train", "held_out"))
        expected = ["".join("aaabbbcccccdddeee"[int(level)] for level in image) for image in images]
        self.assertEqual(sorted(train + held_out), sorted(f"{i % 10}\t{text}" for i, text in enumerate(expected)))
        self.assertEqual(sorted(made["digits_text.txt"]), sorted(line.split("\t")[1] for line in train))
        self.assertTrue(30 < len(held_out) < 90, len(held_out))
        self.assertIn(f"digits_held_out.tsv: {len(held_out)} lines, SHA-256 ", done.stdout)
        done = self.task("digits", "no_digits", expected=1, packages=self.directory / "none")[1]
        self.assertIn("pip install scikit-learn", done.stderr)
        self.assertFalse((self.directory / "no_digits").exists())

    def test_sections_of_package_lists(self):
        # Three packages for each source, one of them in another section; sources share a description now and then.
        sections = ("admin", "editors", "fonts", "games", "graphics", "mail", "math", "net", "science", "sound", "text",
                    "video", "web", "contrib/x11", "libs")
        stanzas = [f"Package: p{i}-{part}\nSource: p{i} (1.0)\n"
                   f"Description: {('a', 'A')[part % 2]} {section.title()}-tool, {i // (1 + i % 2)} ({part})\n"
                   f"Tag: a::b,\n c::d\nSection: {section if part else 'doc'}\n"
                   for i in range(600) for section in (sections[i % len(sections)],) for part in range(3)]
        self.write("lists", stanzas)
        self.write("lists_turned", stanzas[::-1])

        def files(name, directory, expected=0):
            return self.task("sections", directory, "--available", self.directory / name, expected=expected)

        made, done = files("lists", "sections_once")
        self.assertEqual(files("lists_turned", "sections_again")[0], made)
        train, held_out = ([line.split("\t") for line in made[f"sections_{name}.tsv"]]
                           for name in ("train", "held_out"))
        self.assertEqual({label for label, _ in train}, {section.rpartition("/")[2] for section in sections} - {"libs"})
        for lines in (train, held_out):
            self.assertEqual(len({text for _, text in lines}), len(lines))
        for _, text in train + held_out:
            # words in lower case, a space before each
            self.assertRegex(text, r"^ a ([a-z]+|x11|contrib x11) tool \d+ \d$")
        held_out_texts = {text for _, text in held_out}
        self.assertGreater(len(held_out), 100)
        self.assertFalse(held_out_texts & ({text for _, text in train} | set(made["sections_text.txt"])))
        self.assertTrue({text for _, text in train} < set(made["sections_text.txt"]))
        self.assertIn(f"sections_held_out.tsv: {len(held_out)} lines, SHA-256 ", done.stdout)
        self.write("few", stanzas[:30])
        self.assertIn("are the package lists whole", files("few", "few_sections", expected=1)[1].stderr)
        self.assertFalse((self.directory / "few_sections").exists())


if __name__ == "__main__":
    skips.main(sys.argv[3:])
