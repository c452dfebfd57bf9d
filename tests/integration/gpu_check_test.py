#!/usr/bin/env python3
"""scripts/gpu_check.sh as far as a machine without a GPU goes: refusals, libraries, verdicts, comparisons, the bundle,
and every stage with the host's backends in place of CUDA.

Usage: gpu_check_test.py PROGRAM MPIEXEC BUILD_DIRECTORY [unittest arguments]
"""

import argparse
import contextlib
import io
import os
import pathlib
import shutil
import subprocess
import sys
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import skips
import support
from gpu_check import __main__ as command_line
from gpu_check import bundle, installation, libraries, ranks, speed, training, units
from gpu_check.verdicts import FAIL, PASS, SKIP, Done, Failed, Report, Skipped
from support import PROGRAM, ROOT, read_csv

BUILD = pathlib.Path(sys.argv[3]).resolve() if len(sys.argv) > 3 else pathlib.Path()
SCRIPT = ROOT / "scripts/gpu_check.sh"
NO_GPU = {**support.ENVIRONMENT, "CUDA_VISIBLE_DEVICES": ""}
LISTED = """Parallel/cuda.  # TypeParam = Kokkos::Cuda
  block_sums_equal_reference
  maxima_of_blocks
Sweep/Codecs.
  loses_nothing/0  # GetParam() = 4-byte object
"""


def compile_c(source, output, *options):
    """Compiles a program or a library of a few lines."""
    output.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cc", "-x", "c", "-", "-x", "none", "-o", output, *options], input=source, text=True, check=True)


