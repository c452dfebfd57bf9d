"""A YAML file of a script, read by nodes so that every mistake has a line, and the words of its errors."""

import difflib
import json
import pathlib
import re
import sys

from lib import require

require({"yaml": "PyYAML"})
import yaml  # noqa: E402

LARGEST_SEED = 2 ** 63 - 1
COMMAND = pathlib.PurePath(sys.argv[0]).name  # as people call it


def whole_number(text):
    """The integer that a text is; None where it is none. 1e3 is one too; 010 is 8 for some readers of YAML and 10 for
    others, so it is none."""
    if not re.fullmatch(r"(0|[1-9]\d*)(e\d{1,2})?", text, re.IGNORECASE | re.ASCII):
        return None
    digits, _, exponent = text.lower().partition("e")
    return int(digits) * 10 ** int(exponent or 0)


class BadInput(Exception):
    """An error in what the user wrote; the text says where, what, and the remedy."""


def bad(place, what, remedy):
    return BadInput(f"{place}: {what}\n  remedy: {remedy}")


class YamlFile:
    """A file, and readers of its nodes. Readers raise BadInput.

    `name` says what a node is, in messages.
    """

    def __init__(self, path, examples):
        """examples: the folder of files of this kind"""
        self.path = path
        try:
            if path.exists() and not path.is_file():
                raise bad(path, "this is no ordinary file", f"name a YAML file; examples are in {examples}")
            self.root = yaml.compose(path.read_text(encoding="utf-8-sig"), yaml.SafeLoader)
        except OSError as error:
            raise bad(path, error.strerror,
                      f"check the name and the permissions; examples are in {examples}") from None
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
            mark = getattr(error, "problem_mark", None)
            place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else path
            raise bad(place, f"not YAML: {getattr(error, 'problem', None) or error}",
                      f"see {examples} and {COMMAND} --help for the form") from None
        if self.root is None:
            raise bad(path, "the file is empty", f"see {COMMAND} --help for its keys")

    def at(self, node):
        return f"{self.path}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"

    def mapping(self, node, name, allowed):
        """{key: value node} of a mapping with `allowed` keys."""
        found = self.names(node, name)
        for key, _ in node.value:
            if key.value not in allowed:
                close = difflib.get_close_matches(key.value, allowed, 1)
                raise bad(self.at(key), f"unknown key '{key.value}' in {name}",
                          f"did you mean {close[0]}?" if close else f"use {', '.join(allowed)}")
        return found

    def settings(self, node, name, taken):
        """{section.key: value node} of keys of the program's input. taken: {key that is refused: what gives it}"""
        found = self.names(node, name)
        for key, _ in node.value:
            if not re.fullmatch(r"\w+(\.\w+)+", key.value):
                raise bad(self.at(key), f"'{key.value}' in {name} is not a key of the input",
                          "write section.key, as in docs/reference/input.md")
            if key.value in taken:
                raise bad(self.at(key), f"{key.value} is given by {COMMAND} itself", f"use {taken[key.value]}")
        return found

    def names(self, node, name):
        """{key: value node} of a mapping whose keys are texts, each of which comes once."""
        if not isinstance(node, yaml.MappingNode):
            raise bad(self.at(node), f"{name} is not a mapping", "write it as 'key: value' lines, or {key: value, …}")
        found = {}
        for key, value in node.value:
            word = self.text(key, f"a key of {name}")
            if word in found:
                raise bad(self.at(key), f"{word} is given twice in {name}", "remove one of them")
            found[word] = value
        return found

    def list(self, node, name):
        """The nodes of a list, which must not be empty; a single value is a list of one, no node an empty list."""
        nodes = [] if node is None else node.value if isinstance(node, yaml.SequenceNode) else [node]
        if node and not nodes:
            raise bad(self.at(node), f"{name} is an empty list", "give it a value, or remove the key")
        return nodes

    def value(self, node, name):
        """The value as `--set` takes it: a text as it stands, unless it begins as a list, a map or a quoted text does.

        In a list a text is quoted where a comma, '#' or the like in it would mean something else.
        """
        if isinstance(node, yaml.SequenceNode):
            items = (self.value(item, name) if isinstance(item, yaml.SequenceNode) else self.item(item, name)
                     for item in node.value)
            return f"[{', '.join(items)}]"
        text = self.text(node, name)
        return json.dumps(text, ensure_ascii=False) if re.match(r" *[\"'[{]", text) else text

    def item(self, node, name):
        """A text in a list that `--set` takes."""
        text = self.text(node, name)
        return text if re.fullmatch(r"[\w./+*-]+", text) else json.dumps(text, ensure_ascii=False)

    def text(self, node, name):
        """A text of one line."""
        if not isinstance(node, yaml.ScalarNode) or not node.value.isprintable():
            raise bad(self.at(node), f"the value of {name} is neither one line nor a list",
                      "see docs/reference/input.md")
        return node.value

    def integer(self, node, name, least):
        text = node.value if isinstance(node, yaml.ScalarNode) else ""
        if (value := whole_number(text)) is None:
            raise bad(self.at(node), f"{name} has to be an integer of at least {least}, not '{text}'",
                      "write it in decimal digits")
        most = LARGEST_SEED if name == "seeds" else 2 ** 31 - 1
        if not least <= value <= most:
            raise bad(self.at(node), f"{name} has to be an integer from {least} to {most}, not {text}", "correct it")
        return value

    def distinct(self, node, name, read):
        """[read(item, name), …] of a list; refuses values that come twice."""
        values = []
        for item in self.list(node, name):
            value = read(item, name)
            if value in values:
                raise bad(self.at(item), f"{value} comes twice in {name}", "remove one of them")
            values.append(value)
        return values
