"""The tables, the words and the verdict of a prediction."""

import functools
import math
import os
import pathlib

from lib import tables
from lib.predict import model
from lib.predict.inputs import InputError
from lib.predict.steps import GBIT, Model

MOST_MEDIAN_ERROR = 0.5  # of a fit that describes its rows; those of the laboratory are up to 20 %
COLUMNS = {
    "predict.csv": ["network", "link_bit_per_s", "ranks", "hosts", "parameters", "collective", "form", "numbers",
                    "link_bytes", "forward_s", "backward_s", *(f"{part}_s" for part in model.PARTS), "call_s",
                    "messages_s", "simulated_s", "hidden_s", "update_s", "step_s", "samples_per_s", "speedup"],
    "crossover.csv": ["network", "link_bit_per_s", "ranks", "hosts", "parameters", "dense", "dense_step_s",
                      "compressed", "compressed_step_s", "speedup", "pays_above_parameters", "pays_below_bit_per_s"],
    "pays_below.csv": ["ranks", "hosts", "parameters", "collective", "form", "numbers", "bits", "steps_per_exchange",
                       "pays_below_bit_per_s", "least_bit_per_s", "greatest_bit_per_s"],
    "fit.csv": ["collective", "form", "inside", "rows", "latency_s", "wait_s", "line_rate_share", "reduce_s",
                "compress_s", "average_s", "decompress_s", "work_fitted", "median_error", "largest_error"],
}


def cell(value):
    """A number with the digits of a float; empty for NaN."""
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.9g}"
    return str(int(value)) if isinstance(value, bool) else str(value)


def texts(rows):
    """The rows as a CSV file has them."""
    return [{column: cell(value) for column, value in row.items()} for row in rows]


def count_text(value):
    """340 million"""
    for unit, word in ((1e9, " billion"), (1e6, " million"), (1e3, " thousand")):
        if value >= unit:
            return f"{value / unit:.3g}{word}"
    return f"{value:.0f}"


def time_text(seconds):
    unit, word = (1, "s") if seconds >= 1 else (1e3, "ms") if seconds >= 1e-3 else (1e6, "µs")
    return f"{unit * seconds:.3g} {word}"


def network_text(gbit_per_s):
    return f"{1e3 * gbit_per_s:.4g} Mbit/s" if gbit_per_s < 1 else f"{gbit_per_s:.4g} Gbit/s"


def at_network(network):
    """The end of the names of a network's figures: "_at_2_5_gbit_per_s" for "2.5 Gbit/s"."""
    return "_at_" + "".join(c if c.isalnum() else "_" for c in network.lower().replace("/", "_per_"))


def limit_text(bit_per_s):
    if bit_per_s == 0:
        return "never"
    return "always" if math.isinf(bit_per_s) else network_text(bit_per_s / 1e9)


def blank(value, form):
    """The number in this form; empty for NaN."""
    return "" if math.isnan(value) else f"{value:{form}}"


