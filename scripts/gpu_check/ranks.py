"""Stage 3: ranks that share a GPU exchange its memory, directly and through the host; NCCL takes a GPU to a rank."""

import os
import pathlib
import tempfile

from gpu_check import installation, units
from gpu_check.verdicts import Failed, Skipped
from lib import launch, tables

RANKS = (1, 2, 4)
LIMIT_S = 150
# Variables with which Open MPI takes device memory as it is, if it was built with CUDA; and with which it does not, so
# that the program copies to the host.
WAYS = {"device": {}, "host": {"OMPI_MCA_opal_cuda_support": "0"}}


def variables(here, way):
    return {**here.environment, **WAYS[way], "OMP_NUM_THREADS": "1"}


def refuse_exclusive():
    """Leaves out what starts several processes on a GPU that takes one."""
    if installation.takes_one_process():
        raise Skipped("the GPU takes one process (compute mode Exclusive_Process)", "as root: nvidia-smi -c DEFAULT")


def run_tests(report, here, way, program, ranks):
    if ranks > 1:
        refuse_exclusive()
    command = here.on_ranks(ranks, here.test(program), f"--gtest_filter={units.ON_GPU}")
    return units.judge(report.run(command, LIMIT_S, variables(here, way), here.root))


def average(report, here, ranks, transport, environment):
    """A short run on ranks with comm.transport: (finished process, row of run.csv)."""
    with tempfile.TemporaryDirectory() as scratch:
        settings = {"run.output": scratch, "run.backend": "cuda", "comm.transport": transport, "train.steps": 20,
                    "train.batch": 8 * ranks, "freeze.step": 10}
        command = here.on_ranks(ranks, here.program, "train", "inputs/quadratic.yaml", *launch.overrides(settings))
        done = report.run(command, LIMIT_S, environment, here.root)
        rows = tables.read_csv(pathlib.Path(scratch) / "run.csv") if done.status == 0 else [{}]
    return done, rows[0]


def check_way(report, here, way):
    """`transport: auto` takes the way that Open MPI allows."""
    refuse_exclusive()
    done, run = average(report, here, 2, "auto", variables(here, way))
    done.expect()
    found = f"transport {run['transport']}; device_mpi {run['device_mpi']}: {run['device_mpi_evidence']}"
    if run["transport"] != way:
        raise Failed(found, "use an Open MPI with CUDA: scripts/setup.sh --cuda-mpi (docs/guide/build.md)"
                     if way == "device" else "OMPI_MCA_opal_cuda_support=0 did not reach the ranks")
    return found


def has_nccl(report, here):
    listed = report.run([here.program, "list"], LIMIT_S, here.environment).expect().output
    return any("nccl" in line for line in listed.splitlines() if line.startswith("transports:"))


def check_nccl(report, here, ranks):
    if not has_nccl(report, here):
        raise Skipped("this build has no NCCL", "build where CMake finds NCCL (docs/guide/build.md)")
    done, run = average(report, here, ranks, "nccl", here.environment)
    done.expect()
    if run["transport"] != "nccl":
        raise Failed(f"transport {run['transport']}, not nccl")
    return f"{ranks} rank(s), final loss {run['final_loss']}"


def check_shared_nccl(report, here):
    if not has_nccl(report, here):
        raise Skipped("this build has no NCCL", "build where CMake finds NCCL (docs/guide/build.md)")
    refuse_exclusive()
    done, _ = average(report, here, 2, "nccl", {**here.environment, "CUDA_VISIBLE_DEVICES": "0"})
    done.expect(2, "two ranks on one GPU must be refused before NCCL starts")
    if "NCCL takes one rank to a GPU" not in done.output:
        raise Failed(f"refused in other words: {done.last_words()}")
    return "two ranks on one GPU are refused"


def run_stage(report, here, options):
    for way in WAYS:
        report.check(f"{way}:transport", check_way, report, here, way)
    report.check("nccl:alone", check_nccl, report, here, 1)
    report.check("nccl:shared", check_shared_nccl, report, here)
    if len(options.gpus) > 1:
        report.check("nccl:several_gpus", check_nccl, report, here, len(options.gpus))
    # The fewest ranks first, in case time runs out. One rank exchanges nothing.
    checks = {f"{way}:{program}.{ranks}": (way, program, ranks)
              for ranks in RANKS for way in WAYS for program, numbers in here.mpi.items()
              if ranks in numbers and (way == "device" or ranks > 1)}
    wanted = {name: check for name, check in checks.items() if report.wants(name)}
    # Programs are asked for their tests only where they will run: each starts the GPU.
    tests = units.tests_on_gpu(report, here, dict.fromkeys(program for _, program, _ in wanted.values()))
    report.check_all([(name, run_tests, report, here, *check) for name, check in wanted.items() if tests.get(check[1])],
                     max(1, (os.cpu_count() or 1) // max(RANKS)))
