"""The programs that performance.py times: OneBit, and PyTorch in its modes."""

import os
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

from lib import ROOT, launch, program_name, tables
from performance_page import threads

HERE = pathlib.Path(__file__).resolve().parent
OPTIMIZER_PHASES = ("compress_s", "all_to_all_s", "average_s", "all_gather_s", "update_s")
NETWORKS_OF_IMAGES = ("resnet18", "vgg16")
STEPS_NOT_COUNTED = 4  # of OneBit
STEPS_OF_WARM_UP = 3  # of a PyTorch process; the first one compiles
MKL_AVX512 = " with AVX-512 in MKL"  # how a mode says that the library below is preloaded
MKL_SOURCE = "int mkl_serv_intel_cpu_true(void) { return 1; }\n"


def timed_lines(command, variables=None):
    """What a command prints: pairs of the time at which a line came, in seconds, and the line."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")}
    environment.update(variables or {})
    environment.setdefault("OMP_NUM_THREADS", threads())
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as run:
        lines = [(time.monotonic(), line) for line in run.stdout]
    if run.returncode != 0:
        sys.exit(f"{program_name()}: {shlex.join(command)} ended with status {run.returncode}")
    return lines


def output_of(command, variables=None):
    return "".join(line for _, line in timed_lines(command, variables))


def onebit(program, model, precision):
    """(version, steps, median of a step in ms) of one process."""
    with tempfile.TemporaryDirectory() as directory:
        settings = {"run.output": f"{directory}/run"}
        if model != "optimizer":
            settings["model.precision"] = precision
        output_of([program, "train", f"inputs/performance/{model}.yaml", *launch.overrides(settings)])
        run = tables.read_csv(f"{directory}/run/run.csv")[0]
        steps = tables.read_csv(f"{directory}/run/steps.csv")[STEPS_NOT_COUNTED:]
    phases = OPTIMIZER_PHASES if model == "optimizer" else ("step_s",)
    times = [1e3 * sum(float(step[phase]) for phase in phases) for step in steps]
    return run["git"], len(times), statistics.median(times)


class Peer:
    """A PyTorch in one mode."""

    def __init__(self, name, python, mode, preloaded):
        self.name, self.python, self.mode = name, python, mode + (MKL_AVX512 if preloaded else "")
        self.options = ["--mode", mode]
        self.variables = {"LD_PRELOAD": preloaded} if preloaded else {}

    def time(self, model, precision, steps, options=()):
        """(version, steps, median of a step in ms) of one process. `options` are further ones of its script."""
        if model == "optimizer":
            command = [self.python, str(HERE / "optimizer_time.py")]
        elif model in NETWORKS_OF_IMAGES:
            command = [self.python, str(HERE / "image_step_time.py"), "--network", model, "--precision", precision]
            command += ["--warm-up", str(STEPS_OF_WARM_UP)]
        else:
            command = [self.python, str(HERE / "step_time.py"), model, "--precision", precision]
            command += ["--dropout", "0.1" if model.startswith("bert") else "0", "--warm-up", str(STEPS_OF_WARM_UP)]
        text = output_of([*command, *self.options, *options, "--steps", str(steps)], self.variables)
        return re.search(r"^torch (\S+?),", text, re.M)[1], steps, last_median(text)


def compile_mkl_library(path):
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", path], input=MKL_SOURCE, text=True, check=True)


def peers_of(pythons, directory, as_installed=False):
    """Every PyTorch in each of its modes, of texts NAME=PYTHON. `directory` takes the library that is preloaded; with
    `as_installed` each mode comes without that library too."""
    preloaded = ""
    if "GenuineIntel" not in pathlib.Path("/proc/cpuinfo").read_text():
        preloaded = f"{directory}/mkl_avx512.so"
        compile_mkl_library(preloaded)
    peers = []
    for text in pythons:
        name, python = text.split("=", 1)
        version = output_of([python, "-c", "import torch; print(torch.__version__)"])
        for mode in ("eager",) if version.startswith("1.") else ("eager", "compile"):
            for library in ("", preloaded) if as_installed and preloaded else (preloaded,):
                peers.append(Peer(name, python, mode, library))
    return peers


def last_median(text):
    return float(re.findall(r"median ([0-9.]+) ms", text)[-1])


