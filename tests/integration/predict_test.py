#!/usr/bin/env python3
"""Runs `onebit predict` on the repository's inputs and on measurements, and checks its CSV files and its words.

Usage: predict_test.py PROGRAM SOURCE_DIRECTORY [unittest arguments]
"""

import math
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import skips
import support
from support import ROOT

PARTS = ["allreduce_s", "reduce_scatter_s", "compress_s", "all_to_all_s", "average_s", "all_gather_s", "decompress_s"]


class Predict(unittest.TestCase):
    def setUp(self):
        self.directory = support.scratch(self)

    def run_it(self, input_file, *settings, expected=0):
        command = [support.PROGRAM, "predict", input_file,
                   *support.overrides([f"run.output={self.directory / 'out'}", *settings])]
        done = support.run(self, command, expected, cwd=self.directory, timeout=120)
        return done.stdout + done.stderr

    def rows(self, name="predict.csv"):
        return support.read_csv(self.directory / "out" / name)

    def test_rows_of_the_large_scale_input(self):
        words = self.run_it(ROOT / "inputs/predict/large_scale.yaml")
        rows = self.rows()
        self.assertEqual(len(rows), 3 * 5 * 8)
        simulated = 0
        for row in rows:
            value = {k: float(row[k]) for k in row if k.endswith("_s") and row[k] != ""}
            self.assertEqual(int(row["ranks"]), 8 * int(row["hosts"]))
            self.assertAlmostEqual(sum(value[k] for k in PARTS), value["call_s"], delta=1e-6 * value["call_s"])
            self.assertAlmostEqual(value["forward_s"] + value["backward_s"] + value["update_s"] + value["call_s"]
                                   - value["hidden_s"], value["step_s"], delta=1e-6 * value["step_s"])
            self.assertLessEqual(value["messages_s"], value["call_s"] * (1 + 1e-9))
            self.assertAlmostEqual(int(row["ranks"]) * 16 / value["step_s"], float(row["samples_per_s"]),
                                   delta=1e-6 * float(row["samples_per_s"]))
            if "compressed" in row["form"]:
                self.assertEqual((value["allreduce_s"], value["hidden_s"]), (0, 0))
            if row["simulated_s"] != "":
                simulated += 1
                self.assertLess(abs(value["simulated_s"] / value["messages_s"] - 1), 0.35, row)
        self.assertEqual(simulated, 3 * 2 * 8)
        # The speed-up is over the fastest dense average of the same network and ranks.
        for row in rows:
            same = [r for r in rows if (r["network"], r["ranks"]) == (row["network"], row["ranks"])]
            dense = min(float(r["step_s"]) for r in same if "compressed" not in r["form"])
            self.assertAlmostEqual(dense / float(row["step_s"]), float(row["speedup"]),
                                   delta=1e-6 * float(row["speedup"]))
        crossovers = self.rows("crossover.csv")
        self.assertEqual(len(crossovers), 3 * 5)
        self.assertEqual(words.count("On this network compression pays"), 3)
        limits = self.rows("pays_below.csv")
        self.assertEqual(len(limits), 5 * 3)
        for row in limits:
            least, expected, greatest = (float(row[key]) for key in (
                "least_bit_per_s", "pays_below_bit_per_s", "greatest_bit_per_s"))
            self.assertEqual(least, expected)  # the input has no error
            self.assertEqual(expected, greatest)
            # The table and the rows of predict.csv agree: at each rate it pays or not.
            for step in rows:
                if (step["ranks"], step["collective"]) == (row["ranks"], row["collective"]):
                    self.assertEqual(float(step["speedup"]) > 1, float(step["link_bit_per_s"]) < expected, (row, step))

    def test_crossovers_hold_in_predictions(self):
        source = ROOT / "inputs/predict/large_scale.yaml"
        common = ["predict.ranks=[256]", "predict.simulate_up_to=0", "predict.overlap_buckets=0"]

        def gain(parameters, gbit):
            self.run_it(source, *common, f"predict.parameters={parameters}", f"predict.bandwidths_gbit_per_s=[{gbit}]")
            row, = self.rows("crossover.csv")
            return float(row["dense_step_s"]) - float(row["compressed_step_s"]), row
        _, row = gain(340e6, 10)
        above, below = float(row["pays_above_parameters"]), float(row["pays_below_bit_per_s"]) / 1e9
        self.assertTrue(0 < above < 340e6 and below > 10 and math.isfinite(below), row)
        self.assertGreater(gain(above * 1.1, 10)[0], 0)
        self.assertLess(gain(above / 1.1, 10)[0], 0)
        self.assertGreater(gain(340e6, below / 1.1)[0], 0)
        self.assertLess(gain(340e6, below * 1.1)[0], 0)

    def test_measurements_are_fitted_and_predicted(self):
        # Four hosts: seconds of a call are 1 ms for each of 6 rounds, and 150 % of the vector at 80 % of the line rate.
        lines = ["collective,parameters,ranks,hosts,p50_s,compress_s,average_s,decompress_s,network"]
        for mbit in (100, 400):
            for parameters in (10000, 1000000):
                seconds = 6e-3 + 1.5 * 4 * parameters / (0.8 * mbit * 1e6 / 8)
                lines.append(f'mpi_allreduce,{parameters},4,4,{seconds},0,0,0,"links (measured {mbit}.0), short"')
        (self.directory / "rows.csv").write_text("\n".join(lines) + "\n")
        (self.directory / "input.yaml").write_text(
            "predict: {measurements: [rows.csv], ranks: [4], ranks_per_host: 1, bandwidths_gbit_per_s: [0.2], "
            "parameters: 5e5, collectives: [compressed], message_overhead_us: 0}\n")
        words = self.run_it("input.yaml")
        self.assertIn("mpi_allreduce", words)
        fit, = self.rows("fit.csv")
        self.assertAlmostEqual(float(fit["line_rate_share"]), 0.8, places=4)
        self.assertAlmostEqual(float(fit["latency_s"]), 1e-3, places=6)
        self.assertLess(float(fit["largest_error"]), 1e-4)
        row, = [r for r in self.rows() if r["numbers"] == "measured"]
        self.assertAlmostEqual(float(row["call_s"]), 6e-3 + 1.5 * 2e6 / (0.8 * 25e6), places=5)
        # The same file as spreadsheets and other systems save it.
        plain = (self.directory / "rows.csv").read_bytes()
        for content in (b"\xef\xbb\xbf" + plain, plain.replace(b"\n", b"\r\n"), plain.rstrip(b"\n"), plain + b"\n\r\n"):
            (self.directory / "rows.csv").write_bytes(content)
            self.run_it("input.yaml")
            self.assertEqual(self.rows("fit.csv"), [fit])
        (self.directory / "rows.csv").write_bytes(plain.replace(b",", b";"))
        self.assertIn("semicolons", self.run_it("input.yaml", expected=2))

    def test_sections_without_effect_are_named(self):
        (self.directory / "input.yaml").write_text("model: {preset: large}\npredict: {ranks: [8]}\n")
        words = self.run_it("input.yaml")
        self.assertIn("warning: input.yaml:1:9: section model has no effect on a prediction", words)
        self.assertEqual(words.count("warning: "), 1)

    def test_bad_input(self):
        (self.directory / "input.yaml").write_text("predict:\n  ranks: [12]\n")
        self.assertIn("input.yaml:2:3", self.run_it("input.yaml", expected=2))
        (self.directory / "input.yaml").write_text("predict:\n  measurements: [missing.csv]\n")
        message = self.run_it("input.yaml", expected=2)
        self.assertIn("input.yaml:2:3", message)
        self.assertIn("missing.csv: the file does not exist (No such file or directory)", message)
        (self.directory / "missing.csv").mkdir()
        self.assertIn("missing.csv: this is a directory", self.run_it("input.yaml", expected=2))
        self.assertFalse((self.directory / "out" / "predict.csv").exists())


if __name__ == "__main__":
    skips.main(sys.argv[3:])
