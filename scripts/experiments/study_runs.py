"""The study file of study.py, its runs, and their rows in the CSV files. study.py --help describes the file."""

import collections
import concurrent.futures
import contextlib
import datetime
import fnmatch
import functools
import hashlib
import json
import math
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time

from lib import ROOT, launch
from lib.runs import Run, read_keys, yaml
from lib.tables import mean, number, read_csv, write_csv
from lib.yaml_file import bad, whole_number
from study_file import CURVES, read_study

RUN_COLUMNS = ["run", "seed", "identity", "program", "data", "settings", "status", "failed_step", "algorithm", "lr",
               "parameters", "ranks", "threads_per_rank", "steps", "batch", "validation_samples",
               "final_training_loss", "final_validation_loss", "final_validation_accuracy", "final_validation_f1",
               "final_validation_distance", "variance_frozen_at_step", "bytes_sent", "bytes_dense_fp32", "reduction",
               "wall_s", "date", "runs", "machine", "git", "compiler", "kokkos", "mpi", "blas", "blas_core", "note"]
STEP_COLUMNS = ["run", "seed", "step", "loss", "validation_loss", "lr", "variance_l1", "variance_ratio", "bytes_sent",
                "runs", "machine", "git", "note"]
WINDOW = 10  # steps of a mean training loss in the CSV file
LAST = 0.1  # of the steps: the mean of their training losses is the final one
LEAST_SEEDS = 3  # seeds that a claim needs
DEFAULT_HEADING = "Convergence"
INPUT_KEYS = {"algorithm": "optimizer.algorithm", "lr": "optimizer.lr", "steps": "train.steps", "batch": "train.batch",
              "validation_samples": "train.validation_batch"}  # columns that come from the resolved input
# Keys of an input that name files.
FILES_READ = ("data.corpus", "data.labelled", "data.labelled_validation", "images.training",
              "images.validation", "replay.file", "checkpoint.initialize_from",
              "checkpoint.restart", "freeze.from")


@functools.cache
def content(path, size, changed):
    """A file's content in words: its lines, if it is text, and the start of its SHA-256. The other arguments key the
    cache."""
    hashed, lines = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            hashed.update(block)
            lines += block.count(b"\n")
    counted = "" if path.endswith(".h5") else f"{lines} lines, "
    return f"{counted}{hashed.hexdigest()[:12]}"


def content_of(path):
    about = os.stat(path)
    return content(os.path.abspath(path), about.st_size, about.st_mtime_ns)


def program_of(arguments):
    """The start of the SHA-256 of the program's file. It is there: `provenance.program_version` refuses others."""
    return content_of(shutil.which(arguments.onebit)).rpartition(" ")[2]


def data_of(output):
    """The files that the run in this directory read, in words, with their present content; None without an input."""
    resolved = next(output.glob("input.resolved.yaml*"), None)
    if not resolved:
        return None
    given, found = read_keys(resolved), []
    for name in FILES_READ:
        value = given.get(name, "")
        for path in value if isinstance(value, list) else [value]:
            whole = os.path.join(ROOT, path)
            if path and os.path.isfile(whole):
                found.append(f"{os.path.basename(path)} ({content_of(whole)})")
    return "; ".join(dict.fromkeys(found))


def final_training_loss(steps):
    """The mean training loss of the last steps, as steps.csv has them."""
    last = steps[-max(1, round(LAST * len(steps))):]
    return f"{mean(number(row['loss']) for row in last):.6g}"


