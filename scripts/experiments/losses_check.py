"""Runs a sample of the studies' runs again and compares the losses with those in the CSV files: all.py --check.

Losses are deterministic: the same program, input, seed and number of ranks give the same bits on the same machine with
the same compiler and the same library of matrix products. Where one of these differs, products round differently, and a
loss may differ from the second or third digit on (docs/develop/design.md). Then a difference is said, and is no error.
"""

import argparse
import tempfile

from parts import STUDIES

from lib import ROOT, provenance, tables
from study_runs import Study, program_of

SAME = ("machine", "compiler", "kokkos", "blas", "blas_core")  # columns of a machine that promises the same bits
COMPARED = ("final_validation_loss", "bytes_sent")


def place(cell):
    """(study, run, seed)"""
    return cell.study.name, cell.name, cell.seed


def kept_rows(studies):
    """{place: row} of complete runs whose input is still the same."""
    identities = {place(cell): cell.identity for study in studies for cell in study.cells}
    rows = {}
    for study in studies:
        for row in tables.read_csv(study.kept / f"{study.name}_runs.csv"):
            at = study.name, row["run"], int(row["seed"])
            if row["status"] == "complete" and identities.get(at) == row["identity"]:
                rows[at] = row
    return rows


def sample_of(study, cells, rows):
    """The cells that the study's shortest run takes, itself last; of this machine's runs if there are any."""
    def with_needs(cell):
        return [*(more for need in cell.needs for more in with_needs(cells[need])), cell]

    def cost(sample):
        rows_of_it = [rows[place(cell)] for cell in sample]
        return rows_of_it[-1]["machine"] != provenance.machine(), sum(float(row["wall_s"]) for row in rows_of_it)

    samples = map(with_needs, study.cells)
    return min((sample for sample in samples if all(place(cell) in rows for cell in sample)), key=cost, default=[])


def verdict(new, old):
    """(words, False if the losses must be the same and are not)"""
    if all(new[name] == old[name] for name in COMPARED):
        return f"{new['final_validation_loss']}, the same", True
    both = f"{new['final_validation_loss']}, and {old['final_validation_loss']} of {old['git']}"
    if new["data"] != old["data"]:
        return f"{both}: it read other files", True
    other = [name for name in SAME if new[name] != old[name]]
    return (f"{both}: another {', '.join(other)}", True) if other else (f"{both}: DIFFERENT", False)


def check(arguments, parts, lacking):
    """The exit status. \\param lacking what a part needs and this machine lacks, in words"""
    good, pages = True, {study.page: study for study in STUDIES}
    for part in (part for part in parts if part.name in pages):
        if needed := lacking(part):
            print(f"{part.name}: not checked: it needs {needed}")
            continue
        with tempfile.TemporaryDirectory() as directory:
            options = argparse.Namespace(onebit=arguments.onebit, mpiexec="mpirun", ranks=4, set=[], results=directory,
                                         page=ROOT / f"docs/results/{part.name}.md", machine=provenance.machine())
            studies = [Study(ROOT / path, options) for path in pages[part.name].inputs]
            good &= check_page(studies, options)
    return 0 if good else 1


def check_page(studies, options):
    """True unless a loss differs that must not."""
    version = provenance.program_version(options.onebit)
    program, rows, good, ran = program_of(options), kept_rows(studies), True, set()
    cells = {place(cell): cell for study in studies for cell in study.cells}
    for study in studies:
        study.version = version
        sample = sample_of(study, cells, rows)
        if not sample:
            print(f"{study.name}: not checked: its CSV file has no whole run of the present input")
        for cell in sample:
            if cell in ran:
                continue
            ran.add(cell)
            words, same = verdict(cell.run(program, options.machine), rows[place(cell)])
            print(f"{cell.study.name} {cell.name} seed {cell.seed}: {words}", flush=True)
            good &= same
    return good
