"""The keys of a prediction, and the reader of its YAML file, which names the place of every mistake."""

import collections
import contextlib
import difflib
import math
import os
import re
import types

from lib import launch, require, tables
from lib.predict.model import FORMS
from lib.runs import LONGEST_INPUT

require({"yaml": "PyYAML"})
import yaml  # noqa: E402


class InputError(Exception):
    """An input that cannot be used: where, what is wrong, and the remedy."""

    def __init__(self, where, what, remedy):
        super().__init__(f"{where}: {what}\n  remedy: {remedy}")


class Refused(Exception):
    """What is wrong with a value, and the remedy."""


def excerpt(text):
    """A user's text as messages show it: at most 60 characters, on one line."""
    shown = text if len(text) <= 60 else text[:60] + "…"
    return "".join(c if c.isprintable() else "?" for c in shown)


# A type of values: `allowed` in words, and `read`, which makes a value of a text or raises Refused.
Type = collections.namedtuple("Type", "name allowed read")


def read_number(text, allowed, is_allowed, is_whole):
    decimal = re.fullmatch(r"[+-]?(?=\.?\d)(0|[1-9]\d*)?(\.\d*)?([eE][+-]?\d+)?", text)  # 010 is 8 in YAML 1.1
    value = tables.number(text) if decimal else math.nan
    if is_whole and not value.is_integer():
        raise Refused("is not an integer", f"give {allowed}, in decimal digits without separators")
    if not math.isfinite(value):
        raise Refused("is not a finite number", f"give a number, {allowed}, in decimal digits without separators")
    if not is_allowed(value):
        raise Refused("is out of range", f"give {'' if is_whole else 'a number, '}{allowed}")
    return int(value) if is_whole else value


def integer(low, high=2**31 - 1):
    allowed = f"≥ {low}" if high == 2**31 - 1 else f"[{low}, {high}]"
    return Type("integer", allowed, lambda text: read_number(text, allowed, lambda x: low <= x <= high, True))


def real(low, high, above=False):
    """Numbers in [low, high], or with `above` in (low, high]."""
    allowed = f"{'(' if above else '['}{low:g}, {high:g}]"
    return Type("real", allowed, lambda text: read_number(
        text, allowed, lambda x: low < x <= high if above else low <= x <= high, False))


def read_form(text):
    if text not in FORMS:
        near = difflib.get_close_matches(text.lower(), FORMS, 1)
        raise Refused("is not one of its values", (f"did you mean '{near[0]}'? " if near else "") +
                      "give one of " + ", ".join(FORMS))
    return text


def read_path(text):
    """A path as it stands: a leading ~ and $NAME are for shells, and there is none."""
    if not text or not text.isprintable():
        raise Refused("is empty or holds a control character", "name a file or directory")
    try:
        return str(launch.path(text))
    except Exception as error:
        raise Refused("holds ~ or $, which only a shell replaces", "write the whole path") from error


FORM = Type("word", ", ".join(FORMS), read_form)
PATH = Type("path", "", read_path)
MOST = 1e9  # of times and rates