class Cell:
    """One run with one seed."""

    def __init__(self, study, name, run, seed, arguments):
        self.study, self.name, self.seed = study, name, seed
        self.output = pathlib.Path(arguments.results) / study.name / name / f"seed{seed}"
        self.settings = {**study.set, **run.get("set", {}), **dict(pair.split("=", 1) for pair in arguments.set)}
        sibling = re.compile(r"\{(?:(\w+)/)??(\w+)(?:/seed(\d+))?\}")

        def cell_of(found):
            return found[1] or study.name, found[2], int(found[3] or seed)

        self.needs = [cell_of(found) for value in self.settings.values() for found in sibling.finditer(value)]
        self.ranks = whole_number(str(run.get("ranks", study.ranks)))
        settings = {key: sibling.sub(lambda found: "{}/{}/{}/seed{}".format(arguments.results, *cell_of(found)), value)
                    for key, value in self.settings.items()}
        self.command = launch.mpirun(self.ranks, arguments.onebit, "train", os.path.relpath(study.base, ROOT),
                                     *launch.overrides({**settings, "run.seed": seed, "run.output": self.output}),
                                     mpiexec=arguments.mpiexec)
        self.text = " ".join(f"{key}={value}" for key, value in self.settings.items())
        # Cells with the same identity do the same; comments of the input do not count.
        base = yaml.load(study.base.read_text(encoding="utf-8-sig"), yaml.BaseLoader)
        asked = [base, self.settings, self.ranks, seed]
        self.identity = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:12]

    def record(self, program):
        """The cell's earlier row, if it is of this program and of the present data; or None."""
        path = self.output / "study.csv"
        rows = read_csv(path) if path.exists() else []
        if not rows or not rows[0].keys() <= set(RUN_COLUMNS):
            return None
        same = (rows[0]["identity"], rows[0]["program"]) == (self.identity, program)
        return rows[0] if same and rows[0]["data"] == data_of(self.output) else None

    def run(self, program, machine):
        """Runs the cell and writes its row, also for a run that ends because of NaN. Other failures end the study."""
        shutil.rmtree(self.output, ignore_errors=True)
        self.output.mkdir(parents=True)
        start = time.monotonic()
        threads = {"OMP_NUM_THREADS": "1"}
        with open(self.output / "log", "w") as log, launch.own_files({**threads, **os.environ}) as environment:
            done = subprocess.run(self.command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=False,
                                  env=environment)
        row = dict.fromkeys(RUN_COLUMNS, "")
        row.update(run=self.name, seed=self.seed, identity=self.identity, settings=self.text,
                   wall_s=f"{time.monotonic() - start:.1f}", date=datetime.date.today().isoformat())
        run = Run(self.output)
        log = (self.output / "log").read_text()
        # A loss that rose is a result, too: the run's files are complete.
        if done.returncode == 0 or done.returncode == 1 and run.complete and "\nVALIDATION FAILED the loss rose" in log:
            row.update({name: value for name, value in run.run.items()
                        if name in RUN_COLUMNS and name not in ("date", "wall_s")}, status="complete",
                       final_training_loss=final_training_loss(run.steps))
        else:
            nonfinite = re.search(r"step (\d+): .* (?:not finite|finite element)", log)
            if done.returncode != 1 or not nonfinite:
                sys.exit(f"study: {shlex.join(self.command)}\nended with status {done.returncode}:\n{log[-3000:]}")
            row.update(status="failed", failed_step=nonfinite[1], ranks=self.ranks)
        row.update({column: run.input[key] for column, key in INPUT_KEYS.items()})
        row.update(program=program, data=data_of(self.output), machine=machine, runs=self.study.seeds_of(self.name),
                   git=row["git"] or self.study.version)
        write_csv(self.output / "study.csv", [row], RUN_COLUMNS)
        return row

    def is_twin(self, other):
        """Whether both names stand for the same run. A run that begins with another one's files has no twin."""
        return other.study is self.study and other.identity == self.identity and not self.needs

    def take(self, twin, program):
        """Takes the files and the row of a complete cell with the same identity."""
        shutil.rmtree(self.output, ignore_errors=True)
        shutil.copytree(twin.output, self.output)
        row = {**twin.record(program), "run": self.name, "runs": self.study.seeds_of(self.name)}
        write_csv(self.output / "study.csv", [row], RUN_COLUMNS)
        return row

    def curves(self):
        """Yields a row for each window of steps.csv: the mean training loss, and all else from the last step."""
        sent, window = 0, []
        for row in (steps := Run(self.output).steps):
            sent += int(row["bytes_sent"])
            window.append(number(row["loss"]))
            if int(row["step"]) % WINDOW == 0 or row["validation_loss"] or row is steps[-1]:
                kept = {"run": self.name, "seed": self.seed, "step": row["step"], "bytes_sent": sent,
                        "loss": f"{mean(window):.5g}"}
                for name in ("validation_loss", "lr", "variance_l1", "variance_ratio"):
                    kept[name] = f"{float(row[name]):.5g}" if row[name] else ""
                yield kept
                window = []


