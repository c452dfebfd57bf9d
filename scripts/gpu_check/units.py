"""Stage 1: what is here, and every unit test on the GPU, each in a process and with a time limit of its own."""

import os
import re

from gpu_check import installation
from gpu_check.verdicts import Failed, Skipped

ON_GPU = "*/cuda.*"  # the names of typed tests on the backend cuda
LIMIT_S = 150  # of a test
JOBS = min(4, os.cpu_count() or 1)  # tests that share the GPU


def parse_list(text):
    """Names of tests, as `--gtest_list_tests` prints them."""
    names, suite = [], ""
    for line in text.splitlines():
        if found := re.match(r"(\S+\.)(\s+#.*)?$", line):
            suite = found[1]
        elif suite and (found := re.match(r"  (\S+)(\s+#.*)?$", line)):
            names.append(suite + found[1])
    return names


def judge(done):
    """What a GoogleTest process says of its tests: how many passed; raises Failed or Skipped."""
    if done.status == 0:
        passed = re.search(r"^\[  PASSED  \] (\d+) test", done.output, re.M)
        skipped = re.search(r"^\[  SKIPPED \] \d+ test", done.output, re.M)
        if passed and int(passed[1]) > 0:
            return f"{passed[1]} passed in {done.seconds:.1f} s"
        if skipped:
            reason = re.search(r": Skipped\n(.*)", done.output)
            raise Skipped(reason[1] if reason else "no reason is given")
        raise Failed("no test ran", "the program has no such test: build it again")
    if failure := re.search(r"^(?:\S+/)?(\S+:\d+: Failure(?:\n(?!\[).*){1,5})", done.output, re.M):
        raise Failed(failure[1], "see the log")
    done.expect()
    return ""


def run_test(report, here, program, name):
    command = [here.test(program), f"--gtest_filter={name}"]
    return judge(report.run(command, LIMIT_S, {**here.environment, "OMP_NUM_THREADS": "2"}, here.root))


def list_tests(report, here, program):
    command = [here.test(program), "--gtest_list_tests", f"--gtest_filter={ON_GPU}"]
    return parse_list(report.run(command, LIMIT_S, here.environment, here.root).expect().output)


def fail(problem):
    raise problem


def tests_on_gpu(report, here, programs):
    """{program: names of its tests on the GPU}. A program that does not list them is a failed check."""
    tests = {}
    for program in programs:
        try:
            tests[program] = list_tests(report, here, program)
        except Failed as problem:
            report.check(program, fail, problem)
    return tests


def show_gpus(report, *_):
    lines, _ = installation.gpus()
    report.log("\n".join(lines) + "\n")
    return "; ".join(lines)


def show_list(report, here):
    done = report.run([here.program, "list"], LIMIT_S, here.environment).expect()
    report.run([here.program, "--version"], LIMIT_S, here.environment).expect()
    if "cuda" not in re.search(r"^backends: (.*)$", done.output, re.M)[1].split():
        raise Failed("this build has no backend cuda", "build it with the preset cuda (docs/guide/build.md)")
    return " ".join(re.findall(r"^(?:transports|precisions of cuda): .*$", done.output, re.M))


def run_stage(report, here, options):
    report.check("gpu", show_gpus, report)
    report.check("libraries", here.find_libraries, options.python)
    report.check("list", show_list, report, here)
    report.check_all([(f"{program}:{name}", run_test, report, here, program, name)
                      for program, names in tests_on_gpu(report, here, here.units).items() for name in names], JOBS)
