#!/usr/bin/env python3
"""The rows of scripts/experiments/performance.py, the operations that it counts, and its page. Measures nothing.

Usage: performance_test.py SOURCE_DIRECTORY [unittest arguments]
"""

import io
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "scripts/experiments"), str(ROOT / "tests")]
import performance

import performance_page
import performance_peers
import skips
import support
from lib import models, plots
from lib.tables import read_csv, replace_rows, write_csv


def row(program, milliseconds, mode="", machine="this", git="0123abc", run=1, model="bert_base"):
    origin = {"git": git, "machine": machine, "runs": 1}
    return performance_page.row_of(model, program, mode, "fp32", run, ("1.0", 7, milliseconds), 460.0, origin)


class Rows(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.output = pathlib.Path(directory.name) / "performance"
        self.steps = self.output / "steps.csv"

    def page(self):
        performance_page.render(self.output)
        return self.output.with_name("performance.md").read_text()

    def test_rows_of_this_machine_are_replaced_and_come_first(self):
        earlier = [row("onebit", 1, machine="other"), row("onebit", 2),
                   row("onebit", 3, machine="other", git="0123abc-dirty"), row("onebit", 4, machine="")]
        write_csv(self.steps, earlier)
        replace_rows(self.steps, performance_page.COLUMNS, [row("onebit", 5)])
        found = [(line["machine"], line["median_ms"]) for line in read_csv(self.steps)]
        self.assertEqual(found, [("this", "5.00"), ("other", "1.00")])

    def test_the_ratio_is_to_the_fastest_peer_of_the_machine(self):
        rows = [row("onebit", 1000), row("torch", 1500, "eager"), row("torch", 1200, "compile"),
                row("old_torch", 1300, "eager"), row("onebit", 1000, machine="other"),
                row("torch", 900, "eager", machine="other")]
        write_csv(self.steps, rows)
        lines = [line for line in self.page().splitlines() if line.startswith("| BERT-Base")]
        self.assertEqual(len(lines), 2)
        self.assertIn("| torch 1.0 compile | 1200 |", lines[0])
        self.assertTrue(lines[0].endswith("| 1.20 |"), lines[0])
        self.assertTrue(lines[1].endswith("| 0.90 |"), lines[1])
        self.assertNotIn("–", lines[0])

    def test_a_range_is_of_several_processes(self):
        rows = [row("onebit", time, run=run) for run, time in ((1, 1000), (2, 1100))]
        write_csv(self.steps, rows + [row("torch", 2000, "eager")])
        self.assertIn("| 1050 (1000 – 1100) |", self.page())

    def test_the_ratio_of_an_algorithm_is_of_the_same_turn(self):
        rows = [{"algorithm": name, "precision": precision, "run": run, "step_s": step, "compress_s": 0.25,
                 "update_s": 0.5, "all_gather_s": 1, "git": "0123abc", "machine": "this", "runs": 1}
                for precision, run, times in (("fp32", 1, (10, 12)), ("bf16", 1, (5, 5)), ("fp32", 2, (20, 26)))
                for name, step in zip(("1-bit Adam", "other"), times)]
        write_csv(self.output / "algorithms.csv", rows)
        # 1.2 and 1.3: t of one degree of freedom is 12.706, and the standard error 0.05.
        self.assertIn("| other | fp32 | 19 (12 – 26) | 0.25 | 0.50 | 1.00 | 1.250 ± 0.635 |", self.page())

    def test_rows_of_uncommitted_sources_are_not_shown(self):
        write_csv(self.steps, [row("onebit", 1, git="0-dirty"), row("torch", 2, "eager", git="0-dirty")])
        self.assertNotIn("| BERT-Base", self.page())

    def test_unknown_model_is_named(self):
        done = subprocess.run([ROOT / "scripts/experiments/performance.py", "measure", "--models", "bert_small,gpt5"],
                              capture_output=True, text=True, timeout=30)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no model gpt5; remedy: choose from bert_small", done.stderr)


class Kernels(unittest.TestCase):
    KEPT = ROOT / "docs/results/performance/kernels.csv"

    def test_kept_rows_have_the_fraction_that_their_columns_give(self):
        for number, line in enumerate(read_csv(self.KEPT), 2):
            bytes_, flop, seconds, bandwidth = (float(line[column]) for column in (
                "bytes", "flop", "median_s", "bandwidth_B_per_s"))
            peak = float(line["peak_FLOP_per_s"] or "inf")
            with self.subTest(f"line {number}: {line['kernel']}"):
                if bytes_ > 0:
                    self.assertAlmostEqual(float(line["arithmetic_intensity"]) * bytes_, flop, delta=1e-6 * flop)
                fraction = max(bytes_ / bandwidth, flop / peak) / seconds
                self.assertAlmostEqual(float(line["fraction_of_roofline"]) / fraction, 1, delta=1e-6)

    def test_page_has_a_roofline_and_a_row_for_each_kernel(self):
        with tempfile.TemporaryDirectory() as directory:
            output = pathlib.Path(directory) / "performance"
            output.mkdir()
            shutil.copy(self.KEPT, output)
            performance_page.render(output)
            page = (output / "kernels.md").read_text()
            support.check_figure(self, output / "roofline.svg")
        self.assertIn("![rooflines](roofline.svg)", page)
        lines = read_csv(self.KEPT)
        for line in lines:
            self.assertIn(f"## {line['machine']}", page)
            if line["machine"] != lines[0]["machine"]:  # its kernels are summed up
                continue
            cells = [line["kernel"], line["shape"], line["precision"], f"{1e3 * float(line['median_s']):.3g}",
                     f"{float(line['arithmetic_intensity']):.3g}" if float(line["bytes"]) > 0 else "", line["bound"],
                     f"{100 * float(line['fraction_of_roofline']):.0f} %"]
            self.assertIn(f"| {' | '.join(cells)} |", page)

    def test_a_figure_has_the_same_bytes_again(self):
        def drawn():
            figure, axes = plots.axes("x", "y")
            axes.plot([1, 2], [3, 4], label="of a label that is too long for one line, with x = 1")
            plots.legend_beside(axes)
            words = axes.get_legend().get_texts()[0].get_text()
            data = io.BytesIO()
            plots.save(figure, data)
            return data.getvalue(), words

        first, words = drawn()
        self.assertEqual(first, drawn()[0])
        self.assertGreater(len(words.splitlines()), 1)
        self.assertIn("x\xa0=\xa01", words)

    def test_a_roofline_ends_at_the_peak_of_each_precision(self):
        figure, axes = plots.axes("", "")
        kernels = (("triad", "fp32", "0.5", ""), ("fma", "fp32", "", "4e11"), ("copy", "fp32", "0", "4e11"),
                   ("qkv_forward", "fp32", "50", "4e11"), ("qkv_forward", "bf16", "50", "8e11"))
        rows = [{"kernel": kernel, "precision": precision, "arithmetic_intensity": intensity, "peak_FLOP_per_s": peak,
                 "bandwidth_B_per_s": "1e10", "flop": "1e9", "median_s": "0.01"}
                for kernel, precision, intensity, peak in kernels]
        plots.roofline(axes, rows, "openmp")
        lines = {line.get_label(): line.get_xydata().tolist() for line in axes.get_lines()}
        plots.pyplot.close(figure)
        # 10 GB/s meet 400 GFLOP/s at 40 FLOP/byte, 800 at 80. Neither copy nor fma has a point.
        self.assertEqual(lines["openmp: 10 GB/s, fp32 400 GFLOP/s"], [[0.25, 2.5], [40, 400], [100, 400]])
        self.assertEqual(lines["openmp: 10 GB/s, bf16 800 GFLOP/s"], [[0.25, 2.5], [80, 800], [160, 800]])
        self.assertEqual(lines["openmp: machine"], [[0.5, 100]])
        self.assertEqual(lines["openmp: products"], [[50, 100]])
        self.assertEqual(lines["openmp: products in bf16"], [[50, 100]])


class Operations(unittest.TestCase):
    def test_the_peak_is_the_highest_in_float(self):
        rows = [{"precision": precision, "peak_FLOP_per_s": peak}
                for precision, peak in (("fp32", ""), ("fp32", "4e11"), ("fp32", "3e11"), ("bf16", "8e11"))]
        self.assertEqual(performance.highest_peak(rows), 400)

    def test_products_of_bits_are_not_beside_a_roofline_of_floats(self):
        kernels = {line["kernel"] for line in read_csv(ROOT / "docs/results/performance/kernels.csv")}
        self.assertIn("gemm", kernels)
        self.assertEqual(kernels & set(performance.PRODUCTS), set())

    def test_a_step_has_the_operations_of_its_kernels(self):
        # Products (m, n, k) of a BERT-Base layer, 1024 rows, and of the head, 152 rows; 3: forward, d_input, d_weight.
        layer = sum(m * n * k
                    for m, n, k in ((1024, 2304, 768), (1024, 768, 768), (1024, 3072, 768), (1024, 768, 3072)))
        attention = 2 * 8 * 12 * 128 * 128 * 64
        head = 152 * 30522 * 768 + 152 * 768 * 768
        expected = 3 * 2 * (12 * (layer + attention) + head)
        self.assertEqual(models.step_flop(models.MODELS["bert_base"]), expected)

    def test_a_step_of_resnet18_has_the_operations_of_its_convolutions(self):
        # The 0.556 billion multiply-adds of a forward pass that others count for images of 32 x 32 pixels.
        flop = models.resnet18_step_flop(models.RESNET18._replace(batch=1))
        first = 32 * 32 * 64 * 27
        self.assertAlmostEqual((flop / 2 + first) / 3 / 1e9, 0.556, delta=1e-3)

    def test_a_rate_is_operations_over_time(self):
        found = row("onebit", 1000)
        self.assertEqual((found["gflop_per_s"], found["peak_share"]), ("558.3", "1.214"))
        self.assertEqual(row("onebit", 25, model="optimizer")["gflop_per_s"], "")

    def test_models_are_those_of_the_inputs(self):
        for name, model in models.MODELS.items():
            path = ROOT / f"inputs/performance/{name}.yaml"
            if name == "bert_large":
                path = ROOT / "inputs/bert_large_seq128.yaml"
            text = path.read_text()
            self.assertRegex(text, rf"\n  architecture: {model.architecture}\n", name)
            self.assertRegex(text, rf"\n  sequence: {model.tokens}\b", name)
            if name != "bert_large":
                self.assertRegex(text, rf"\n  batch: {model.batch}\n", name)


class Shim(unittest.TestCase):
    def test_the_library_for_mkl_compiles_and_says_yes(self):
        with tempfile.TemporaryDirectory() as directory:
            library = f"{directory}/mkl.so"
            performance_peers.compile_mkl_library(library)
            ask = f"import ctypes; print(ctypes.CDLL('{library}').mkl_serv_intel_cpu_true())"
            said = subprocess.run([sys.executable, "-c", ask], stdout=subprocess.PIPE, text=True, check=True).stdout
        self.assertEqual(said, "1\n")


if __name__ == "__main__":
    skips.main(sys.argv[2:])