# A key whose default is a list takes a list of values, or one value for it.
Key = collections.namedtuple("Key", "name default unit type meaning")
SECTIONS = {"run": [
    Key("output", "results/run", "", PATH, "Directory for the CSV files; made if missing."),
], "predict": [
    Key("parameters", 25e6, "", real(1, 1e13), "Parameters d of the model."),
    Key("bytes_per_element", 4, "B", integer(1, 8),
        "Bytes of an element in the dense average: 4, or 2 for half precision."),
    Key("compressed_bits", 1, "bit", integer(1, 16),
        "Bits of an element in the compressed averages: 1 for signs, more for `nbit`."),
    Key("steps_per_exchange", 1, "steps", integer(1, 1 << 20),
        "Steps between two compressed averages: 1, or more for local steps (`zero_one_adam`). The step is then a "
        "mean."),
    Key("ranks", [8, 64, 256, 1024, 4096], "", integer(2, 65536),
        "Rank counts; those above `ranks_per_host` are multiples of it, smaller ones are on one host."),
    Key("ranks_per_host", 8, "", integer(1, 1024), "Ranks that share a host's link."),
    Key("bandwidths_gbit_per_s", [1.0, 10.0, 100.0], "Gbit/s", real(0, 1e6, above=True),
        "Networks: line rate of a host's link in each direction."),
    Key("line_rate_share", 0.9, "", real(0, 1, above=True),
        "Fraction of the line rate that messages reach after headers and pauses; collectives with `measurements` have "
        "their own."),
    Key("latency_us", 30.0, "µs", real(0, MOST), "α: from a message's sending to its arrival on another host."),
    Key("message_overhead_us", 2.0, "µs", real(0, MOST),
        "Time of a rank's processor for each message that it sends."),
    Key("burst_kbyte", 0.0, "kB", real(0, MOST),
        "What an idle link passes at once before its rate holds (a token bucket, as of tc and of some clouds), in "
        "measurements and predictions."),
    Key("inside_bandwidth_gbyte_per_s", 10.0, "GB/s", real(0, MOST, above=True),
        "What a rank sends to ranks of its own host, while it receives as much."),
    Key("inside_latency_us", 5.0, "µs", real(0, MOST), "α inside a host."),
    Key("memory_bandwidth_gbyte_per_s", 100.0, "GB/s", real(0, MOST, above=True),
        "Of a rank, for its reductions, compressions, averages and decompressions."),
    Key("forward_ms", 40.0, "ms", real(0, MOST), "Forward pass of a step."),
    Key("backward_ms", 80.0, "ms", real(0, MOST), "Backward pass of a step, without communication."),
    Key("update_ms", 10.0, "ms", real(0, MOST), "The optimiser's own work in a step."),
    Key("samples_per_rank", 16, "", integer(1), "Samples of a rank in a step, for the throughput."),
    Key("overlap_buckets", 0, "", integer(0, 100000),
        "Most equal buckets K in which the dense average goes on during the backward pass: the best of K, K/2, K/4, … "
        "and 1, which averages after it, as 0 does."),
    Key("compressed_buckets", 0, "", integer(0, 100000), "The same for compressed averages."),
    Key("server_ns", 0.0, "ns", real(0, MOST),
        "What a server of a compressed average does with an element that it serves before it sends it: for "
        "`onebit_muon` Newton–Schulz."),
    Key("largest_tensor", 0.0, "elements", real(0, 1e13),
        "Elements of the largest tensor of which one server needs the whole average: for `onebit_muon` the largest "
        "matrix. 0: there is none. Not with buckets, nor with `hierarchical_compressed`."),
    Key("least_gain", 0.0, "", real(0, 0.99),
        "A compressed average pays, in `pays_below.csv`, if it makes the step shorter by this share of the dense "
        "step."),
    Key("error", 0.0, "", real(0, 0.99),
        "Relative error that predicted averages may have, for the limits in `pays_below.csv`."),
    Key("collectives", [form for form in FORMS if not form.endswith("bf16")], "", FORM,
        "What is compared: the forms below. Names that end in `bf16` send 2 bytes an element (`comm.dense_type`), "
        "whatever `bytes_per_element` says."),
    Key("measurements", [], "", PATH,
        "collective.csv files of `onebit bench collective`. Each measured collective is fitted, and predicted with its "
        "own numbers in addition to those of `collectives`."),
    Key("measured_gbit_per_s", 0.0, "Gbit/s", real(0, 1e6),
        "Line rate of the links of `measurements` whose rows do not say it; 0 for rows that do."),
    Key("shared_cores", 0, "", integer(0, 1 << 20),
        "Cores of all hosts together, where hosts are namespaces of one machine: a rank's work then takes ranks / "
        "cores as long, and messages wait for their rank's turn, in measurements and predictions. 0: each rank has its "
        "own core."),
    Key("simulate_up_to", 64, "ranks", integer(0, 512),
        "Most ranks for which each message is simulated too, as a check of the closed form."),
]}


