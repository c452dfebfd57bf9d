"""The model's parameters, fitted to collective.csv files of `onebit bench collective`."""

import csv
import dataclasses
import math
import re
import statistics

import numpy as np
from scipy.optimize import nnls

from lib import tables
from lib.predict import model
from lib.predict.inputs import InputError, excerpt

# The form of each collective of `bench.collectives`. `mpi_allreduce` counts as a ring, which MPI libraries use for long
# vectors.
FORM_OF = {"mpi_allreduce": "ring", "mpi_reduce_scatter": "rabenseifner", "pairwise_allreduce": "pairwise",
           "hierarchical_allreduce": "hierarchical", "mpi_bf16": "bf16", "pairwise_bf16": "pairwise_bf16",
           "hierarchical_bf16": "hierarchical_bf16", "grid_bf16": "grid_bf16", "mpi_compressed": "compressed",
           "grid_compressed": "grid_compressed",
           "pairwise_compressed": "pairwise_compressed", "hierarchical_compressed": "hierarchical_compressed"}
REMEDY = "name a collective.csv of onebit bench collective, as it was written"
ITERATIONS = 6  # of a linear fit, after which its numbers do not change any more


@dataclasses.dataclass
class Measurement:
    """What the model needs of a row of collective.csv."""

    collective: str
    parameters: float
    ranks: int
    hosts: int
    seconds: float  # of a call: median over repetitions of the slowest rank
    compress: float  # seconds of the rank's own work, as the next two
    average: float
    decompress: float
    link: float = 0  # line rate of a host's link, bytes/s; 0 for one host

    @property
    def cluster(self):
        return model.Cluster(self.hosts, self.ranks // self.hosts)


class Row(dict):
    """A row of a file by the names of its columns, and its place."""

    def __init__(self, header, cells, where):
        if len(cells) != len(header):
            raise InputError(where, f"the row has {len(cells)} cells for {len(header)} columns",
                             "measure again; a whole file ends without .partial")
        super().__init__(zip(header, cells))
        self.where = where

    def __missing__(self, column):
        raise InputError(self.where, f"the file has no column '{column}'", REMEDY)

    def number(self, column, least):
        """A finite number that is not below `least`."""
        value = tables.number(self[column])
        if not least <= value < math.inf:
            raise InputError(self.where, f"{column} is '{excerpt(self[column])}', which is not a number it can have",
                             REMEDY)
        return value

    def link(self):
        """Line rate in bytes/s: of its own column, or of the laboratory's text "… (measured 190.6)"; 0 for none."""
        if "link_bit_per_s" in self:
            return self.number("link_bit_per_s", 1) / 8
        measured = re.search(r"\(measured ([0-9.]+)\)", self.get("network", ""))
        return tables.number(measured[1]) * 1e6 / 8 if measured else 0


def read_rows(path):
    """Yields the rows of a CSV file. Raises InputError with file and line."""
    try:
        with open(path, newline="", encoding="utf-8-sig", errors="replace") as file:
            lines = csv.reader(file)
            header = next(lines, [])
            problem = tables.problem_of(header) or ("" if header else "the file of measurements is empty")
            if problem:
                raise InputError(path, problem, REMEDY)
            for cells in lines:
                if cells:
                    yield Row(header, cells, f"{path}:{lines.line_num}")
    except csv.Error as error:
        raise InputError(path, f"this is not CSV: {error}", REMEDY) from None
    except OSError as error:
        raise InputError(path, f"the file cannot be read: {error.strerror}", "check the name and the permissions"
                         ) from None


def read_measurements(path, link):
    """The measurements of a file, whose columns are found by their names.

    link: the line rate in bytes/s for rows of several hosts that do not give one; 0 for none. Raises InputError.
    """
    measurements = []
    for row in read_rows(path):
        form_of_collective(row["collective"], row.where)
        one = Measurement(row["collective"], row.number("parameters", 1), int(row.number("ranks", 1)),
                          int(row.number("hosts", 1)), row.number("p50_s", 0), row.number("compress_s", 0),
                          row.number("average_s", 0), row.number("decompress_s", 0))
        if one.ranks % one.hosts:
            raise InputError(row.where, f"{one.ranks} ranks on {one.hosts} hosts: the model knows hosts with as many "
                             "ranks each", "measure with as many ranks on each host")
        if one.ranks == 1 or one.seconds == 0:
            continue  # no communication
        if one.hosts > 1:
            one.link = row.link() or link
            if one.link == 0:
                raise InputError(row.where, "the row does not say the line rate of its hosts' links",
                                 "set predict.measured_gbit_per_s")
        measurements.append(one)
    return measurements


def form_of_collective(collective, where="measurements"):
    if collective not in FORM_OF:
        raise InputError(where, f"'{excerpt(collective)}' is no collective that the model knows", "leave out its rows")
    return FORM_OF[collective]


def slowdown(ranks, shared_cores):
    """How much longer a rank's work takes because ranks share cores; 0 cores: each rank has its own."""
    return ranks / shared_cores if 0 < shared_cores < ranks else 1.0


@dataclasses.dataclass
class Fit:
    """The fitted parameters of one collective."""

    collective: str
    form: str
    rows: int
    inside: bool  # all rows are of one host: α and β are those of its channels
    # False if all rows have one line rate, so that a call's time does not tell work from bytes. Then γ comes from the
    # measured times of compress, average and decompress, and is 0 for a dense average.
    work_fitted: bool
    latency: float = 0  # α, s
    wait: float = 0  # s that a message waits for its rank's turn, for each other rank on the same core
    share: float = 1  # of the line rate (inside: of the input's channel); infinite if bytes make no difference
    # γ of each kind of work, s an element, in the ratios of the measured times of compress, average and decompress.
    reduce: float = 0
    compress: float = 0
    average: float = 0
    decompress: float = 0
    median_error: float = 0  # |predicted − measured| / measured over the rows
    largest_error: float = 0

    def applied_to(self, machine, link, slow):
        """`machine` with these parameters. link: line rate in bytes/s; slow: of `slowdown`"""
        latency = self.latency + self.wait * (slow - 1)
        if self.inside:
            machine = machine.changed(inside_latency=latency, inside_bandwidth=machine.inside_bandwidth * self.share)
        else:
            machine = machine.changed(latency=latency, bandwidth=link * self.share)
        return machine.changed(**{cost: getattr(self, cost) for cost in model.COSTS}).slowed_down(slow)


@dataclasses.dataclass
class Terms:
    """The terms of one row's time, for given parameters."""

    bytes: float = 0  # seconds at the full line rate (inside: at the full bandwidth of a channel)
    messages: float = 0  # number of α
    work: float = 0  # seconds of the rank's own work
    known: float = 0  # seconds that are not fitted


def terms(row, form, machine, inside, line):
    found, before = Terms(), 0
    for stage in model.stages(form, row.cluster, row.parameters, model.Width(), machine):
        if not stage.bounds:
            before = stage.seconds(machine)
            found.work += before
            continue
        bound = max(stage.bounds, key=lambda one: one.seconds(machine))
        # The longer of the work and the messages that overlap it counts.
        if stage.overlaps:
            if bound.seconds(machine) <= before:
                continue
            found.work -= before
        found.bytes += (bound.inside_bytes if inside else bound.bytes) / line
        found.messages += bound.inside_messages if inside else bound.messages
        found.known += bound.overheads * machine.overhead
        if not inside:
            found.known += (bound.inside_messages * machine.inside_latency +
                            bound.inside_bytes / machine.inside_bandwidth)
    return found


def least_squares(rows, right):
    """The x ≥ 0 with the least ‖A x − b‖₂; A by rows. A column that is 0 or the multiple of one before it gets x = 0,
    so that x does not depend on rounding."""
    matrix = np.array(rows, dtype=float)
    lengths = np.linalg.norm(matrix, axis=0)
    units = matrix / np.where(lengths > 0, lengths, 1)
    used = []
    for column in np.flatnonzero(lengths):
        if all(units[:, column] @ units[:, other] < 1 - 5e-11 for other in used):
            used.append(column)
    x = np.zeros(len(lengths))
    if used:
        x[used] = nnls(units[:, used], np.array(right, dtype=float))[0] / lengths[used]
    return x


def own_work(found, rows, machine, shared_cores):
    """Sets γ to the means of the measured times, which give the ratios between the kinds of work. Dense averages have
    no such times, and compressed ones that have none take those of `machine`."""
    for cost in ("compress", "average", "decompress"):
        for row in rows:
            own = row.cluster.ranks_per_host if found.form == "hierarchical_compressed" and cost != "decompress" else 1
            seconds = getattr(row, cost) / (row.parameters / own * slowdown(row.ranks, shared_cores))
            setattr(found, cost, getattr(found, cost) + seconds / len(rows))
    if model.is_compressed(found.form) and not found.compress + found.average + found.decompress > 0:
        found.compress, found.average, found.decompress = machine.compress, machine.average, machine.decompress
    found.reduce = machine.reduce if model.is_compressed(found.form) or found.work_fitted else 0


def fit_one(collective, rows, machine, shared_cores):
    links = {math.floor(math.log(row.link + 1) * 20 + 0.5) for row in rows}  # equal within 5 %
    found = Fit(collective, form_of_collective(collective), len(rows), inside=rows[0].hosts == 1,
                work_fitted=len(links) > 1 and len(rows) > 2)
    own_work(found, rows, machine, shared_cores)
    slow = [slowdown(row.ranks, shared_cores) for row in rows]
    is_shared = any(factor > 1 for factor in slow)
    # The longest bound of a stage depends on the fitted parameters, so the linear fit is iterated.
    for _ in range(ITERATIONS):
        matrix, right = [], []
        for row, factor in zip(rows, slow):
            line = machine.inside_bandwidth if found.inside else row.link
            at = terms(row, found.form, found.applied_to(machine, row.link, factor), found.inside, line)
            coefficients = [at.bytes]
            if len(rows) > 1:
                coefficients.append(at.messages)
            if found.work_fitted:
                coefficients.append(at.work)
                if is_shared:
                    coefficients.append(at.messages * (factor - 1))
            matrix.append([coefficient / row.seconds for coefficient in coefficients])
            right.append((row.seconds - at.known - (0 if found.work_fitted else at.work)) / row.seconds)
        share, latency, work, wait = [*map(float, least_squares(matrix, right)), 0, 0, 0][:4]
        found.share, found.latency, found.wait = 1 / share if share > 0 else math.inf, latency, wait
        if found.work_fitted:
            for cost in model.COSTS:  # a later iteration could not leave 0
                setattr(found, cost, getattr(found, cost) * max(work, 1e-12))
    errors = []
    for row, factor in zip(rows, slow):
        fitted = found.applied_to(machine, row.link, factor)
        predicted = model.total_seconds(found.form, row.cluster, row.parameters, model.Width(), fitted)
        errors.append(abs(float(predicted) / row.seconds - 1))
    found.median_error, found.largest_error = statistics.median(errors), max(errors)
    return found


def fit(measurements, machine, shared_cores):
    """A fit for each collective, from its rows of several hosts if it has any: least squares of the relative errors
    with no parameter below 0.

    machine: gives the parameters that are not fitted: the overhead, and those inside hosts
    shared_cores: of all hosts together; 0 if each rank has its own
    """
    fits = []
    for collective in dict.fromkeys(row.collective for row in measurements):
        rows = [row for row in measurements if row.collective == collective]
        rows = [row for row in rows if row.hosts > 1] or rows
        fits.append(fit_one(collective, rows, machine, shared_cores))
    return fits
