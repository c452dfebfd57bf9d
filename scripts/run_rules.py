#!/usr/bin/env python3
"""Judges the runs that are reported for a size of the run rules, docs/guide/run_rules.md.

PACKAGE is a folder with five others: the `run.output` of runs of inputs/rules/SIZE.yaml with five seeds. Prints a row
for each run, the two figures of merit without the best and the worst run, and as its last line the verdict.

A package of the division `closed` differs from the input in what the rules let change. In the division `open` the
optimiser, its schedule, the compression and the number of steps may differ as well, as long as every run reaches
`train.target_loss`. Where the repository has a reference of convergence, the mean final loss of a closed package must
not be greater than that of the reference: a one-sided t-test (Welch) must not tell the two apart at 5 %.

Exit status: 0; 1 where a rule is broken; 2 where there is no package.
"""

import argparse
import hashlib
import math
import pathlib
import statistics
import sys

from lib import ROOT, launch, provenance
from lib.intervals import probability_within
from lib.runs import Run, read_input
from lib.tables import aligned, number, read_csv

RUNS = 5
LEVEL = 0.05  # of the t-test
TEXT = "82a24e4e23c644fe579ed387b20e54eb529cc0a87a25e0810064edb2216780c2"  # SHA-256 of what scripts/corpus.sh writes
# Runs whose losses are those of a right program.
REFERENCES = {size: ROOT / f"docs/results/{size}.csv" for size in ("smoke", "node")}
OWN = ("run.seed", "run.output")  # of each run
FREE = ("run.backend", "run.threads", "run.progress_interval_s", "run.dump_parameters", "run.watchdog_seconds",
        "run.check_replicas_every", "model.precision", "train.accumulation", "data.corpus", "data.cache", "checkpoint.",
        "comm.transport", "comm.collective", "comm.exchange", "comm.message_bytes", "comm.bucket_bytes",
        "comm.compressed_bucket_bytes")
OPEN = ("optimizer.", "schedule.", "freeze.", "compression.", "zero_one.", "lamb.", "diloco.", "muon.",
        "comm.dense_type", "train.steps", "train.batch", "train.validate_every", "train.loss_at_most")
FIGURES = {"time_to_target_s": "s", "tokens_per_s": "1/s"}


def wanted(onebit, size, settings=()):
    """{section.key: value} of the size's input with these settings, resolved."""
    provenance.program_version(onebit)  # ends the script if it is another program, whose answer would mean nothing
    path = ROOT / "inputs/rules" / f"{size}.yaml"
    status, text, errors = launch.output_of(onebit, "validate", path, *launch.overrides(settings))
    if status != 0:
        sys.exit(f"run_rules: {onebit} does not read {path}:\n{errors}")
    return read_input(text)


def texts(run):
    """The files that the run read. A relative path is one of the repository, where the commands of the rules run."""
    return [ROOT / path for path in run.keys.get("data.corpus", [])]


def problems_of(run, keys, division):
    """What one run breaks, in words."""
    if not run.complete:
        yield "is not complete: " + (", ".join(run.problems) or "run.csv is of an earlier run")
        return
    free = OWN + FREE + (OPEN if division == "open" else ())
    for key in sorted(keys.keys() | run.input.keys()):
        if keys.get(key) != run.input.get(key) and not key.startswith(free):
            yield f"{key} is {run.input.get(key)}, and {keys.get(key)} in the input of the size"
    loss, bound = number(run.run["final_validation_loss"]), number(keys["train.loss_at_most"])
    if not loss <= bound:
        yield f"its final validation loss is {loss:g}, more than {bound:g}"
    if not number(run.run["time_to_target_s"]) > 0:
        yield f"no validation found a loss of at most {keys['train.target_loss']}"
    files = texts(run)
    if all(file.is_file() for file in files):
        hashed = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
        if hashed != TEXT:
            yield f"data.corpus {run.input.get('data.corpus')} has SHA-256 {hashed}, and the rules' text {TEXT}"
    if int(run.run["ranks"]) < 2:
        yield "it had one rank, which sends nothing"
    if run.run["restarts"] != "0":
        yield f"it restarted {run.run['restarts']} times"
    if not run.run["git"] or run.run["git"].endswith("-dirty"):
        yield f"its commit is '{run.run['git']}': build the program from committed sources"


