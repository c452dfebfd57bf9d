#!/usr/bin/env python3
"""Runs `onebit bench kernels` and `layers` on small shapes: every kernel is there and right, and its fraction of the
roofline is what its columns give. Then compares the backends with scripts/compare_backends.py.

Usage: kernels_test.py PROGRAM MPIEXEC [unittest arguments]
"""

import collections
import contextlib
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import unittest
from unittest import mock

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent / "scripts")]
import compare_backends
import skips
import support
from lib.tables import percent, write_csv
from support import PROGRAM

ENVIRONMENT = {**support.ENVIRONMENT, "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}
COMPARE = support.ROOT / "scripts/compare_backends.py"
INPUT = """train: {batch: 4, steps: 6, validate_every: 0, validation_batch: 4}
optimizer: {weight_decay: 0.01, bias_correction: true}
freeze: {step: 3}
data: {corpus: [corpus.txt]}
model: {preset: tiny, sequence: 24, vocabulary: 300}
images: {width: 8}
bench: {smallest: 100100, largest: 100100, warmup: 0, repetitions: 1}
"""
OPTIMIZER = ["gradient_norm", "variance_norm", "adam", "momentum_compress", "compress", "residual_norm",
             "average_recompress", "decompress_update"]
LINEAR = [f"{layer}_{part}" for layer in ("qkv", "attention_output", "feed_forward_in", "feed_forward_out", "head")
          for part in ("forward", "d_input", "d_weight")]
NETWORK = [*LINEAR, "attention_forward", "attention_backward", "layer_norm_forward", "layer_norm_backward",
           "gelu_forward", "gelu_forward_subnormal", "gelu_backward", "softmax_loss", "newton_schulz_square",
           "newton_schulz_wide"]
IMAGES = ["convolution_forward", "convolution_d_input", "convolution_d_weight", "unfold", "fold", "batch_norm_forward"]
# In the one shape of so few elements.
BINARY = ["binary_product", "average_1_bit_product", "binary_product_with_packing", "fp32_product"]


class Kernels(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = support.scratch(cls)
        (cls.directory / "input.yaml").write_text(INPUT)
        (cls.directory / "corpus.txt").write_text("a text to learn, of few characters. " * 300)

    def run_it(self, command, backend, *arguments, ranks=1, expected=0, **variables):
        full = [PROGRAM, *command, "input.yaml", "--set", f"run.backend={backend}", "--set", f"run.output={backend}",
                *arguments]
        done = support.run(self, support.ranks_of(ranks, *full), expected, cwd=self.directory,
                           env={**ENVIRONMENT, **variables})
        self.stdout = done.stdout
        return done.stderr

    def kernels(self, *arguments, **options):
        self.run_it(["bench", "kernels"], *arguments, **options)
        return support.read_csv(self.directory / arguments[0] / "kernels.csv")

    def check(self, rows, backend, ranks, precision="fp32"):
        machine = ["triad", "copy", "fma", "gemm"] + [f"gemm_{precision}"] * (precision != "fp32")
        self.assertEqual(sorted(row["kernel"] for row in rows),
                         sorted([*machine, *OPTIMIZER, *NETWORK, *IMAGES, *BINARY]))
        for row in rows:
            rounded = row["kernel"] in LINEAR or row["kernel"].startswith(("gemm_", "newton_schulz_", "convolution_"))
            self.assertEqual(row["precision"], precision if rounded else "fp32")
        for row in rows:
            value = {name: float(row[name] or "nan") for name in row
                     if name not in ("kernel", "shape", "precision", "backend", "bound", "blas", "blas_core", "git",
                                     "machine")}
            self.assertEqual((row["backend"], value["ranks"], value["repetitions"]), (backend, ranks, 1))
            self.assertEqual((value["wrong"], row["git"]), (0, support.version()))
            self.assertGreaterEqual(value["checked"], ranks)
            self.assertLessEqual(value["min_s"], value["median_s"])
            self.assertLessEqual(value["median_s"], value["max_s"])
            bounds = {"memory": value["bytes"] / value["bandwidth_B_per_s"]}
            if value["peak_FLOP_per_s"] > 0:
                bounds["compute"] = value["flop"] / value["peak_FLOP_per_s"]
            self.assertEqual(row["bound"], max(bounds, key=bounds.get))
            if value["bytes"] > 0:
                self.assertAlmostEqual(value["arithmetic_intensity"] * value["bytes"], value["flop"],
                                       delta=1e-6 * value["flop"])
            else:
                self.assertEqual(row["arithmetic_intensity"], "")
            if row["kernel"] in ("copy", "unfold"):  # move bytes only
                rate, roofline = value["bytes"] / value["median_s"], value["bandwidth_B_per_s"]
            else:
                rate = value["flop"] / value["median_s"]
                roofline = min([value["peak_FLOP_per_s"]] * ("compute" in bounds)
                               + [value["arithmetic_intensity"] * value["bandwidth_B_per_s"]] * (value["bytes"] > 0))
            self.assertAlmostEqual(value["fraction_of_roofline"] * roofline / rate, 1, delta=1e-6)
            self.assertGreater(value["fraction_of_roofline"], 0)
        by_name = {row["kernel"]: row for row in rows}
        self.check_figures(by_name.values())
        d = 100100
        self.assertEqual(float(by_name["adam"]["bytes"]), 28 * d)
        self.assertEqual(float(by_name["adam"]["checked"]), 3 * d * ranks)
        self.assertEqual(float(by_name["decompress_update"]["bytes"]), 12 * d + d / 8)
        self.assertEqual([float(by_name[kernel]["flop"]) for kernel in ("adam", "compress")], [14 * d, 3 * d])
        rows_of_rank, hidden = 4 * 24 // ranks, 64
        self.assertEqual(float(by_name["qkv_forward"]["flop"]), 2 * rows_of_rank * hidden * 3 * hidden)
        outputs, channels = 4 // ranks * 32 * 32 * 8, 8
        self.assertEqual(float(by_name["convolution_d_weight"]["flop"]), 2 * outputs * 9 * channels)
        self.assertEqual(by_name["unfold"]["shape"], f"{4 // ranks}x32x32x{channels}")
        self.assertEqual(by_name["softmax_loss"]["shape"].split("x")[1], "300")

    def check_figures(self, rows):
        """Each kernel's rate; sums over the kernels."""
        figures, passed, _ = support.figures(self, self.stdout)
        self.assertTrue(passed)
        self.assertEqual(figures.pop("checked"), (f"{sum(float(row['checked']) for row in rows):.6g}", "elements"))
        self.assertEqual(figures.pop("wrong"), ("0", "elements"))
        expected = {}
        for row in rows:
            work, moved, seconds = (float(row[name]) for name in ("flop", "bytes", "median_s"))
            if work >= 10 * moved:
                expected[row["kernel"] + "_FLOP_per_s"] = work / seconds
            else:
                expected[row["kernel"] + "_B_per_s"] = moved / seconds
        self.assertEqual(figures.keys(), expected.keys())
        for name, (value, unit) in figures.items():
            self.assertAlmostEqual(float(value) / expected[name], 1, delta=1e-5)
            self.assertEqual(unit, "FLOP/s" if name.endswith("_FLOP_per_s") else "B/s")
        self.assertLessEqual({"triad_B_per_s", "fma_FLOP_per_s", "gemm_FLOP_per_s", "adam_B_per_s"}, figures.keys())

    def test_gpt_on_two_threads(self):
        rows = self.kernels("openmp", "--set", "model.architecture=gpt")
        self.check(rows, "openmp", 1)
        self.assertRegex(rows[0]["machine"], r"\S.*, \d+ cores$")

    @staticmethod
    def has_bf16():
        listing = subprocess.run([PROGRAM, "list"], env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout
        return "bf16" in re.search("^precisions of openmp: (.*)$", listing, re.MULTILINE)[1].split()

    def test_rounded_factors(self):
        command = ["openmp", "--set", "model.precision=bf16"]
        if self.has_bf16():
            self.check(self.kernels(*command), "openmp", 1, "bf16")
        else:
            said = self.run_it(["bench", "kernels"], *command, expected=2)
            self.assertIn("model.precision", said)
            self.skipTest("bf16: " + re.search("bf16 cannot be used: (.*)", said)[1])

    def test_layers(self):
        (self.directory / "layers.yaml").write_text("bench: {layers: [vgg16, resnet18, resnet18_small], pixels: [4], "
                                                    "batch: 2, warmup: 0, repetitions: 1}\n")
        done = support.run(self, [PROGRAM, "bench", "layers", "layers.yaml", "--set", "run.output=layers"],
                           cwd=self.directory, env=ENVIRONMENT)
        rows = support.read_csv(self.directory / "layers/layers.csv")
        # A build with oneDNN has this row on every processor, but oneDNN multiplies floats only where it is faster.
        in_bytes = "int8_layer" in {row["kernel"] for row in rows}
        self.assertTrue(in_bytes or not rows[0]["blas"].startswith("oneDNN"))
        kernels = ["fqt_layer", "scq_layer", "fp32_layer"]
        kernels += ["bf16_layer"] * self.has_bf16() + ["int8_layer"] * in_bytes
        counts = {"vgg16": 13, "resnet18": 20, "resnet18_small": 20}  # convolutions of the networks
        for network, count in counts.items():
            of_network = [row for row in rows if row["network"] == network]
            self.assertEqual([row["kernel"] for row in of_network], kernels * (len(of_network) // len(kernels)))
            self.assertEqual(sum(int(row["count"]) for row in of_network), count * len(kernels))
        figures, passed, _ = support.figures(self, done.stdout)
        self.assertTrue(passed)
        self.assertEqual(figures["wrong"], ("0", "elements"))
        seconds, flop = collections.Counter(), collections.Counter()
        for row in rows:
            name = f"{row['network']}_4_{row['kernel']}_FLOP_per_s"
            layers = int(row["count"]) * float(row["rows"]) / float(row["measured_rows"])
            seconds[name] += layers * float(row["median_s"])
            flop[name] += layers * float(row["flop"])
        self.assertEqual(figures.keys() - flop.keys(),
                         {"checked", "wrong", *(f"{network}_4_speedup" for network in counts)})
        for name, work in flop.items():
            self.assertAlmostEqual(float(figures[name][0]) * seconds[name] / work, 1, delta=1e-5)
        self.assertAlmostEqual(float(figures["vgg16_4_speedup"][0]) * seconds["vgg16_4_fqt_layer_FLOP_per_s"]
                               / seconds["vgg16_4_fp32_layer_FLOP_per_s"], 1, delta=1e-5)
        for row in rows:
            N, K, D = (int(row[name]) for name in ("measured_rows", "inputs", "outputs"))
            self.assertEqual((row["shape"], float(row["flop"])), (f"{N}x{K}x{D}", 6 * N * K * D))
            self.assertEqual((row["wrong"], row["repetitions"], N), ("0", "1", min(16384, int(row["rows"]))))
            self.assertGreater(int(row["checked"]), 100)
            self.assertGreater(float(row["median_s"]), 0)
        shapes = {(row["network"], row["layer"]): (row["rows"], row["inputs"], row["outputs"]) for row in rows}
        self.assertEqual(shapes["vgg16", "conv3_2"], ("2", "2304", "256"))
        self.assertEqual(shapes["resnet18", "conv1"], ("8", "147", "64"))
        self.assertEqual(shapes["resnet18", "stage1"], ("2", "576", "64"))
        self.assertEqual(shapes["resnet18_small", "conv1"], ("32", "27", "64"))
        self.assertEqual(shapes["resnet18_small", "stage1"], ("32", "576", "64"))
        self.assertEqual(shapes["resnet18_small", "stage4"], ("2", "4608", "512"))
        passes = support.read_csv(self.directory / "layers/passes.csv")
        self.assertEqual({row["kernel"] for row in passes}, set(kernels))
        for kernel, layer in {(row["kernel"], row["layer"]) for row in passes}:
            shares = [float(row["share"]) for row in passes if (row["kernel"], row["layer"]) == (kernel, layer)
                      and row["network"] == "vgg16"]
            self.assertTrue(not shares or abs(sum(shares) - 1) < 1e-6, (kernel, layer, shares))
        of_layer = [(row["region"], row["pass"]) for row in passes if row["kernel"] == "fqt_layer"
                    and (row["network"], row["layer"]) == ("vgg16", "conv1_2")]
        self.assertEqual(len(of_layer), len(set(of_layer)))
        regions = ("nn::binary_forward", "nn::binary_backward_input", "nn::binary_backward_parameters")
        self.assertEqual([region for region, name in of_layer if name == "linalg::binary_product"], list(regions))

    def test_vocabulary_of_the_tokeniser(self):
        """It comes from the text, before anything is measured."""
        arguments = ("--set", "model.vocabulary=0", "--set", "data.tokenizer=characters")
        letters = len(set((self.directory / "corpus.txt").read_text()))
        shapes = {row["kernel"]: row["shape"] for row in self.kernels("openmp", *arguments)}
        self.assertIn(f"x{letters + 1}x", shapes["head_forward"])  # and [MASK]
        said = self.run_it(["bench", "kernels"], "openmp", *arguments, "--set", "data.corpus=none.txt", expected=2)
        self.assertIn("none.txt", said)
        self.assertNotIn("triad", self.stdout)

    def test_two_backends_and_their_comparison(self):
        for backend in ("openmp", "serial"):
            options = {"ranks": 2, "ONEBIT_MACHINE": f"the machine of {backend}"}
            self.check(self.kernels(backend, **options), backend, 2)
            self.run_it(["train"], backend, **options)
            # A developer's program may be of changed sources, which the comparison refuses.
            change(self.directory / backend, git="0123abc")
        command = [sys.executable, COMPARE, "serial", "openmp", "--output", "page.md"]
        support.run(self, command, cwd=self.directory)
        Comparison(self, self.directory).all_checks()


def change(directory, **columns):
    """Sets columns in all rows of run.csv and kernels.csv."""
    for name in ("run.csv", "kernels.csv"):
        if (directory / name).exists():
            write_csv(directory / name, [{**row, **columns} for row in support.read_csv(directory / name)])


class Comparison:
    """scripts/compare_backends.py on real results of `serial` and `openmp`, and on changed copies of them."""

    def __init__(self, test, directory):
        self.test, self.directory = test, directory
        test.addCleanup(os.chdir, os.getcwd())
        os.chdir(directory)

    def compare(self, *arguments):
        """The page."""
        with mock.patch.object(sys, "argv", [COMPARE, *arguments, "--output", "pages/page.md"]), \
                contextlib.redirect_stdout(None):
            compare_backends.main()
        return (self.directory / "pages/page.md").read_text()

    def refuses(self, said, *arguments):
        with self.test.assertRaises(SystemExit) as refusal:
            self.compare(*arguments)
        self.test.assertIn(said, str(refusal.exception))
        self.test.assertIn("\n  remedy: ", str(refusal.exception))

    def copy(self, source, name, *files):
        """A copy of a directory of results, or of these files of it."""
        shutil.rmtree(self.directory / name, ignore_errors=True)
        shutil.copytree(self.directory / source, self.directory / name,
                        ignore=lambda _, names: set(names) - set(files) if files else ())
        return self.directory / name

    def replace(self, name, file, old, new):
        path = self.directory / name / file
        text = path.read_text()
        self.test.assertIn(old, text)
        path.write_text(text.replace(old, new))

    def row(self, page, *cells):
        """The further cells of the page's only table row that begins with these."""
        rows = [line[2:-2].split(" | ") for line in page.splitlines() if line.startswith("| ")]
        found, = (row[len(cells):] for row in rows if row[:len(cells)] == list(cells))
        return found

    def all_checks(self):
        for check in (self.serial_and_openmp, self.cuda_of_another_day, self.one_backend, self.refusals):
            with self.test.subTest(check.__name__):
                check()

    def serial_and_openmp(self):
        test, page = self.test, self.compare("serial", "openmp")
        support.check_figure(test, self.directory / "pages/page.svg")
        test.assertIn("](page.svg)", page)
        test.assertEqual(self.row(page, "machine"), ["the machine of serial", "the machine of openmp"])
        test.assertEqual(self.row(page, "commit"), ["0123abc", "0123abc"])
        test.assertNotIn("The commits differ", page)
        steps = {name: support.read_csv(self.directory / name / "steps.csv") for name in ("serial", "openmp")}
        for step in ("1", "6"):  # by default the powers of ten and the last
            losses = [f"{float(steps[name][int(step) - 1]['loss']):.7g}" for name in steps]
            test.assertEqual(self.row(page, step), [*losses, "0.0e+00"])
        for what in ("final parameters", "bytes sent by a rank"):
            test.assertEqual(self.row(page, what)[2], "the same")
        for phase, part, columns in (("dense", "exchange", ("allreduce_s", "all_to_all_s", "all_gather_s")),
                                     ("compressed", "compress", ("compress_s", "average_s")),
                                     ("compressed", "step", ("step_s",))):
            times = [statistics.median(sum(float(row[column]) for column in columns) for row in
                                       [row for row in rows if row["phase"] == phase][1:]) for rows in steps.values()]
            test.assertEqual(self.row(page, phase, part)[:2], [f"{1e3 * time:.4g}" for time in times])
        # The harmonic mean of two fractions a, b that are at most 1 is 2ab/(a+b).
        kernels = [{row["kernel"]: row for row in support.read_csv(self.directory / name / "kernels.csv")}
                   for name in steps]
        for kernel in ("adam", "qkv_forward", "softmax_loss"):
            rows = [of[kernel] for of in kernels]
            one, other = (float(row["fraction_of_roofline"]) for row in rows)
            a, b = min(1, one), min(1, other)
            cells = self.row(page, kernel, rows[0]["shape"], "fp32")
            test.assertEqual([cells[place] for place in (2, 4, 6)],
                             [percent(one), percent(other), percent(2 * a * b / (a + b))])
        test.assertNotIn("Only ", page)

    def cuda_of_another_day(self):
        cuda = self.copy("openmp", "cuda")
        change(cuda, backend="cuda", git="v1.0-3-gfedcba9", machine="a GPU, another host")
        self.replace("cuda", "input.resolved.yaml", "backend: openmp", "backend: cuda")
        self.replace("cuda", "input.resolved.yaml", "corpus.txt", "/of/another/machine/corpus.txt")
        rows = support.read_csv(cuda / "steps.csv")
        rows[2]["loss"] = float(rows[2]["loss"]) * (1 + 1e-5)
        write_csv(cuda / "steps.csv", rows)
        rows = support.read_csv(cuda / "kernels.csv")
        rows[0]["shape"] = "n=67108864"  # of the machine's kernels, which differ between backends
        write_csv(cuda / "kernels.csv", [*rows, {**rows[-1], "kernel": "fused_kernel"}])
        page = self.compare("openmp", "cuda", "--steps", "1,3")
        self.test.assertTrue(page.startswith("# cuda against openmp\n"))
        self.test.assertEqual(self.row(page, "machine")[1], "a GPU, another host")
        self.test.assertIn("The commits differ", page)
        self.test.assertEqual([self.row(page, step)[2] for step in "136"], ["0.0e+00", "1.0e-05", "0.0e+00"])
        self.test.assertIn("The greatest difference of 6 steps is 1.0e-05, at step 3.", page)
        self.test.assertIn(f"Only cuda has: fused_kernel {rows[-1]['shape']} fp32.", page)

    def one_backend(self):
        self.copy("openmp", "again", "kernels.csv")
        page = self.compare("openmp", "again")
        self.test.assertTrue(page.startswith("# again against openmp\n"))
        self.test.assertNotIn("## Losses", page)
        self.test.assertIn("do not add up", self.compare("serial", "openmp").replace("\n", " "))
        self.test.assertTrue(self.compare("old=openmp", "new=again").startswith("# new against old\n"))
        self.refuses("call one of them NAME=PATH", "openmp", "openmp")
        # Directories with = in their names, as the cells of a sweep have them.
        self.copy("openmp", "lr=0.1_a=b")
        self.copy("openmp", "lr=0.2_a=b")
        self.test.assertTrue(self.compare("lr=0.1_a=b", "lr=0.2_a=b").startswith("# lr=0.2_a=b against lr=0.1_a=b\n"))
        self.test.assertTrue(self.compare("old=lr=0.1_a=b", "lr=0.2_a=b").startswith("# lr=0.2_a=b against old\n"))
        # A kernel that passes the roofline is named; so are kernels that were not measured to the end.
        change(self.copy("openmp", "above"), fraction_of_roofline=6.06)
        self.test.assertRegex(self.compare("openmp", "above"), r"(?s)Above\s100 %: .*`adam` \(")
        self.test.assertNotRegex(page, r"Above\s100 %: .*`gemm`")
        (self.copy("serial", "failed") / "kernels.csv").rename(self.directory / "failed/kernels.csv.partial")
        self.test.assertRegex(self.compare("openmp", "failed"), r"`bench kernels` of serial is not\scomplete")
        self.copy("serial", "trained", "run.csv", "steps.csv", "profile.csv", "input.resolved.yaml")
        self.refuses("no files of the kinds", "again", "trained")

    def refusals(self):
        changed = "git: '0123abc-dirty'"
        for columns, said in (({"git": "0123abc-dirty"}, changed), ({"git": ""}, "unknown sources"),
                              ({"machine": ""}, "no column machine")):
            change(self.copy("openmp", "bad"), **columns)
            self.refuses(said, "serial", "bad")
        # Another input, in the resolved input or in what was run.
        for file, old, new, said in (("input.resolved.yaml", "seed: 1", "seed: 2", "run.seed (1, 2)"),
                                     ("input.resolved.yaml", "batch: 4", "batch: 8", "train.batch (4, 8)")):
            self.copy("openmp", "bad")
            self.replace("bad", file, old, new)
            self.refuses(said, "serial", "bad")
        change(self.copy("openmp", "bad"), ranks=4)
        self.refuses("ranks (2, 4)", "serial", "bad")
        change(self.copy("openmp", "bad", "kernels.csv"), ranks=4)
        self.refuses("another number of ranks", "serial", "bad")
        change(self.copy("openmp", "bad", "kernels.csv"), shape="1x1")
        self.refuses("no kernel of the shape", "serial", "bad")
        write_csv(self.copy("openmp", "bad") / "run.csv", [
            {**row, "machine": "another"} for row in support.read_csv(self.directory / "openmp/run.csv")])
        self.refuses("different values of machine", "serial", "bad")
        # Incomplete results, and those of an earlier version.
        self.copy("openmp", "bad")
        (self.directory / "bad/input.resolved.yaml.partial").touch()
        self.refuses("not complete", "serial", "bad")
        (self.copy("openmp", "bad") / "steps.csv").unlink()
        self.refuses("no steps.csv", "serial", "bad")
        self.copy("openmp", "bad")
        self.replace("bad", "kernels.csv", "fraction_of_roofline", "floor_share")
        self.refuses("no column fraction_of_roofline", "serial", "bad")
        self.refuses("no step 7", "serial", "openmp", "--steps", "1,7")
        self.refuses("no such directory", "serial", "nowhere")


if __name__ == "__main__":
    skips.main(sys.argv[3:])
