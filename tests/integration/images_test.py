#!/usr/bin/env python3
"""Training on images: the same run on any number of ranks and threads, from a checkpoint, with every network, with
algorithms that send rows of matrices, and with convolutions of one bit. The same for a DCGAN, and the picture that it
writes.

Usage: images_test.py PROGRAM MPIEXEC [unittest arguments]
"""

import pathlib
import struct
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import skips
import support

SIDE, CLASSES = 8, 4
TRAINING, VALIDATION = 96, 64

KEYS = {
    "workload.kind": "images", "images.width": 4, "images.norm_samples": 4, "images.augment": "none",
    "train.steps": 30, "train.batch": 16, "train.validate_every": 10, "train.validation_batch": VALIDATION,
    "optimizer.algorithm": "adam", "optimizer.lr": 3e-3, "optimizer.beta2": 0.99, "freeze.step": 10,
    "run.check_replicas_every": 1,
}
# Four convolutions of one bit; the others of a network so narrow learn little with it.
ONE_BIT = {"model.quantization.kind": "fqt", "images.width": 8, "optimizer.lr": 1e-2,
           "model.quantization.exclude": "[layer2.*, layer3.*, layer4.*]"}
MIXER = {"images.network": "mixer", "images.width": 16}
# A small ε and a large rate would let rounding grow from step to step.
DCGAN = {
    "workload.kind": "dcgan", "optimizer.lr": 1e-3, "optimizer.beta1": 0.5, "optimizer.epsilon": 1e-3,
    "train.steps": 5, "train.validate_every": 5,
}


def image(draw, kind):
    """Noise, and a bright bar whose place is the class."""
    pixels = bytearray(draw(100) for _ in range(SIDE * SIDE))
    for place in range(SIDE):
        row, column = (2 * kind, place) if draw(2) else (2 * kind + 1, place)
        pixels[row * SIDE + column] = 200 + draw(56)
    return bytes(pixels)


