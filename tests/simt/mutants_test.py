"""The simulated device answers right for sources as they are, and finds each spoilt synchronisation.

Called as `mutants_test.py RIGHT MUTANT…`.
"""

import os
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import skips

RIGHT, MUTANTS = sys.argv[1], sys.argv[2:]
SEEDS = range(1, 6)


def run(program, seed):
    return subprocess.run([program], env={**os.environ, "ONEBIT_SIMT_SEED": str(seed)}, capture_output=True, text=True,
                          check=False, timeout=60)


class Mutants(unittest.TestCase):
    def test_sources_are_right_in_every_schedule(self):
        for seed in SEEDS:
            done = run(RIGHT, seed)
            self.assertEqual((done.returncode, done.stdout), (0, "right\n"), done.stderr)

    def test_each_mutant_is_found(self):
        for mutant in MUTANTS:
            with self.subTest(mutant):
                found = [seed for seed in SEEDS if run(mutant, seed).returncode != 0]
                self.assertTrue(found, f"no schedule of {len(SEEDS)} showed the fault")

    def test_threads_that_miss_a_vote_are_shown(self):
        mutant, = (mutant for mutant in MUTANTS if mutant.endswith("vote"))
        self.assertIn("threads of a team wait at different places", run(mutant, 1).stderr)


if __name__ == "__main__":
    skips.main([])
