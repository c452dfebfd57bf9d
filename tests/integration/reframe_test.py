#!/usr/bin/env python3
"""ReFrame runs the size smoke of the run rules, shortened, and reports the program's own figures.

Usage: reframe_test.py PROGRAM MPIEXEC [unittest arguments]

ReFrame comes from PyPI, where scripts/setup.sh --reframe puts it below ONEBIT_DEPS. Without it the test is skipped.
"""

import json
import os
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import skips
import support
from lib.launch import in_environment

ROOT = support.ROOT
REFRAME = pathlib.Path(os.environ.get("ONEBIT_DEPS", ROOT / ".deps")) / "reframe"
STEPS = ["train.steps=20", "schedule.warmup_steps=5", "freeze.step=5", "train.batch=8", "train.validation_batch=16"]


class ReFrame(unittest.TestCase):
    def reframe(self, bound, expected, *further):
        """Runs the size smoke in a few seconds. \\returns (the report's only case, the folder of its files)"""
        if not (REFRAME / "bin/reframe").exists():
            self.skipTest("no ReFrame here: scripts/setup.sh --reframe installs it from PyPI")
        folder = support.scratch(self)
        options = ",".join(f"--set,{pair}" for pair in [*STEPS, f"train.loss_at_most={bound}", *further])
        settings = {"program": support.PROGRAM, "num_tasks": 2, "options": options}
        command = [sys.executable, REFRAME / "bin/reframe", "--nocolor", "-C", ROOT / "packaging/reframe/settings.py",
                   "-c", ROOT / "packaging/reframe/onebit.py", "-n", "onebit.*size=smoke.*backend=openmp", "-r",
                   f"--prefix={folder}", f"--report-file={folder}/report.json", "--keep-stage-files",
                   *[word for name, value in settings.items() for word in ("-S", f"{name}={value}")]]
        environment = {**support.ENVIRONMENT, "PYTHONPATH": str(REFRAME), "HOME": str(folder),
                       "RFM_SAVE_LOG_FILES": "n", "TMPDIR": str(folder)}
        support.run(self, in_environment(command), expected, env=environment, cwd=ROOT)
        cases = json.loads((folder / "report.json").read_text())["runs"][0]["testcases"]
        self.assertEqual(len(cases), 1)
        return cases[0], next(folder.glob("stage/*/*/*/onebit*"))

    def test_report_has_the_figures_of_the_program(self):
        case, folder = self.reframe(bound=5, expected=0)
        self.assertEqual(case["result"], "pass")
        figures = json.loads((folder / "figures.json").read_text())["figures_of_merit"]
        for place, (value, *_, unit, _) in case["perfvalues"].items():
            figure = figures[place.rpartition(":")[2]]
            self.assertEqual(unit, figure["unit"], place)
            self.assertAlmostEqual(value / figure["value"], 1, delta=1e-5, msg=place)
        self.assertGreater(len(case["perfvalues"]), 5)
        for name in case["keep_files"]:
            self.assertTrue((pathlib.Path(case["outputdir"]) / pathlib.Path(name).name).is_file(), name)

    def test_a_loss_above_its_bound_fails(self):
        case, _ = self.reframe(bound=0.1, expected=1)
        self.assertEqual((case["result"], case["fail_phase"]), ("fail", "sanity"))
        self.assertIn("is above train.loss_at_most", case["fail_reason"])

    def test_the_reason_of_a_failure_is_the_programs(self):
        case, _ = self.reframe(5, 1, "train.batch=7")
        self.assertEqual((case["result"], case["fail_phase"]), ("fail", "sanity"))
        self.assertIn("train.batch is 7, which is not a multiple of 2 ranks", case["fail_reason"])
        self.assertIn("remedy: ", case["fail_reason"])


if __name__ == "__main__":
    skips.main(sys.argv[3:])
