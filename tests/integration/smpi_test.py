#!/usr/bin/env python3
"""Builds the program for SimGrid's SMPI; averages on 64 simulated hosts, and trainings.

Usage: smpi_test.py SOURCE_DIRECTORY BUILD_DIRECTORY [CMake options…]

It is compiled without optimisation: its times are the simulator's.
"""

import pathlib
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import skips
import support  # noqa: F401, which makes scripts/lib known
from lib import smpi
from lib.predict import fit, model

SOURCE, BUILD, OPTIONS = sys.argv[1], sys.argv[2], sys.argv[3:]
sys.argv[1:] = []  # they are no program and no mpiexec

NO_SIMGRID = "" if shutil.which("smpicxx") else "no SimGrid here: scripts/setup.sh --smpi installs it"
RANKS, PARAMETERS = 64, 10000


@unittest.skipIf(NO_SIMGRID, NO_SIMGRID)
class Smpi(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        for command in (["cmake", "--preset", "smpi", "-B", BUILD, "-DCMAKE_CXX_FLAGS_RELEASE=-O0",
                         "-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_UNITY_BUILD_BATCH_SIZE=16", *OPTIONS],
                        ["cmake", "--build", BUILD, "--target", "onebit_smpi"]):
            subprocess.run(command, cwd=SOURCE, check=True, stdout=subprocess.DEVNULL)

    def rows(self, platform, ranks, collectives):
        """Rows of collective.csv by the average's name. The program has compared every average with its reference. Its
        messages are short."""
        hops = model.hops("compressed", model.Cluster(ranks, 1), 4 * PARAMETERS // ranks)
        rows = smpi.bench(f"{BUILD}/onebit_smpi", platform, ranks, collectives, PARAMETERS, hops)
        self.assertEqual([(row["collective"], row["ranks"], row["wrong"]) for row in rows],
                         [(name, str(ranks), "0") for name in collectives])
        return {row["collective"]: row for row in rows}

    def test_averages_on_64_hosts(self):
        platform = smpi.Platform("flat", ranks_per_host=1, bit_per_s=1e9, latency_s=1e-5, overhead_s=1e-6)
        rows = self.rows(platform, RANKS, ["mpi_bf16", "pairwise_allreduce", "mpi_compressed", "pairwise_compressed",
                                           "grid_bf16", "grid_compressed"])
        chunk = -(-PARAMETERS // (32 * RANKS))  # words of a chunk's signs
        self.assertEqual({row["hosts"] for row in rows.values()}, {str(RANKS)})
        for name, message in (("mpi_compressed", 4 * chunk + 4), ("pairwise_compressed", 4 * chunk + 4)):
            self.assertEqual(float(rows[name]["wire_bytes"]), 2 * (RANKS - 1) * message, name)
        # A grid of 8 rows and 8 columns: seven bundles of eight messages three times, and seven messages once.
        self.assertEqual(float(rows["grid_compressed"]["wire_bytes"]), (3 * 7 * 8 + 7) * (4 * chunk + 4))
        # No average is faster than its bytes at the line rate and one message's way through two links.
        for name, row in rows.items():
            self.assertGreater(float(row["p50_s"]), float(row["wire_bytes"]) * 8 / 1e9 + 2e-5, name)
            self.assertLess(float(row["p50_s"]), 0.1, name)
            predicted = model.total_seconds(fit.FORM_OF[name], model.Cluster(RANKS, 1), PARAMETERS, model.Width(),
                                            platform.machine(RANKS))
            self.assertLess(abs(float(predicted) / float(row["p50_s"]) - 1), 0.5, name)

    def test_hosts_of_four_ranks(self):
        platform = smpi.Platform("flat", ranks_per_host=4, bit_per_s=1e9, latency_s=1e-5)
        row = self.rows(platform, 16, ["hierarchical_compressed"])["hierarchical_compressed"]
        self.assertEqual(row["hosts"], "4")
        words = -(-PARAMETERS // (4 * 4 * 32))  # of a host's chunk of a rank's shard
        self.assertEqual(float(row["wire_bytes"]), 2 * 3 * (4 * words + 4))

    def test_trainings(self):
        """Adam in steps 1 and 2, then 1-bit Adam; a gradient takes 5 ms."""
        platform, computing = smpi.Platform("flat", ranks_per_host=1, bit_per_s=1e9, latency_s=2e-5), 0.005
        settings = {"optimizer.algorithm": "onebit_adam", "train.steps": 4, "train.batch": 32, "freeze.step": 2,
                    "train.validate_every": 0, "schedule.warmup_steps": 0, "run.check_replicas_every": 0,
                    "workload.compute_time_ms": 1000 * computing}
        losses = {}
        for ranks in (4, 16):
            steps = smpi.train(f"{BUILD}/onebit_smpi", platform, ranks, "inputs/gpt_small.yaml", settings)
            self.assertEqual([step["phase"] for step in steps], ["dense", "dense", "compressed", "compressed"])
            losses[ranks] = [float(step["loss"]) for step in steps]
            parameters = float(steps[0]["bytes_sent"]) * ranks / (ranks - 1) / 8
            cluster, machine = model.Cluster(ranks, 1), platform.machine(ranks)
            for step, forms in ((steps[1], ["ring", "tree", "rabenseifner", "pairwise"]), (steps[2], ["compressed"])):
                predicted = min(float(model.total_seconds(form, cluster, parameters, model.Width(), machine))
                                for form in forms)
                exchange = float(step["step_s"]) - float(step["agree_s"]) - computing
                self.assertLess(abs(predicted / exchange - 1), 0.5, step)
        # A loss is that before the step's update, so that three are of dense steps.
        for few, many in zip(losses[4][:3], losses[16][:3]):
            self.assertAlmostEqual(few, many, places=5)
        self.assertAlmostEqual(losses[4][3], losses[16][3], places=2)

    def test_a_wrong_input_ends_with_status_2(self):
        with self.assertRaisesRegex(smpi.Failed, r"(?s)bench\.collectives.*status 2"):
            smpi.bench(f"{BUILD}/onebit_smpi", smpi.Platform("flat", 1, 1e9, 1e-5), 2, ["no_average"], PARAMETERS,
                       model.hops("compressed", model.Cluster(2, 1), 4))


if __name__ == "__main__":
    skips.main([])