class Images(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = support.scratch(cls)
        draw = support.Draws()
        for name, count in (("train", TRAINING), ("held_out", VALIDATION)):
            labels = bytes(i % CLASSES for i in range(count))
            images = b"".join(image(draw, label) for label in labels)
            (cls.directory / f"{name}-images-idx3-ubyte").write_bytes(
                struct.pack(">4I", 0x803, count, SIDE, SIDE) + images)
            (cls.directory / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, count) + labels)
        (cls.directory / "input.yaml").write_text("train: {steps: 30}\n")

    def train(self, name, keys=None, ranks=2):
        """Runs the program; returns (row of run.csv, rows of steps.csv)."""
        files = {f"images.{part}": f"[{self.directory / (file + '-images-idx3-ubyte')}]"
                 for part, file in (("training", "train"), ("validation", "held_out"))}
        run, steps, _ = support.train(self, {**KEYS, **files, **(keys or {})}, self.directory / name,
                                      self.directory / "input.yaml", ranks, timeout=120)
        return run, steps

    @staticmethod
    def losses(steps):
        return [[row[column] for column in ("loss", "validation_loss", "validation_accuracy", "validation_distance")]
                for row in steps]

    def assert_near(self, steps, expected, what):
        """Equal losses and distances, up to rounding."""
        for row, expected_row in zip(steps, expected):
            for column in ("loss", "validation_loss", "validation_distance"):
                self.assertEqual(bool(row[column]), bool(expected_row[column]), column)
                if row[column]:
                    self.assertAlmostEqual(float(row[column]) / float(expected_row[column]), 1, delta=1e-3,
                                           msg=f"{column} of step {row['step']} {what}")

    def test_ranks_change_nothing_but_rounding(self):
        """A batch normalisation has the same samples on any number of ranks, and a mixer has none."""
        # A small ε and a large rate let rounding grow from step to step.
        keys = {"optimizer.epsilon": 1e-3, "optimizer.lr": 1e-3, "train.steps": 5, "train.validate_every": 5}
        run, one = self.train("ranks_1", keys, ranks=1)
        self.assertEqual((run["architecture"], run["parameters"]), ("resnet18", "44352"))
        for ranks in (2, 4):
            _, steps = self.train(f"ranks_{ranks}", keys, ranks=ranks)
            self.assert_near(steps, one, f"on {ranks} ranks")
        # A validation of it needs no calibration.
        keys = {**keys, **MIXER, "images.norm_samples": 64}
        run, one = self.train("mixer_ranks_1", keys, ranks=1)
        self.assertEqual((run["architecture"], run["parameters"]), ("mixer", "9428"))
        _, steps = self.train("mixer_ranks_4", keys, ranks=4)
        self.assert_near(steps, one, "of a mixer on 4 ranks")

    def test_threads_and_backends_give_the_same_bits(self):
        keys = {"train.steps": 6, "train.validate_every": 3, "images.augment": "crop_flip"}
        for name, changes in (("float", {}), ("one_bit", ONE_BIT), ("mixer", MIXER),
                              ("one_bit_mixer", {**MIXER, "model.quantization.kind": "fqt"})):
            _, expected = self.train(f"{name}_serial", {**keys, **changes, "run.backend": "serial"})
            for threads in (1, 2):
                _, steps = self.train(f"{name}_threads_{threads}", {**keys, **changes, "run.backend": "openmp",
                                                                    "run.threads": threads})
                self.assertEqual(self.losses(steps), self.losses(expected), f"{name}, {threads} threads")

    def test_restart(self):
        """No statistics of batch normalisations are a state of the run, and no random numbers of quantisers."""
        keys = {"optimizer.algorithm": "onebit_adam", "checkpoint.every": 15, "checkpoint.restart": "auto",
                "train.validate_every": 15}
        for name, changes in (("float", {}), ("one_bit", ONE_BIT)):
            _, undisturbed = self.train(f"{name}_undisturbed", {**keys, **changes})
            self.train(f"{name}_restarted", {**keys, **changes, "train.steps": 15})
            _, steps = self.train(f"{name}_restarted", {**keys, **changes})
            self.assertEqual(self.losses(steps), self.losses(undisturbed), name)

    def test_convolutions_of_one_bit(self):
        """They learn, and n ranks quantise as one rank does in n rounds."""
        for group in ("image", "position"):
            keys = {**ONE_BIT, "model.quantization.group": group}
            run, steps = self.train(f"{group}_ranks", keys)
            self.assertLess(float(run["final_validation_loss"]), 0.8 * float(steps[0]["loss"]))
            for row in steps:
                self.assertAlmostEqual(float(row["gradient_bits"]), 1, delta=0.15)
                self.assertAlmostEqual(float(row["pruned_share"]), 0.75, delta=0.05)
                self.assertEqual(row["quantizer_variance"] != "", row["step"] in ("10", "20", "30"))
            # A small ε and more steps let rounding grow until a sign changes.
            short = {**keys, "optimizer.epsilon": 1e-3, "optimizer.lr": 1e-3, "train.steps": 2}
            _, ranks = self.train(f"{group}_ranks_short", short)
            _, rounds = self.train(f"{group}_rounds", {**short, "train.accumulation": 2}, ranks=1)
            for row, row_of_rounds in zip(ranks, rounds):
                self.assertAlmostEqual(float(row["loss"]) / float(row_of_rounds["loss"]), 1, delta=1e-4)

    def test_groups_of_convolutions_are_recorded(self):
        keys = {**ONE_BIT, "train.steps": 2, "train.validate_every": 2, "model.quantization.record_every": 2}
        for group, rows in (("image", 8), ("position", 8 * SIDE * SIDE)):
            self.train(f"recorded_{group}", {**keys, "model.quantization.group": group})
            found = support.read_csv(self.directory / f"recorded_{group}/gradient_groups.csv")
            self.assertEqual({row["layer"] for row in found},
                             {f"layer1.{block}.conv{number}" for block in (0, 1) for number in (1, 2)})
            self.assertEqual({(row["axis"], row["groups"], row["elements"]) for row in found},
                             {("rows", str(rows), str(8 * 8 * SIDE * SIDE // rows)),
                              ("columns", "8", str(8 * SIDE * SIDE))})

    def test_networks_and_algorithms_learn(self):
        for network, algorithm, rate in (("vgg16", "adam", 3e-3), ("resnet18", "onebit_adam", 3e-3),
                                         ("resnet18", "onebit_muon", 1e-3), ("vgg16", "onebit_sgd", 3e-2),
                                         ("mixer", "adam", 3e-3), ("mixer", "onebit_adam", 3e-3)):
            run, steps = self.train(f"{network}_{algorithm}", {
                "images.network": network, "optimizer.algorithm": algorithm, "optimizer.lr": rate,
                "train.accumulation": 2, "train.batch": 32, "images.norm_samples": 8})
            self.assertLess(float(run["final_validation_loss"]), 0.8 * float(steps[0]["loss"]),
                            f"{network} with {algorithm}")
            self.assertGreater(float(run["final_validation_accuracy"]), 0.4, "a quarter is right by guessing")

    def test_a_mixer_of_one_bit_learns(self):
        run, steps = self.train("one_bit_mixer", {**MIXER, "model.quantization.kind": "fqt", "train.steps": 60,
                                                  "optimizer.lr": 1e-2})
        self.assertLess(float(run["final_validation_loss"]), 0.8 * float(steps[0]["loss"]))

    def test_a_mixer_needs_whole_patches(self):
        for file, count in (("train", TRAINING), ("held_out", VALIDATION)):
            header = struct.pack(">4I", 0x803, count, SIDE, SIDE - 2)
            (self.directory / f"narrow_{file}-images-idx3-ubyte").write_bytes(header + bytes(count * SIDE * (SIDE - 2)))
            labels = (self.directory / f"{file}-labels-idx1-ubyte").read_bytes()
            (self.directory / f"narrow_{file}-labels-idx1-ubyte").write_bytes(labels)
        files = {f"images.{part}": f"[{self.directory / f'narrow_{file}-images-idx3-ubyte'}]"
                 for part, file in (("training", "train"), ("validation", "held_out"))}
        *_, done = support.train(self, {**KEYS, **MIXER, **files}, self.directory / "narrow",
                                 self.directory / "input.yaml", 2, expected=2, timeout=120)
        for said in ("images.training", "8 x 6 pixels", "multiples of 4"):
            self.assertIn(said, done.stderr)

    def test_dcgan_on_ranks_and_threads(self):
        """One rank or four draw the same numbers, images and groups; threads and backends compute the same bits."""
        run, one = self.train("dcgan_1", DCGAN, ranks=1)
        self.assertTrue(one[-1]["validation_distance"])
        self.assertEqual(run["final_validation_distance"], one[-1]["validation_distance"])
        self.assertEqual(run["final_validation_accuracy"], "")
        for ranks in (2, 4):
            _, steps = self.train(f"dcgan_{ranks}", DCGAN, ranks=ranks)
            self.assert_near(steps, one, f"on {ranks} ranks")
        _, serial = self.train("dcgan_serial", {**DCGAN, "run.backend": "serial"}, ranks=1)
        _, threads = self.train("dcgan_threads", {**DCGAN, "run.threads": 2}, ranks=1)
        self.assertEqual(self.losses(serial), self.losses(one))
        self.assertEqual(self.losses(threads), self.losses(one))

    def test_dcgan_restarts_and_writes_a_picture(self):
        keys = {**DCGAN, "optimizer.algorithm": "onebit_adam", "train.steps": 20, "freeze.step": 4,
                "train.accumulation": 2, "checkpoint.every": 10, "checkpoint.restart": "auto",
                "train.validate_every": 10}
        _, undisturbed = self.train("dcgan_undisturbed", keys)
        self.train("dcgan_restarted", {**keys, "train.steps": 10})
        _, steps = self.train("dcgan_restarted", keys)
        self.assertEqual(self.losses(steps), self.losses(undisturbed))
        pictures = [(self.directory / name / "samples.pgm").read_bytes()
                    for name in ("dcgan_undisturbed", "dcgan_restarted")]
        header = f"P5 {8 * SIDE} {8 * SIDE} 255\n".encode()
        self.assertEqual(pictures[0][:len(header)], header)
        self.assertEqual(len(pictures[0]), len(header) + 64 * SIDE * SIDE)
        self.assertEqual(pictures[0], pictures[1])
        self.assertEqual([file.name for file in (self.directory / "dcgan_undisturbed").glob("*.partial")], [])

    def test_dcgan_learns(self):
        """Generated images come near to the held-out ones. They do not stay there in so small a network, whose losses
        swing, so the nearest counts."""
        _, steps = self.train("dcgan_learns", {
            **DCGAN, "optimizer.lr": 2e-3, "optimizer.epsilon": 1e-8, "train.steps": 500, "train.validate_every": 20,
            "images.width": 16})
        distances = [float(row["validation_distance"]) for row in steps if row["validation_distance"]]
        self.assertLess(min(distances), 0.25 * distances[0])

    def test_other_images_than_the_network_was_trained_with(self):
        """A set of other extents or classes, and files that are no images, name themselves."""
        for name, content, said in (
                ("odd-images-idx3-ubyte", struct.pack(">4I", 0x803, 1, 4, 4) + bytes(16), "cannot be read"),
                ("text.bin", b"some text", "no images in a known format")):
            (self.directory / name).write_bytes(content)
            *_, done = support.train(self, {**KEYS, "images.training": f"[{self.directory / name}]",
                                            "images.validation": f"[{self.directory / 'held_out-images-idx3-ubyte'}]"},
                                     self.directory / ("refused_" + name), self.directory / "input.yaml", 2,
                                     expected=2, timeout=120)
            self.assertIn(said, done.stderr)
            self.assertIn("images.training", done.stderr)


if __name__ == "__main__":
    skips.main(sys.argv[3:])