class Study:
    """A study file, its cells and, after `collect`, their rows."""

    def __init__(self, path, arguments):
        self.path, self.name, self.version = path, path.stem, ""
        given = read_study(path)
        self.title, self.text = given["title"], given.get("text", "").strip()
        self.base = (path.parent / given["base"]).resolve()
        self.set, self.runs = given.get("set", {}), dict(given.get("runs", {}))
        self.ranks = given.get("ranks", arguments.ranks)
        self.grids, self.tables = {}, given.get("tables", {})
        for name, grid in given.get("grids", {}).items():
            self._add_grid(name, grid)
        for name, wanted in self.tables.items():
            self._add_table(name, wanted)
        self.heading, self.accuracy = given.get("page", DEFAULT_HEADING), given.get("accuracy") == "true"
        self.figures, self.claims = given.get("figures", {}), given.get("claims", [])
        self.seeds = {name: [whole_number(seed) for seed in run.get("seeds", given["seeds"])]
                      for name, run in self.runs.items()}
        self.cells = [Cell(self, name, run, seed, arguments) for name, run in self.runs.items()
                      for seed in self.seeds[name]]
        self.kept = arguments.page.with_suffix("")
        self.rows, self.curves = [], []
        self._check_names()

    def _add(self, name, run):
        if name in self.runs or name in self.grids:
            sys.exit(f"study: {self.path}: two runs are called '{name}'")
        self.runs[name] = run

    def _add_grid(self, name, grid):
        """Adds a run for each rate. The grid's own name stands for the best of them."""
        members = [f"{name}_{re.sub(r'[^0-9e]', '_', rate)}" for rate in grid["rates"]]
        for member, rate in zip(members, grid["rates"]):
            self._add(member, {**grid, "label": f"{grid.get('label', name)}, γ = {rate}",
                               "line": grid.get("label", name),
                               "set": {**grid.get("set", {}), "optimizer.lr": rate}})
        self.grids[name] = {"label": grid.get("label", name), "runs": members}

    def _add_table(self, name, wanted):
        """Adds a run for each cell of a table."""
        for row, column in self.places(wanted):
            sides = wanted["rows"][row], wanted["columns"][column]
            label = f"{self.words(wanted, 'rows', row)}, {self.words(wanted, 'columns', column)}"
            self._add(f"{name}_{row}_{column}", {
                "label": label, "line": self.words(wanted, "rows", row),
                **{key: side[key] for side in sides for key in ("ranks", "seeds") if key in side},
                "set": {**wanted.get("set", {}), **sides[0].get("set", {}), **sides[1].get("set", {})}})

    @staticmethod
    def words(wanted, side, name):
        return wanted[side][name].get("label", name)

    @staticmethod
    def places(wanted):
        """(row, column) of each cell of a table."""
        return [(row, column) for row, about in wanted["rows"].items() for column in wanted["columns"]
                if column in about.get("columns", wanted["columns"])]

    def _check_names(self):
        """Refuses names of runs that there are not, and claims on too few seeds."""
        sides = [(f"the claim '{claim['text']}'", claim[side]) for claim in self.claims for side in ("run", "against")]
        parts = [("figures", figure["runs"]) for figure in self.figures.values()]
        parts += [("tables", wanted.get("beside", [])) for wanted in self.tables.values()]
        for where, name in sides + [(where, pattern) for where, patterns in parts for pattern in patterns]:
            if name not in self.grids and not fnmatch.filter(self.runs, name):
                raise bad(self.path, f"{where} names '{name}', and there is no such run",
                          f"use {', '.join([*self.runs, *self.grids])}")
        for claim in self.claims:
            both = [set.intersection(*(set(self.seeds[member]) for member in self.members(claim[side])))
                    for side in ("run", "against")]
            if len(both[0] & both[1]) < LEAST_SEEDS:
                sys.exit(f"study: {self.path}: the claim '{claim['text']}' rests on {len(both[0] & both[1])} seeds "
                         f"that '{claim['run']}' and '{claim['against']}' share; a claim takes {LEAST_SEEDS}. Give "
                         "both more seeds, or leave the claim out")

    def members(self, name):
        return self.grids[name]["runs"] if name in self.grids else [name]

    def seeds_of(self, name):
        return len(self.seeds[name])

    def label(self, name):
        return self.runs[name].get("label", name)

    def family(self, name):
        """The label of a run's line in a figure over learning rates or ranks."""
        return self.runs[name].get("line") or self.first(name, "algorithm")

    def drawn(self):
        """Runs whose curves are kept: those in figures over steps, and the first one."""
        over_steps = [figure["runs"] for figure in self.figures.values() if figure["kind"] in CURVES]
        return {next(iter(self.runs)), *(name for patterns in over_steps for name in self.match(patterns))}

    def collect(self, from_results, program=None):
        """Takes the rows of complete cells, and for others the rows in the CSV files if their identity is the same.

        Writes the CSV files, unless it reads from them alone (`from_results` is False).
        """
        files = self.kept / f"{self.name}_runs.csv", self.kept / f"{self.name}_steps.csv"
        before = [read_csv(path) if path.exists() else [] for path in files]
        curves = {}
        for cell in self.cells:
            if from_results and (row := cell.record(program)):
                self.rows.append(row)
                curves[cell.name, str(cell.seed)] = cell
            else:
                row = [row for row in before[0] if (row["run"], row["seed"]) == (cell.name, str(cell.seed))]
                if row and row[0]["identity"] == cell.identity:
                    self.rows += row
        kept = {(row["run"], row["seed"]): row for row in self.rows}
        count = collections.Counter(row["run"] for row in self.rows)
        old = collections.defaultdict(list)
        for row in before[1]:
            old[row["run"], row["seed"]].append(row)
        drawn = self.drawn()
        for key, row in kept.items():
            row["runs"] = str(count[row["run"]])
            if row["run"] in drawn:
                source = {name: row.get(name, "") for name in ("runs", "machine", "git", "note")}
                for point in curves[key].curves() if key in curves else old[key]:
                    self.curves.append({**point, **source})
        if len(self.rows) < len(self.cells):
            print(f"{self.name}: {len(self.cells) - len(self.rows)} of {len(self.cells)} runs have no results, or were "
                  "kept of another input")
        if from_results:
            write_csv(files[0], [{name: row.get(name, "") for name in RUN_COLUMNS} for row in self.rows], RUN_COLUMNS)
            write_csv(files[1], self.curves, STEP_COLUMNS)
        for row in self.rows + self.curves:
            row["seed"] = str(row["seed"])

    # Results by run. Losses of failed runs are infinite.

    def match(self, patterns=("*",)):
        """Runs that match, in the order of the patterns, then of the file. A grid's name stands for its best run."""
        names = []
        for pattern in patterns:
            names += [self.best(pattern)] if pattern in self.grids else fnmatch.filter(self.runs, pattern)
        return list(dict.fromkeys(name for name in names if name))

    def present(self, patterns=("*",)):
        """The matching runs that have results."""
        have = {row["run"] for row in self.rows}
        return [name for name in self.match(patterns) if name in have]

    def best(self, name):
        """The run itself, or a grid's run with the least mean loss; None for a grid without results."""
        losses = {member: self.values(member, "final_validation_loss").values() for member in self.members(name)}
        losses = {member: mean(values) for member, values in losses.items() if values}
        losses = {member: loss for member, loss in losses.items() if loss == loss}
        return min(losses, key=losses.get) if losses else name if name in self.runs else None

    def values(self, name, column):
        """{seed: number} over the run's seeds."""
        rows = [row for row in self.rows if row["run"] == name]
        if column == "final_validation_loss":
            return {r["seed"]: math.inf if r["status"] == "failed" else number(r[column]) for r in rows}
        return {r["seed"]: number(r.get(column)) for r in rows}

    def curve(self, name, column, over="step"):
        """Yields (x, mean, least, greatest) of a column over the seeds, where all seeds have a value."""
        points = collections.defaultdict(list)
        for row in self.curves:
            if row["run"] == name and row[column]:
                points[int(row["step"])].append((number(row[over]), number(row[column])))
        all_seeds = max(map(len, points.values()), default=0)
        for step in sorted(points):
            x, y = zip(*points[step])
            # The mean ends at the first seed's failure.
            if len(y) == all_seeds:
                yield mean(x), mean(y), min(y), max(y)

    def first(self, name, column):
        return next(row[column] for row in self.rows if row["run"] == name)

    def untrained(self):
        """The approximate loss of the untrained model: the first run's after its first steps."""
        return next((point[1] for name in self.present() for point in self.curve(name, "loss")), math.inf)