class Prediction:
    """What is predicted for an input: the rows of its CSV files, with a value for each column, and words about them.

    The rows are computed when they are asked for.
    """

    def __init__(self, given):
        """Reads and fits the measurements. Raises InputError."""
        self.input, self.model = given, Model(given)
        # (rate in words, bytes/s, cluster) of each network and number of ranks.
        self.networks = [(network_text(rate), rate * GBIT, self.model.cluster(ranks))
                         for rate in given.bandwidths_gbit_per_s for ranks in given.ranks]

    def best(self, compressed, cluster, link):
        """(collective, seconds of its step) of the fastest average; ("", NaN) if there is none."""
        parameters = self.input.parameters
        found = self.model.best(compressed, cluster, parameters, link)
        return (found.collective, self.model.step(found, cluster, parameters, link).step) if found else ("", math.nan)

    @property
    def compares(self):
        """Whether there are dense and compressed averages."""
        return all(self.model.of(compressed) for compressed in (False, True))

    @functools.cached_property
    def steps(self):
        """The rows of predict.csv."""
        return [self.step_row(candidate, cluster, network, link, dense_step)
                for network, link, cluster in self.networks for dense_step in [self.best(False, cluster, link)[1]]
                for candidate in self.model.candidates]

    def step_row(self, candidate, cluster, network, link, dense_step):
        given = self.input
        step = self.model.step(candidate, cluster, given.parameters, link)
        samples = cluster.ranks * given.samples_per_rank
        return dict(zip(COLUMNS["predict.csv"], (
            network, 8 * link, cluster.ranks, cluster.hosts, given.parameters, candidate.collective, candidate.form,
            numbers_of(candidate), step.link_bytes, given.forward_ms * 1e-3, given.backward_ms * 1e-3,
            *step.parts.values(), step.call, step.messages,
            self.model.simulated(candidate, cluster, given.parameters, link), step.hidden, given.update_ms * 1e-3,
            step.step, samples / step.step if step.step else math.inf,
            dense_step / step.step if step.step else math.nan)))

    @functools.cached_property
    def crossovers(self):
        """The rows of crossover.csv."""
        rows = []
        for network, link, cluster in self.networks if self.compares else ():
            (dense, slow), (compressed, fast) = (self.best(which, cluster, link) for which in (False, True))
            rows.append(dict(zip(COLUMNS["crossover.csv"], (
                network, 8 * link, cluster.ranks, cluster.hosts, self.input.parameters, dense, slow, compressed, fast,
                slow / fast, self.model.crossover_parameters(cluster, link),
                8 * self.model.crossover_link(cluster, self.input.parameters)))))
        return rows

    @functools.cached_property
    def limits(self):
        """The rows of pays_below.csv."""
        rows, given = [], self.input
        for cluster in map(self.model.cluster, given.ranks if self.compares else ()):
            for candidate in self.model.of(True):
                least, expected, greatest = self.model.rate_limit(candidate, cluster, given.parameters)
                rows.append(dict(zip(COLUMNS["pays_below.csv"], (
                    cluster.ranks, cluster.hosts, given.parameters, candidate.collective, candidate.form,
                    numbers_of(candidate), given.compressed_bits, given.steps_per_exchange, 8 * expected, 8 * least,
                    8 * greatest))))
        return rows

    @property
    def fits(self):
        """The rows of fit.csv."""
        return [dict(zip(COLUMNS["fit.csv"], (
            fit.collective, fit.form, fit.inside, fit.rows, fit.latency, fit.wait, fit.share, fit.reduce, fit.compress,
            fit.average, fit.decompress, fit.work_fitted, fit.median_error, fit.largest_error)))
            for fit in self.model.fits]

    @property
    def files(self):
        """{name: rows} of the files."""
        files = {"predict.csv": self.steps, "crossover.csv": self.crossovers}
        if self.compares:
            files["pays_below.csv"] = self.limits
        if self.fits:
            files["fit.csv"] = self.fits
        return files

    def of_last_ranks(self):
        return [row for row in self.crossovers if row["ranks"] == self.input.ranks[-1]]

    def figures(self):
        """{name: (value, unit)} of the figures of merit, which are of the last of the ranks."""
        found = {"ranks": (self.input.ranks[-1], "ranks")}
        for network, link, cluster in self.networks:
            if cluster.ranks != self.input.ranks[-1]:
                continue
            for which, name in ((False, "dense_step_s"), (True, "compressed_step_s")):
                if self.model.of(which):
                    found[name + at_network(network)] = self.best(which, cluster, link)[1], "s"
            for row in self.of_last_ranks():
                if row["network"] == network:
                    found["speedup" + at_network(network)] = row["speedup"], "times"
                    found["pays_below_bit_per_s"] = row["pays_below_bit_per_s"], "bit/s"
        if self.fits:
            found["fit_median_error"] = max(fit["median_error"] for fit in self.fits), "fraction"
        return found

    def problems(self):
        """[(what is wrong, remedy)]: steps are no times, or fits do not describe what they were fitted to."""
        unusable = sum(not 0 < row["step_s"] < math.inf for row in self.steps)
        found = [(f"{unusable} of {len(self.steps)} predicted steps are not finite and positive times",
                  "check the numbers of section predict")] if unusable else []
        return found + [(f"the fit of {fit['collective']} misses its rows by {100 * fit['median_error']:.3g} % "
                         "(median)", "check the files of predict.measurements")
                        for fit in self.fits if not fit["median_error"] <= MOST_MEDIAN_ERROR]

    def write(self):
        """Writes the CSV files into `run.output`. Raises InputError."""
        output = pathlib.Path(self.input.output)
        read = [self.input.file, *self.input.measurements]
        try:
            output.mkdir(parents=True, exist_ok=True)
            for name, rows in self.files.items():
                if any(os.path.exists(path) and os.path.realpath(path) == os.path.realpath(output / name)
                       for path in read):
                    raise InputError(self.input.where("output"), f"'{output / name}' would be written, and it is read",
                                     "give one of them another name")
                tables.write_csv(output / name, texts(rows), COLUMNS[name])
        except OSError as error:
            raise InputError(self.input.where("output"), f"directory '{output}' cannot be written: {error.strerror}",
                             "name a directory that you may write, with free space") from None


def numbers_of(candidate):
    """Where its parameters of the model come from."""
    return "measured" if candidate.fit else "input"


