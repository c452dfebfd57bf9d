"""The command line of scripts/gpu_check.sh."""

import argparse
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from gpu_check import bundle, installation, ranks, speed, training, units
from gpu_check.verdicts import Failed, Report
from lib import ROOT

STAGES = {1: units, 2: training, 3: ranks, 4: speed}
WITH_OPENMP_HALF = (2, 4)
DESCRIPTION = """Checks OneBit on a machine with a GPU, in four stages of at most ten minutes each.

1  what is here, and every unit test on the GPU
2  compute-sanitizer over small tests; a training run on OpenMP and on CUDA
3  ranks that share the GPU: MPI tests with device memory and through the host; NCCL
4  speed: kernels against the machine; steps of BERT beside PyTorch's

Each check prints PASS, FAIL or SKIP. The exit status is 0 if no check failed, 1 if one did, 2 if the stage was
refused. docs/guide/gpu.md tells more."""


def parse(arguments):
    parser = argparse.ArgumentParser(prog="gpu_check.sh", description=DESCRIPTION,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--bundle", action="store_true", help="make the archive, for a machine without this checkout's "
                                                              "libraries; needs no GPU")
    action.add_argument("--run", type=int, choices=STAGES, metavar="N", help="run stage N")
    parser.add_argument("--archive", type=pathlib.Path, help="the bundle (default: build/gpu_check.tar.xz)")
    parser.add_argument("--build", type=pathlib.Path, help="take this build tree; without it --bundle builds one, and "
                                                           "--run takes the bundle, or else build/cuda")
    parser.add_argument("--architecture", default="90", help="--bundle: compute capability without its dot (default: "
                                                             "90, Hopper)")
    parser.add_argument("--mpi", type=pathlib.Path, default=bundle.default_mpi(),
                        help="--bundle: the CUDA-aware Open MPI (default: %(default)s)")
    parser.add_argument("--largest", type=float, default=55, help="--bundle: MiB of an archive that is not refused "
                                                                  "(default: %(default)g)")
    parser.add_argument("--output", type=pathlib.Path, default=os.environ.get("OUT") or ROOT / "results/gpu_check",
                        help="--run: directory of results (default: the environment variable OUT, or "
                             "results/gpu_check)")
    parser.add_argument("--only", action="append", metavar="PATTERN",
                        help="--run: these checks alone, such as 'step:*'; several --only add up")
    parser.add_argument("--minutes", type=float, default=9, help="--run: time of the stage (default: %(default)g)")
    parser.add_argument("--python", default=sys.executable, help="--run: the Python that has PyTorch")
    parser.add_argument("--without-gpu", action="store_true", help="--run 2 or 4: the OpenMP half alone, with a build "
                                                                   "without CUDA (default: build/openmp)")
    return parser.parse_args(arguments)


def find_installation(options):
    """What the stage checks: see --build and --archive."""
    archive = options.archive or ROOT / "build/gpu_check.tar.xz"
    if options.build:
        return installation.of_build_tree(options.build)
    if options.archive or (archive.is_file() and not options.without_gpu):
        if not archive.is_file():
            raise Failed(f"{archive} is not there", "make it with scripts/gpu_check.sh --bundle")
        return installation.of_bundle(bundle.unpack(archive))
    if (ROOT / installation.DESCRIPTION).is_file():
        return installation.of_bundle(ROOT)
    return installation.of_build_tree(ROOT / ("build/openmp" if options.without_gpu else "build/cuda"))


def refuse_without_gpu(options):
    """Raises Failed where the stage needs a GPU that is not here."""
    options.gpus, reason = installation.gpus()
    if options.without_gpu and options.run not in WITH_OPENMP_HALF:
        raise Failed(f"stage {options.run} has nothing to run without a GPU",
                     "run it on a machine with a GPU; ctest runs the same tests on OpenMP")
    if not options.without_gpu and not options.gpus:
        half = "; --without-gpu runs this stage's OpenMP half here" if options.run in WITH_OPENMP_HALF else ""
        raise Failed(f"stage {options.run} needs a GPU: {reason}", f"run it on a machine with a GPU{half}")


def run(options):
    refuse_without_gpu(options)
    here = find_installation(options)
    try:
        here.find_libraries(options.python)
        has_cuda = "cuda" in here.backends()
    except Failed as problem:
        if options.run != 1:  # stage 1 reports it as a check
            raise
        has_cuda = True
        print(problem)
    if options.without_gpu and has_cuda:
        raise Failed(f"{here.program} has CUDA, and such a program needs a GPU for OpenMP too",
                     "name a build without CUDA with --build, such as build/openmp")
    if not options.without_gpu and not has_cuda:
        raise Failed(f"{here.program} has no backend cuda", "name a build with CUDA with --build")
    report = Report(options.run, options.output, options.minutes, options.only or ["*"])
    STAGES[options.run].run_stage(report, here, options)
    status = report.conclude()
    if options.without_gpu:
        print("no GPU: the CUDA half was not run")
    return status


def main():
    options = parse(sys.argv[1:])
    try:
        if options.run:
            return run(options)
        tree = options.build or bundle.build(options.architecture)
        bundle.make(tree, options.mpi, options.archive or ROOT / "build/gpu_check.tar.xz", options.largest)
    except Failed as problem:
        remedy = f"\n  remedy: {problem.remedy}" if problem.remedy else ""
        print(f"gpu_check: {problem}{remedy}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
