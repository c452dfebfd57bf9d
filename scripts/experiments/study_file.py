"""Reads a study file and refuses one that says what study.py does not know. study.py --help describes the file."""

import math

from lib.runs import yaml
from lib.tables import number
from lib.yaml_file import COMMAND, YamlFile, bad

RUN = ("label", "set", "seeds", "ranks")
SIDE = (*RUN, "columns")  # a row or a column of a table
PARTS = {"runs": RUN, "grids": (*RUN, "rates"), "tables": ("caption", "set", "rows", "columns", "beside"),
         "figures": ("kind", "runs", "caption")}
NEEDED_OF = {"runs": (), "grids": ("rates",), "tables": ("caption", "rows", "columns"),
             "figures": PARTS["figures"]}
STUDY = ("page", "title", "text", "like", "base", "seeds", "ranks", "set", "accuracy", *PARTS, "claims")
NEEDED = ("title", "base", "seeds")
KINDS = ("within", "at_most", "at_least")  # of claims
CLAIM = ("text", "run", "against", "of", *KINDS)
LOSS, ACCURACY, F1 = "final_validation_loss", "final_validation_accuracy", "final_validation_f1"
NAMES = {LOSS: "difference of loss", "final_training_loss": "difference of training loss",
         ACCURACY: "difference of accuracy", F1: "difference of F1", "bytes_sent": "ratio of bytes sent",
         "final_validation_distance": "ratio of distances"}  # what a claim may be of, and in words
CURVES = ("samples", "bytes", "variance")  # kinds of figures over steps
FIGURES = (*CURVES, "final", "learning_rate", "ranks", "reduction")
# Keys of the input that study.py sets itself, and what gives them.
TAKEN = {"run.seed": "seeds", "run.output": "--results"}


def require(place, given, needed, name):
    for key in needed:
        if key not in given:
            raise bad(place, f"{key} is missing in {name}", f"see {COMMAND} --help for the form")


def sequence(file, node, name):
    """The node itself. A single value is no list, because study.py would take its letters for values."""
    if not isinstance(node, yaml.SequenceNode):
        raise bad(file.at(node), f"{name} is not a list", "write [VALUE, …]")
    return node


def list_of(file, node, name, read):
    """[read(item, name), …] of a list, in which nothing comes twice."""
    return file.distinct(sequence(file, node, name), name, read)


def check_settings(file, given, name):
    """How runs differ from the base, and what they are called."""
    if "label" in given:
        file.text(given["label"], f"{name}.label")
    for key, value in file.settings(given["set"], f"{name}.set", TAKEN).items() if "set" in given else ():
        file.value(value, key)
    if "seeds" in given:
        list_of(file, given["seeds"], "seeds", lambda item, key: file.integer(item, key, 0))
    if "ranks" in given:
        file.integer(given["ranks"], f"{name}.ranks", 1)


def check_table(file, given, name):
    columns = file.names(given["columns"], f"{name}.columns")
    if "beside" in given:
        list_of(file, given["beside"], "beside", file.text)
    for side in ("rows", "columns"):
        for place, node in file.names(given[side], f"{name}.{side}").items():
            part = file.mapping(node, f"{name}.{side}.{place}", SIDE)
            check_settings(file, part, f"{name}.{side}.{place}")
            for column in list_of(file, part["columns"], "columns", file.text) if "columns" in part else ():
                if column not in columns:
                    raise bad(file.at(part["columns"]), f"{name} has no column '{column}'", f"use {', '.join(columns)}")


def check_part(file, kind, node, name):
    """A run, a grid, a table or a figure."""
    given = file.mapping(node, name, PARTS[kind])
    require(file.at(node), given, NEEDED_OF[kind], name)
    if kind == "figures":
        if (word := file.text(given["kind"], "kind")) not in FIGURES:
            raise bad(file.at(given["kind"]), f"there is no figure of kind '{word}'", f"use {', '.join(FIGURES)}")
        list_of(file, given["runs"], f"{name}.runs", file.text)
        return
    check_settings(file, given, name)
    if kind == "grids":
        list_of(file, given["rates"], "rates", file.value)
    if kind == "tables":
        check_table(file, given, name)


def check_claim(file, node):
    given = file.mapping(node, "a claim", CLAIM)
    require(file.at(node), given, ("text", "run", "against"), "a claim")
    words = {key: file.text(value, f"{key} of a claim") for key, value in given.items()}
    if (column := words.get("of", LOSS)) not in NAMES:
        raise bad(file.at(given["of"]), f"a claim is of no column '{column}'", f"use {', '.join(NAMES)}")
    bounds = [key for key in KINDS if key in given]
    if len(bounds) != 1:
        raise bad(file.at(node), f"a claim asks {len(bounds)} of {', '.join(KINDS)}", "ask one of them")
    if math.isnan(number(words[bounds[0]])):
        raise bad(file.at(given[bounds[0]]), f"{bounds[0]} of a claim is not a number", "correct it")


def keys_of(path, users=()):
    """The keys of a study file, every value as it is written, and those of the study that it is like. users: the files
    that are like this one"""
    file = YamlFile(path, "inputs/study")
    nodes = file.mapping(file.root, "the study", STUDY)
    for key in ("base", "like"):
        if key in nodes and not (path.parent / file.text(nodes[key], key)).is_file():
            raise bad(file.at(nodes[key]), f"there is no file {nodes[key].value}", f"it is relative to {path.parent}")
    check_settings(file, nodes, "the study")
    for kind in PARTS:
        for name, node in file.names(nodes[kind], kind).items() if kind in nodes else ():
            check_part(file, kind, node, f"{kind}.{name}")
    for claim in file.list(sequence(file, nodes["claims"], "claims"), "claims") if "claims" in nodes else ():
        check_claim(file, claim)
    given = yaml.constructor.BaseConstructor().construct_document(file.root)
    if "like" not in given:
        return given
    like = (path.parent / given["like"]).resolve()
    if like in (*users, path):
        raise bad(file.at(nodes["like"]), f"{path.name} is like itself", "name another study")
    return {**keys_of(like, (*users, path)), **given}


def read_study(path):
    """The same of a whole study. Raises BadInput for what study.py does not know, and where a key is missing."""
    given = keys_of(path)
    require(path, given, NEEDED, "the study")
    return given