def fit_lines(fits):
    yield "# Fits: seconds = alpha messages + bytes / (share * line rate) + gamma elements; least relative squares"
    yield (f"#{'collective':<25} {'form':<23} {'rows':>5} {'alpha us':>9} {'wait us':>9} {'share':>7}  "
           f"{'gamma ns dense/compr/avg/decomp':>29}  {'median':>7} {'largest':>7}")
    for fit in fits:
        yield (f"{fit['collective']:<26} {fit['form']:<23} {fit['rows']:5d} {1e6 * fit['latency_s']:9.1f} "
               f"{1e6 * fit['wait_s']:9.1f} {fit['line_rate_share']:7.3f}  {1e9 * fit['reduce_s']:8.3f} "
               f"{1e9 * fit['compress_s']:6.3f} {1e9 * fit['average_s']:6.3f} {1e9 * fit['decompress_s']:6.3f}  "
               f"{100 * fit['median_error']:6.1f}% {100 * fit['largest_error']:6.1f}%" +
               ("  inside a host" if fit["inside"] else "") +
               ("" if fit["work_fitted"] else "  one line rate: gamma from the phases"))


def step_lines(given, steps):
    yield (f"# {count_text(given.parameters)} parameters, {given.bytes_per_element} bytes an element in dense averages"
           f", {given.ranks_per_host} ranks on a host; forward, backward, update: {given.forward_ms:g}, "
           f"{given.backward_ms:g}, {given.update_ms:g} ms")
    yield (f"#{'network':>13} {'ranks':>6} {'hosts':>5}  {'collective':<24} {'numbers':<8} {'call ms':>12} "
           f"{'messages ms':>12} {'simulated ms':>12} {'step ms':>12} {'samples/s':>12} {'speed-up':>8}")
    for row in steps:
        yield (f"{row['network']:>14} {row['ranks']:6d} {row['hosts']:5d}  {row['collective']:<24} "
               f"{row['numbers']:<8} {1e3 * row['call_s']:12.3f} {1e3 * row['messages_s']:12.3f} "
               f"{blank(1e3 * row['simulated_s'], '.3f'):>12} {1e3 * row['step_s']:12.3f} "
               f"{row['samples_per_s']:12.1f} {blank(row['speedup'], '.2f'):>7}x")


def limit_lines(error, limits):
    yield "\n# Line rate below which a compressed average gives a shorter step than every dense one"
    yield (f"#{'ranks':>6} {'hosts':>5}  {'collective':<24} {'numbers':<8} {'below':>14}   with averages "
           f"{100 * error:g} % faster or slower")
    for row in limits:
        yield (f"{row['ranks']:7d} {row['hosts']:5d}  {row['collective']:<24} {row['numbers']:<8} "
               f"{limit_text(row['pays_below_bit_per_s']):>14}   {limit_text(row['least_bit_per_s'])} to "
               f"{limit_text(row['greatest_bit_per_s'])}")


def advice(prediction, row):
    """Whether to compress on the network of a row of crossover.csv, in words."""
    slow, fast = row["dense_step_s"], row["compressed_step_s"]
    above, below = row["pays_above_parameters"], row["pays_below_bit_per_s"]
    words = (f"On {row['network']} with {row['ranks']} ranks on {row['hosts']} host{'s' if row['hosts'] > 1 else ''}, "
             f"the fastest dense average is {row['dense']} (step {time_text(slow)}) and the fastest compressed one "
             f"{row['compressed']} (step {time_text(fast)}): ")
    words += (f"compress, the step is {slow / fast:.2f} times as fast. " if fast < slow else
              f"do not compress, the step would take {fast / slow:.2f} times as long. ")
    words += "On this network compression pays " + (
        "with any number of parameters" if above == 0 else "with no number of parameters" if math.isinf(above) else
        f"above {count_text(above)} parameters")
    words += f"; with {count_text(row['parameters'])} parameters it pays " + (
        "on links of any rate" if math.isinf(below) else "on links of no rate" if below == 0 else
        f"below {network_text(below / 1e9)}") + "."
    calls = {}  # of the first average of each form
    for step in prediction.steps:
        if (step["network"], step["ranks"]) == (row["network"], row["ranks"]):
            calls.setdefault(step["form"], step["call_s"])
    others = ", ".join(f"{form} {time_text(calls[form])}"
                       for form in ("ring", "tree", "hierarchical", "hierarchical_compressed") if form in calls)
    if "compressed" in calls and others:
        words += (f" All-to-all and all-gather over all ranks (compressed) take {time_text(calls['compressed'])}; "
                  f"{others}.")
    return words


def lines(prediction):
    """What a prediction prints, but for its verdict."""
    if prediction.fits:
        yield from fit_lines(prediction.fits)
    yield from step_lines(prediction.input, prediction.steps)
    if prediction.compares:
        yield from limit_lines(prediction.input.error, prediction.limits)
        yield ""
        yield from (advice(prediction, row) for row in prediction.of_last_ranks())
        yield ""
    yield f"# results are in {prediction.input.output}"
    for name, (value, unit) in prediction.figures().items():
        yield f"FOM {name} {value:.6g} {unit}"