class Cores:
    """The cores that runs share: one for each rank, and at most all."""

    def __init__(self, count):
        self._count, self._free = count, count
        self._turn, self._changed = threading.Lock(), threading.Condition()

    @contextlib.contextmanager
    def of(self, ranks):
        """Holds the cores of a run. A run that waits holds the turn, so small runs do not pass a large one."""
        wanted = min(ranks, self._count)
        with self._turn, self._changed:
            self._changed.wait_for(lambda: self._free >= wanted)
            self._free -= wanted
        try:
            yield
        finally:
            with self._changed:
                self._free += wanted
                self._changed.notify()


def run_cells(cells, program, arguments):
    """Runs the cells that are not complete in the order of the file, as many at a time as `cores` hold."""
    all_cells = {(cell.study.name, cell.name, cell.seed): cell for cell in cells}

    @functools.cache
    def is_complete(key):
        cell = all_cells.get(key)
        # A run that starts from another run's files runs again with that one.
        return cell is None or (all(is_complete(other) for other in cell.needs) and cell.record(program) is not None)

    todo = [cell for key, cell in all_cells.items()
            if any(fnmatch.fnmatch(name, pattern) for name in (cell.name, f"{cell.study.name}/{cell.name}")
                   for pattern in arguments.only or ["*"])
            and not is_complete(key)]
    todo.sort(key=lambda cell: bool(cell.needs))  # those that others begin with come first
    print(f"{len(todo)} of {len(cells)} runs to do", flush=True)
    started, count = {}, max(arguments.cores, 1)
    cores = Cores(count)

    def work(place, cell):
        for name in cell.needs:
            if before := started.get(name):
                before.result()
        if twin := next((other for other in cells if cell.is_twin(other) and other.record(program)), None):
            row = cell.take(twin, program)
        else:
            with cores.of(cell.ranks):
                row = cell.run(program, arguments.machine)
        result = row["final_validation_loss"] or f"failed at step {row['failed_step']}"
        print(f"[{place}/{len(todo)}] {cell.study.name} {cell.name} seed {cell.seed}: {result}, {row['wall_s']} s",
              flush=True)

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        # Tasks start in this order, so a task that waits for another one never keeps it from starting.
        for place, cell in enumerate(todo, 1):
            started[cell.study.name, cell.name, cell.seed] = pool.submit(work, place, cell)
        try:
            for task in concurrent.futures.as_completed(started.values()):
                task.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