def differences(runs):
    """In what the runs differ from each other, in words."""
    for name in ("git", "machine", "ranks", "threads_per_rank", "mpi", "blas", "kokkos"):
        if len(found := {run.run[name] for run in runs}) > 1:
            yield f"the runs differ in {name}: {', '.join(sorted(found))}"
    for key in sorted(runs[0].input.keys() - set(OWN)):
        if len({run.input.get(key) for run in runs}) > 1:
            yield f"the runs differ in {key}"
    if len({run.input["run.seed"] for run in runs}) < len(runs):
        yield "two runs have the same run.seed"


def chance_of_a_greater(values, others):
    """p of a one-sided t-test (Welch) that the mean behind `values` is not greater than that behind `others`."""
    parts = [statistics.variance(side) / len(side) for side in (values, others)]
    difference = statistics.mean(values) - statistics.mean(others)
    if sum(parts) == 0:
        return 0.0 if difference > 0 else 1.0
    freedom = sum(parts) ** 2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, (values, others)))
    t = difference / math.sqrt(sum(parts))
    return (1 - math.copysign(probability_within(abs(t), max(1, int(freedom))), t)) / 2


def convergence(runs, size):
    """(what is wrong, in words; what was compared, in words); either may be empty."""
    if size not in REFERENCES:
        return "", "no reference of convergence"
    losses = [number(run.run["final_validation_loss"]) for run in runs]
    reference = [number(row["final_validation_loss"]) for row in read_csv(REFERENCES[size])]
    chance = chance_of_a_greater(losses, reference)
    words = (f"mean final loss {statistics.mean(losses):.4f}, reference {statistics.mean(reference):.4f} of "
             f"{len(reference)} runs, p = {chance:.2g}")
    return (words, "") if chance < LEVEL else ("", words)


def middle(values):
    """The mean without the least and the greatest value."""
    return statistics.mean(sorted(values)[1:-1])


def judge(runs, keys, division, size):
    """(what is wrong, a list of words; what was compared, in words)"""
    wrong = [f"{run.directory.name}: {problem}" for run in runs for problem in problems_of(run, keys, division)]
    if len(runs) != RUNS:
        wrong.append(f"{len(runs)} runs are here, and {RUNS} are asked")
    if wrong:
        return wrong, ""
    wrong = list(differences(runs))
    unread = sorted({str(file) for run in runs for file in texts(run) if not file.is_file()})
    unchecked = f"; the text was not checked: {', '.join(unread)} is not here" if unread else ""
    if division == "open":
        return wrong, "every run reached its target" + unchecked
    worse, compared = convergence(runs, size)
    return wrong + ([worse] if worse else []), compared + unchecked


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=pathlib.Path, metavar="PACKAGE")
    parser.add_argument("--size", choices=("smoke", "node", "cluster"), default="smoke", help="default: %(default)s")
    parser.add_argument("--division", choices=("closed", "open"), default="closed", help="default: %(default)s")
    parser.add_argument("--onebit", type=launch.program, default=launch.ONEBIT, metavar="PROGRAM",
                        help="resolves the size's input")
    arguments = parser.parse_args()
    folders = sorted(path for path in arguments.package.glob("*/")
                     if Run.is_one({file.name for file in path.iterdir()}))
    if not folders:
        parser.error(f"{arguments.package} has no folder with the files of a run")

    runs = [Run(folder) for folder in folders]
    shown = ["seed", "final_validation_loss", "steps_to_target", *FIGURES]
    print(aligned(["run", *shown], [[run.directory.name, *(run.run.get(name, "") for name in shown)] for run in runs]))
    wrong, compared = judge(runs, wanted(arguments.onebit, arguments.size), arguments.division, arguments.size)
    if wrong:
        print("\n".join(wrong))
        print(f"VALIDATION FAILED {len(wrong)} rules of size {arguments.size}, division {arguments.division}")
        return 1
    for name, unit in FIGURES.items():
        print(f"FOM {name} {middle([number(run.run[name]) for run in runs]):.6g} {unit}")
    print(f"VALIDATION PASSED size {arguments.size}, division {arguments.division}: {compared}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