def write_program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def quietly(work, *arguments):
    """(what the call returns, what it prints)."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        return work(*arguments), said.getvalue()


class Case(unittest.TestCase):
    def setUp(self):
        self.directory = support.scratch(self)

    def refused(self, words, work, *arguments):
        with self.assertRaises(Failed) as problem:
            work(*arguments)
        self.assertIn(words, f"{problem.exception}; {problem.exception.remedy}")
        return problem.exception


class Refusals(Case):
    def said(self, *arguments, environment=NO_GPU):
        return support.run(self, [SCRIPT, *arguments, "--output", self.directory], 2, env=environment).stderr

    def test_every_stage_needs_a_gpu(self):
        for stage in command_line.STAGES:
            said = self.said("--run", stage, "--build", BUILD)
            self.assertIn(f"stage {stage} needs a GPU: CUDA_VISIBLE_DEVICES hides every GPU", said)
            self.assertEqual("--without-gpu" in said, stage in command_line.WITH_OPENMP_HALF)
        self.assertIn("stage 3 has nothing to run without a GPU", self.said("--run", 3, "--without-gpu"))

    def test_places_that_are_not_there(self):
        self.assertIn("name another directory with --build",
                      self.said("--run", 2, "--without-gpu", "--build", self.directory))
        self.assertIn("make it with scripts/gpu_check.sh --bundle",
                      self.said("--run", 2, "--without-gpu", "--archive", self.directory / "no.tar.xz"))
        self.assertIn("run scripts/setup.sh --cuda --cuda-mpi",
                      self.said("--bundle", "--build", BUILD, "--mpi", self.directory,
                                "--archive", self.directory / "a.tar.xz"))

    def test_program_of_another_kind(self):
        # A driver that says there is a GPU is not enough for a program without CUDA.
        write_program(self.directory / "bin/nvidia-smi", "#!/bin/sh\necho 'NVIDIA H200, 143771 MiB, 580.1, 9.0'\n")
        path = f"{self.directory}/bin:{os.environ['PATH']}"
        environment = {name: value for name, value in support.ENVIRONMENT.items() if name != "CUDA_VISIBLE_DEVICES"}
        if "cuda" in installation.of_build_tree(BUILD).backends():
            self.skipTest("this build has CUDA")
        self.assertIn("has no backend cuda", self.said("--run", 1, "--build", BUILD,
                                                       environment={**environment, "PATH": path}))

    def test_driver_that_does_not_answer(self):
        write_program(self.directory / "nvidia-smi", "#!/bin/sh\necho 'no devices were found'\nexit 6\n")
        with mock.patch.dict(os.environ, {"PATH": f"{self.directory}:{os.environ['PATH']}"}):
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
            self.assertEqual(installation.gpus(), ([], "nvidia-smi says: no devices were found"))

    def test_gpu_that_takes_one_process(self):
        for mode, exclusive in (("Default", False), ("Exclusive_Process", True)):
            write_program(self.directory / "nvidia-smi", f"#!/bin/sh\necho {mode}\n")
            with mock.patch.dict(os.environ, {"PATH": f"{self.directory}:{os.environ['PATH']}"}):
                os.environ.pop("CUDA_VISIBLE_DEVICES", None)
                self.assertEqual(installation.takes_one_process(), exclusive)
                if exclusive:
                    self.assertRaises(Skipped, ranks.refuse_exclusive)
                else:
                    ranks.refuse_exclusive()


class Libraries(Case):
    def test_output_of_ldd(self):
        found, too_old = libraries.parse_ldd(
            "./onebit: /lib/libc.so.6: version `GLIBC_2.38' not found (required by ./onebit)\n"
            "\tlinux-vdso.so.1 (0x00007ffe)\n\tlibcublas.so.13 => not found\n"
            "\tlibm.so.6 => /lib/libm.so.6 (0x00007f)\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n")
        self.assertEqual(found, {"libcublas.so.13": None, "libm.so.6": "/lib/libm.so.6"})
        self.assertEqual(too_old, ["GLIBC_2.38"])

    def test_closure_of_the_program(self):
        needed = libraries.closure([PROGRAM])
        for stem in ("libmpi.so", "libyaml-cpp.so", "libstdc++.so"):
            self.assertTrue(any(name.startswith(stem) for name in needed), f"no {stem} in {sorted(needed)}")
        for name in ("libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2", "libcuda.so.1", "libcublasLt.so.13",
                     "libcudart.so.13", "libnccl.so.2"):
            self.assertNotIn(name, needed)
            self.assertRegex(name, libraries.PROVIDED)
        for name in ("libcurl.so.4", "libmpi.so.40", "libcrypto.so.3", "libdnnl.so.2"):
            self.assertNotRegex(name, libraries.PROVIDED)

    def test_order_of_places(self):
        packages, toolkits = self.directory / "site-packages", self.directory / "local"
        for path in (packages / "nvidia/cu13/lib/libcublas.so.13", packages / "nvidia/nccl/lib/libnccl.so.2",
                     toolkits / "cuda-12.4/lib64/libcublas.so.12", toolkits / "cuda-13.0/lib64/libcudart.so.13"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
        given = {"PATH": "", "CUDA_HOME": str(self.directory / "nowhere")}
        places = libraries.nvidia_directories(given, [packages], [toolkits])
        wanted = ["libcublas.so.13", "libnccl.so.2", "libcudart.so.13", "libcublas.so.14"]
        found, others = libraries.find(wanted, places)
        self.assertEqual(found, {"libcublas.so.13": packages / "nvidia/cu13/lib",
                                 "libnccl.so.2": packages / "nvidia/nccl/lib",
                                 "libcudart.so.13": toolkits / "cuda-13.0/lib64"})
        self.assertEqual(len(others["libcublas.so.14"]), 2)
        environment = libraries.with_paths({"LD_LIBRARY_PATH": "/a:/b"}, ["/b", "/c"])
        self.assertEqual(environment["LD_LIBRARY_PATH"], "/b:/c:/a")

    def test_program_starts_with_what_was_found(self):
        wheel, build = self.directory / "site-packages/nvidia/cu13/lib", self.directory / "build"
        compile_c("int f(void) { return 0; }", wheel / "libcublas.so.99", "-shared", "-Wl,-soname,libcublas.so.99")
        compile_c('int f(void);\nint puts(const char*);\nint main(void) { puts("backends: cuda"); return f(); }',
                  build / "onebit", str(wheel / "libcublas.so.99"))
        here = installation.Installation(build, self.directory, "mpirun", {"unit": [], "mpi": {}})
        with mock.patch.object(libraries, "python_packages", return_value=[]):
            self.refused("not found: libcublas.so.99", here.find_libraries, sys.executable)
        with mock.patch.object(libraries, "python_packages", return_value=[str(self.directory / "site-packages")]):
            self.assertIn(str(wheel), here.find_libraries(sys.executable))
        self.assertEqual(here.backends(), ["cuda"])


class Verdicts(Case):
    def test_lines_and_table(self):
        def fail(kind, *words):
            raise kind(*words)

        report = Report(1, self.directory)
        checks = [("good", lambda: "found"), ("bad", fail, Failed, "wrong", "mend it"),
                  ("absent", fail, Skipped, "no tool")]
        said = quietly(report.check_all, checks, 2)[1]
        status, verdict = quietly(report.conclude)
        self.assertEqual(status, 1)
        self.assertEqual(sorted(said.splitlines()),
                         ["FAIL  bad: wrong; remedy: mend it", "PASS  good: found", "SKIP  absent: no tool"])
        self.assertIn("stage_1: FAIL (1 passed, 1 failed, 1 skipped)", verdict)
        rows = {row["check"]: row for row in read_csv(self.directory / "stage_1.csv")}
        self.assertEqual((rows["bad"]["verdict"], rows["bad"]["remedy"]), (FAIL, "mend it"))

    def test_nothing_passed_is_no_success(self):
        report = Report(1, self.directory)
        self.assertEqual(quietly(report.conclude)[0], 1)

    def test_commands_have_limits(self):
        report = Report(1, self.directory)
        done = report.run(["sh", "-c", "echo begun; sleep 60"], 0.5)
        self.assertIsNone(done.status)
        self.assertLess(done.seconds, 20)
        self.refused("beyond its", done.expect)
        self.assertIn("begun\n", report.log_path.read_text())
        self.refused("did not start", report.run, [self.directory / "none"], 1)
        late = Report(2, self.directory, minutes=0)
        self.assertEqual(quietly(late.check, "slow", lambda: "")[0], FAIL)
        self.assertIn("--only 'slow'", late.rows[0]["remedy"])
        chosen = Report(3, self.directory, only=["a:b:c", "d"])
        self.assertEqual([name for name in ("a", "a:b", "a:b:c", "a:bb", "a:b:c:d", "d", "e")
                          if chosen.wants(name)], ["a", "a:b", "a:b:c", "d"])

    def test_tests_of_a_list(self):
        self.assertEqual(units.parse_list(LISTED), ["Parallel/cuda.block_sums_equal_reference",
                                                    "Parallel/cuda.maxima_of_blocks", "Sweep/Codecs.loses_nothing/0"])

    def test_what_googletest_says(self):
        def judged(status, output):
            return units.judge(Done(["test"], status, output, 1.0))

        self.assertIn("2 passed", judged(0, "[  PASSED  ] 2 tests.\n"))
        self.refused("no test ran", judged, 0, "[  PASSED  ] 0 tests.\n")
        self.refused("a.cpp:3: Failure", judged, 1, "/root/a.cpp:3: Failure\nExpected: 1\n[  FAILED  ] A.b\n")
        self.refused("status -6, not 0: terminate called", judged, -6, "terminate called after an error\n")
        self.refused("beyond its 1 s", judged, None, "[ RUN      ] A.b\n")
        skipped = self.refused("one rank alone", judged, 0, "a.cpp:3: Skipped\none rank alone\n"
                               "[  PASSED  ] 0 tests.\n[  SKIPPED ] 1 test, listed:\n")
        self.assertIsInstance(skipped, Skipped)


class Comparisons(Case):
    def test_losses(self):
        openmp = {1: 4.0, 100: 2.0}
        self.assertIn("apart", training.compare_losses(openmp, {1: 4.000003, 100: 2.0}, 1))
        self.refused("1.2e-06 apart, at most 1e-06", training.compare_losses, openmp, {1: 4.000005}, 1)
        self.assertIn("apart", training.compare_losses(openmp, {100: 2.001}, 100))
        self.refused("at most 1e-03", training.compare_losses, openmp, {100: 2.01}, 100)
        self.refused("nan apart", training.compare_losses, openmp, {100: float("nan")}, 100)

    def test_hashes(self):
        names = ("cuda", "cuda_again")
        for name, text in zip(names, ("12ab", "34cd")):
            (self.directory / name).mkdir()
            (self.directory / name / "run.csv").write_text(f"parameters_hash\n{text}\n")
        self.refused("12ab and 34cd", training.compare_hashes, self.directory)
        shutil.copy(*(self.directory / name / "run.csv" for name in names))
        self.assertEqual(training.compare_hashes(self.directory), "12ab")

    def test_speeds(self):
        copy = {"bytes": "8e9", "median_s": "2e-3"}
        self.assertIn("3200 GB/s, 80 % of copy's 4000 GB/s",
                      speed.share_of_copy({"bytes": "3.2e9", "median_s": "1e-3"}, copy))
        self.refused("79 % of", speed.share_of_copy, {"bytes": "3.16e9", "median_s": "1e-3"}, copy)
        compiled = {"tokens_per_s": "1000", "batch": "64"}
        self.assertIn("0.70 of", speed.share_of_compiled({"tokens_per_s": "700"}, compiled))
        self.refused("0.69 of", speed.share_of_compiled, {"tokens_per_s": "690"}, compiled)

    def test_batch_that_fills_the_gpu(self):
        def steps(milliseconds):
            """Fills a GPU on which a step of a batch takes these milliseconds; others do not run."""
            tried = speed.Steps(Report(4, self.directory), None, sys.executable)

            def onebit(model, batch):
                if batch not in milliseconds:
                    raise Failed("out of memory")
                return tried.add(model, "onebit", "0123abc", "", batch, milliseconds[batch])

            with mock.patch.object(tried, "onebit", onebit):
                return tried, tried.fill("bert_base")

        tried, found = steps({16: 10, 32: 11, 64: 14, 128: 27.5, 256: 1})
        self.assertIn("14.000 ms at batch 64", found)
        self.assertEqual(tried.fastest("bert_base")["batch"], 128)
        self.assertIn("batch 64 does not run", steps({16: 10, 32: 11})[1])
        self.refused("out of memory", steps, {})


class Bundle(Case):
    """A bundle of a program that needs a library of its build machine."""

    def setUp(self):
        super().setUp()
        self.tree, self.mpi, away = self.directory / "tree", self.directory / "mpi", self.directory / "away"
        compile_c("int f(void) { return 0; }", away / "libaway.so", "-shared", "-Wl,-soname,libaway.so")
        main = 'int f(void);\nint puts(const char*);\nint main(void) { puts("backends: cuda"); return f(); }'
        for name in ("onebit", "tests/a_test"):
            compile_c(main, self.tree / name, str(away / "libaway.so"), f"-Wl,-rpath,{away}")
        (self.tree / "tests/CTestTestfile.cmake").write_text(
            'add_test([=[unit.a_test]=] "a_test")\nadd_test([=[mpi.a_test.4]=] "mpiexec")\n'
            'add_test([=[mpi.absent.2]=] "mpiexec")\nadd_test([=[unit.a_test.piece]=] "python3")\n')
        write_program(self.mpi / "bin/mpirun", "#!/bin/sh\n")
        compile_c("int g(void) { return 0; }", self.mpi / "lib/libg.so.1", "-shared")
        self.archive = self.directory / "elsewhere/gpu_check.tar.xz"

    def make(self, largest=55):
        with mock.patch.object(bundle, "FILES", ("scripts", "inputs")):
            return quietly(bundle.make, self.tree, self.mpi, self.archive, largest)[1]

    def test_is_made_and_runs_elsewhere(self):
        self.assertIn("MiB of at most 55", self.make())
        shutil.rmtree(self.directory / "away")
        root = bundle.unpack(self.archive)
        here = installation.of_bundle(root)
        self.assertEqual((here.units, here.mpi), (["a_test"], {"a_test": [4]}))
        self.assertEqual(here.backends(), ["cuda"])
        self.assertEqual(here.environment["OPAL_PREFIX"], str(root / "openmpi"))
        for name in ("openmpi/bin/mpirun", "openmpi/lib/libg.so.1", "lib/libaway.so", "inputs/bert_tiny.yaml"):
            self.assertTrue((root / name).is_file(), name)
        self.assertFalse(list(root.glob("lib/libc.so*")))
        # Its own script runs from there; a second call unpacks nothing.
        (root / "mark").write_text("")
        self.assertEqual(bundle.unpack(self.archive), root)
        self.assertTrue((root / "mark").exists())
        said = support.run(self, [root / "scripts/gpu_check.sh", "--run", "1"], 2, env=NO_GPU).stderr
        self.assertIn("stage 1 needs a GPU", said)

    def test_larger_than_allowed(self):
        self.refused("MiB, more than 0.001", self.make, 0.001)
        self.assertEqual(list(self.archive.parent.iterdir()), [])

    def test_broken_archives(self):
        self.archive.parent.mkdir()
        self.archive.write_bytes(b"no archive")
        self.refused("cannot be unpacked", bundle.unpack, self.archive)

    def test_library_that_is_lost(self):
        shutil.rmtree(self.directory / "away")
        self.refused("libraries not found: libaway.so", self.make)


class Stages(Case):
    """The stages with the host's backends in place of CUDA, which is what a machine without a GPU can try."""

    @classmethod
    def setUpClass(cls):
        here = installation.of_build_tree(BUILD)
        if "cuda" in here.backends():
            raise unittest.SkipTest("this build has CUDA")

    def setUp(self):
        super().setUp()
        self.here = installation.of_build_tree(BUILD)
        self.here.environment.update(support.ENVIRONMENT, OMP_WAIT_POLICY="passive")
        # The wrapper runs on Serial what is meant for CUDA.
        write_program(self.directory / "onebit", '#!/bin/bash\nexec "' + PROGRAM +
                      '" "${@/run.backend=cuda/run.backend=serial}"\n')
        self.here.program = self.directory / "onebit"
        self.options = argparse.Namespace(without_gpu=False, python=sys.executable, gpus=["a GPU"])

    def run_stage(self, stage, only="*"):
        report = Report(stage, self.directory / "output", only=[only])
        quietly(command_line.STAGES[stage].run_stage, report, self.here, self.options)
        return {row["check"]: (row["verdict"], row["detail"]) for row in report.rows}

    def test_units(self):
        self.here.units = ["config_test", "quantize_test"]
        with mock.patch.object(units, "ON_GPU", "*/serial.*"):
            found = self.run_stage(1, "quantize_test:*")
        self.assertEqual(found["quantize_test:Quantize/serial.levels_are_exact"][0], PASS)
        self.assertGreaterEqual(len(found), 4)

    def test_training(self):
        with mock.patch.multiple(training, STEPS=5, FIRST_STEPS={"schedule.warmup_steps": 5},
                                 TOLERANCES={1: 1e-6, 5: 1e-3}), \
                mock.patch.object(installation, "find_tool", return_value=None):
            found = self.run_stage(2)
        self.assertEqual(found.pop("memcheck:base_test")[0], SKIP)
        for name in ("", ":cuda", ":cuda:again", ":cuda:loss_at_step_1", ":cuda:loss_at_step_5",
                     ":cuda:again:same_bits", ":cuda:compare_backends"):
            self.assertEqual(found[f"bert_tiny{name}"][0], PASS, found)
        self.assertTrue((self.directory / "output/stage_2_runs.tar.gz").is_file())

    def test_openmp_half_alone(self):
        said = support.run(self, [SCRIPT, "--run", 2, "--without-gpu", "--build", BUILD, "--output", self.directory],
                           env=NO_GPU).stdout
        self.assertIn("PASS  bert_tiny: loss", said)
        self.assertIn("no GPU: the CUDA half was not run", said)

    def test_ranks(self):
        self.here.mpi = {"quantized_average_test": [1, 2, 3, 4]}
        with mock.patch.object(units, "ON_GPU", "*/serial.*"):
            found = self.run_stage(3)
        for check in ("device:transport", "device:quantized_average_test.1", "device:quantized_average_test.2",
                      "host:quantized_average_test.4"):
            self.assertEqual(found.pop(check)[0], PASS, check)
        self.assertNotIn("host:quantized_average_test.1", found)
        self.assertEqual(found["nccl:alone"], (SKIP, "this build has no NCCL"))

    def test_speed(self):
        small = {"bench.smallest": 100000, "bench.largest": 100000, "bench.repetitions": 1, "train.batch": 4,
                 "model.preset": "tiny", "model.sequence": 24, "model.vocabulary": 300}
        with mock.patch.object(speed, "CASES", {"large": small}), mock.patch.object(speed, "LEAST_OF_COPY", 0):
            found = self.run_stage(4, "kernels:large:adam")
        self.assertEqual(found["kernels:large"][0], PASS, found)
        self.assertIn("of copy's", found["kernels:large:adam"][1])
        self.assertEqual(len(found), 2)


class Moved(Case):
    def test_tests_take_their_files_from_the_environment(self):
        test = BUILD / "tests/config_test"
        command = [test, "--gtest_filter=Resolved.inputs_of_the_repository_read_back"]
        (self.directory / "inputs").mkdir()
        environment = {**support.ENVIRONMENT, "ONEBIT_SOURCE_DIR": str(self.directory)}
        support.run(self, command, 1, env=environment)  # no input is there
        shutil.copy(ROOT / "inputs/bert_tiny.yaml", self.directory / "inputs")
        support.run(self, command, 0, env=environment)
        support.run(self, command, 0)


if __name__ == "__main__":
    skips.main(sys.argv[4:])