def markdown():
    """The tables of keys in docs/reference/prediction.md."""

    def default(value):
        return f"[{', '.join(map(default, value))}]" if isinstance(value, list) else \
            f'"{value}"' if "/" in str(value) else f"{value:g}" if isinstance(value, float) else str(value)

    return "\n\n".join(f"Section `{name}`:\n\n" + tables.markdown(
        ["key", "type", "unit", "default", "allowed", "meaning"],
        [[f"`{key.name}`", f"list of {key.type.name}s" if isinstance(key.default, list) else key.type.name, key.unit,
          f"`{default(key.default)}`", key.type.allowed, key.meaning] for key in keys])
        for name, keys in SECTIONS.items())


class Input(types.SimpleNamespace):
    """The value of each key by its name, the name of the `file`, and `given`: the places of the keys that were."""

    def where(self, name):
        """The place of a key for a message."""
        section = next(section for section, keys in SECTIONS.items() if any(key.name == name for key in keys))
        return self.given.get(name, f"{self.file} ({section}.{name} has its default)")

    @contextlib.contextmanager
    def located(self, name):
        """Puts the place of a key in front of an InputError about what it names."""
        try:
            yield
        except InputError as error:
            raise InputError(self.where(name), *str(error).split("\n  remedy: ")) from None


def unknown(what, name, known, where, section=""):
    """The error about a name that is none of the `known` ones of a section."""
    near = difflib.get_close_matches(name, known, 1)
    return InputError(where, f"unknown {what} '{section}{excerpt(name)}'",
                      f"did you mean '{section}{near[0]}'?" if near else f"use one of {', '.join(known)}")


def keys_of(section, where):
    """{name: Key} of a section."""
    if section not in SECTIONS:
        raise unknown("section", section, SECTIONS, where)
    return {key.name: key for key in SECTIONS[section]}


