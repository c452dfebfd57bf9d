#!/usr/bin/env python3
"""Runs the inputs of a study, keeps the numbers of its figures in small CSV files, and makes a page of them.

A study file (inputs/study) names an ordinary input and what each run changes in it:

    page:   heading of the page, where this study is its first
    title:  heading of the panel
    text:   what is run, as a paragraph
    like:   another study file, whose keys this one has where it gives none
    base:   input, relative to the study file
    seeds:  [1, 2, 3]
    ranks:  NUMBER                                     where it is not that of --ranks
    set:    {section.key: value}                       of all runs
    runs:
      NAME: {label: TEXT, set: {…}, seeds: […], ranks: …}     seeds and ranks: only where they differ
    grids:                                             a run NAME_RATE for each rate; NAME is the best of them
      NAME: {label: TEXT, set: {…}, rates: [RATE, …]}
    tables:                                            a run NAME_ROW_COLUMN for each cell
      NAME:
        caption: TEXT
        set: {…}
        rows: {ROW: {label: TEXT, set: {…}, columns: [COLUMN, …]}}    columns: only where it has not all
        columns: {COLUMN: {label: TEXT, set: {…}}}     rows and columns may have seeds and ranks, as runs do
        beside: [PATTERN, …]                           runs to compare with
    accuracy: true                                     where accuracies are to be shown
    figures:
      NAME: {kind: KIND, runs: [PATTERN, …], caption: TEXT}
    claims:
      - {text: TEXT, run: NAME, against: NAME, at_most: NUMBER}

`{NAME}` in a value stands for the output directory of the run NAME with the same seed, `{NAME/seed1}` for that with
seed 1, and `{STUDY/NAME}` and `{STUDY/NAME/seed1}` for those of another study, which stands before this one on the
command line. Kinds of figures are the functions draw_KIND. A claim is about the final validation loss of `run` minus
that of `against`, as a mean over the seeds of both. `of` names another column: with final_training_loss, the mean of
the last tenth of the steps, final_validation_accuracy and final_validation_f1 it is about the difference, too, with
bytes_sent and final_validation_distance about the ratio. It asks at_most, at_least or within (of zero), and needs three
seeds. It holds where the 95 % interval of this mean does, and is undecided where the bound lies in the interval. A
grid's name stands for its run with the least mean loss. A run that ends because of NaN is a result: its loss counts as
infinite.

A complete run is not run again, also where two names stand for the same run. It is complete if its settings, the
program and the files that it read are unchanged, and so is the run whose files it starts from. Until then the page
shows the rows of earlier calls, with their commit.
"""

import argparse
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from study_claims import judge

from lib import ROOT, launch, provenance
from lib.yaml_file import BadInput
from study_page import DEFAULT_RANKS, page
from study_runs import Study, program_of, run_cells


def main():
    summary, _, format_text = __doc__.partition("\n")
    parser = argparse.ArgumentParser(description=summary, epilog=format_text,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="+", type=pathlib.Path, metavar="STUDY.yaml")
    parser.add_argument("--onebit", type=launch.program, default=launch.ONEBIT, metavar="PROGRAM")
    parser.add_argument("--mpiexec", default="mpirun", metavar="PROGRAM", help="default: %(default)s")
    parser.add_argument("--ranks", type=int, default=DEFAULT_RANKS, help="default: %(default)s")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)),
                        help="runs of so many ranks at a time, and at least one run; default: all cores, %(default)s")
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN",
                        help="runs whose NAME or STUDY/NAME matches a pattern of the shell, or one of several; for all "
                        "others the page keeps the rows of earlier calls")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="in all runs, after all other settings")
    parser.add_argument("--results", default="results/study", metavar="DIR",
                        help="the runs' output; default: %(default)s")
    parser.add_argument("--page", type=pathlib.Path, default=ROOT / "docs/results/convergence.md", metavar="FILE.md",
                        help="the page; CSV files and figures lie in a folder of its name; default: %(default)s")
    parser.add_argument("--machine", default=provenance.machine(), metavar="TEXT",
                        help="default: %(default)s")
    parser.add_argument("--draw-only", action="store_true", help="run nothing, make the page from the CSV files")
    parser.add_argument("--check", action="store_true", help="exit with status 1 unless every claim holds")
    parser.add_argument("--allow-dirty", action="store_true",
                        help="let a program of changed sources make a page in docs/results")
    arguments = parser.parse_args()
    arguments.results = os.path.abspath(arguments.results)
    arguments.page = arguments.page.resolve()
    if arguments.set and arguments.page.is_relative_to(ROOT / "docs/results"):
        parser.error("--set makes other runs than the study's, in their place: name a --page and --results of your own")

    try:
        studies = [Study(path.resolve(), arguments) for path in arguments.studies]
    except BadInput as error:
        print(f"study: {error}", file=sys.stderr)
        return 2
    program = None
    if not arguments.draw_only:
        version = provenance.program_version(arguments.onebit, None if arguments.allow_dirty else arguments.page)
        program = program_of(arguments)
        for study in studies:
            study.version = version
        run_cells([cell for study in studies for cell in study.cells], program, arguments)
    for study in studies:
        study.collect(from_results=not arguments.draw_only, program=program)
    if not any(study.rows for study in studies):
        sys.exit("study: there are no results to make a page of")
    page([study for study in studies if study.rows], arguments)
    verdicts = [(claim["text"], judge(study, claim)[1]) for study in studies for claim in study.claims]
    broken = [(text, verdict) for text, verdict in verdicts if verdict != "yes"]
    for text, verdict in broken:
        print(f"{'does not hold' if verdict == 'no' else verdict}: {text}")
    return 1 if arguments.check and broken else 0


if __name__ == "__main__":
    sys.exit(main())