class Reader:
    """Takes what a text gives into an Input."""

    def __init__(self, file):
        self.input = Input(file=file, given={}, **{
            key.name: key.default for keys in SECTIONS.values() for key in keys})
        self.sections = {}  # the place of each one so far

    def place(self, mark):
        return f"{self.input.file}:{mark.line + 1}:{mark.column + 1}"

    def load(self, text, where=""):
        """The root of a YAML text. where: its place in messages, if it is not in the file"""
        try:
            return yaml.compose(text, yaml.SafeLoader)
        except (yaml.YAMLError, RecursionError, UnicodeError) as error:
            mark = getattr(error, "problem_mark", None)
            what = getattr(error, "problem", None) or str(error).splitlines()[0]
            raise InputError(where or (self.place(mark) if mark else self.input.file),
                             f"this is not YAML: {excerpt(what)}",
                             "check indentation (spaces only), colons and quotes on this line") from None

    def take_file(self, text):
        root = self.load(text)
        if root is None:
            raise InputError(self.input.file, "the input is empty", "write at least the section 'predict:'")
        if not isinstance(root, yaml.MappingNode):
            raise InputError(self.place(root.start_mark), "the input is not a map of sections", "begin with 'predict:'")
        for name, section in root.value:
            where = self.place(name.start_mark)
            keys = keys_of(str(name.value), where)
            if name.value in self.sections:
                raise InputError(where, f"section '{name.value}' is given twice, first at {self.sections[name.value]}",
                                 "put all its keys into one of them")
            self.sections[name.value] = where
            if section.value == "":
                continue  # no key is given
            if not isinstance(section, yaml.MappingNode):
                raise InputError(where, f"section '{name.value}' is not a map of keys",
                                 "indent 'key: value' lines below it")
            for key, value in section.value:
                self.take_key(name.value, keys, str(key.value), value, self.place(key.start_mark))

    def take_key(self, section, keys, name, node, where):
        if name in self.input.given:
            raise InputError(where, f"key '{section}.{name}' is given twice, first at {self.input.given[name]}",
                             "remove one of them")
        self.set(section, keys, name, node, where)

    def take_override(self, text):
        """text: section.key=value. A value is YAML only where it is a list or quoted: '#' begins no comment."""
        where = f"--set {excerpt(text)}"
        path, equals, value = text.partition("=")
        section, dot, name = path.partition(".")
        if not equals or not dot:
            raise InputError(where, "this is not of the form section.key=value",
                             "write e.g. --set predict.parameters=1e9")
        keys = keys_of(section, where)
        value = value.strip()
        node = self.load(value, where) if value[:1] in ('"', "'", "[", "{") else yaml.ScalarNode("", value)
        self.set(section, keys, name, node, where)

    def set(self, section, keys, name, node, where):
        if name not in keys:
            raise unknown("key", name, keys, where, f"{section}.")
        key, path = keys[name], f"{section}.{name}"
        is_list = isinstance(node, yaml.SequenceNode)
        if is_list and not isinstance(key.default, list):
            raise InputError(where, f"{path} is a list, but one value is wanted", f"give one {key.type.name}")
        nodes = node.value if is_list else [node]
        if is_list and not nodes and key.default:
            raise InputError(where, f"{path} is an empty list", "name at least one")
        if not all(isinstance(item, yaml.ScalarNode) for item in nodes):
            raise InputError(where, f"{path} holds something that is not a single value", "give single values")
        values = []
        for item in nodes:
            try:
                if item.value == "":
                    raise Refused("has no value", "give one, or leave out the key")
                values.append(key.type.read(item.value))
            except Refused as error:
                what, remedy = error.args
                if isinstance(key.default, list) and not is_list and "," in item.value:
                    remedy = f"write [{excerpt(item.value)}]"
                text = "" if item.value == "" else f"is '{excerpt(item.value)}', which "
                raise InputError(where, f"{path} {text}{what}", remedy) from None
        setattr(self.input, key.name, values if isinstance(key.default, list) else values[0])
        self.input.given[key.name] = where


def check(given):
    """Refuses values that are allowed each by itself but not together."""
    for ranks in given.ranks:
        if ranks > given.ranks_per_host and ranks % given.ranks_per_host:
            raise InputError(given.where("ranks"), f"predict.ranks holds {ranks}, which do not fill hosts of "
                             f"{given.ranks_per_host} ranks",
                             "give multiples of predict.ranks_per_host, or at most that")
    if given.largest_tensor > given.parameters:
        raise InputError(given.where("largest_tensor"), f"predict.largest_tensor is {given.largest_tensor:g}, and "
                         f"there are {given.parameters:g} parameters", "give the elements of one tensor")
    if given.largest_tensor > 0 and given.compressed_buckets > 1:
        raise InputError(given.where("largest_tensor"), "predict.largest_tensor is of one average, and there are "
                         f"{given.compressed_buckets} buckets", "leave out predict.compressed_buckets")


def read_input(path, overrides=()):
    """The Input of a file, with overrides `section.key=value`. Raises InputError with the place of a mistake."""
    reader = Reader(os.fspath(path))
    try:
        with open(path, "rb") as file:
            text = file.read(LONGEST_INPUT + 1)
    except OSError as error:
        raise InputError(path, f"the input file cannot be read: {error.strerror}",
                         "check the name and the permissions; examples are in inputs/predict") from None
    if len(text) > LONGEST_INPUT:
        raise InputError(path, "the input file is longer than 1 MiB",
                         "name a YAML file; examples are in inputs/predict")
    reader.take_file(text)
    for one in overrides:
        reader.take_override(one)
    check(reader.input)
    return reader.input
