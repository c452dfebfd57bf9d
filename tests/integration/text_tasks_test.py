#!/usr/bin/env python3
"""The files of scripts/text_tasks.py, of a WordNet that the test makes: what they hold, what is held out, what is left
out, and a WordNet that cannot be read.

Usage: text_tasks_test.py SOURCE_DIRECTORY [unittest arguments]
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else pathlib.Path()
sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1]), str(ROOT / "scripts")]
import text_tasks

import skips
from lib.tasks import draw

HELD_OUT = 0.1  # as in the script


def line(number, file, kind, words, above, about):
    """A line of a data file."""
    pointers = "".join(f" @ {offset:08d} {kind} 0000" for offset in above)
    return (f"{number:08d} {file:02d} {kind} {len(words):02x} {' '.join(f'{word} 0' for word in words)} "
            f"{len(above):03d}{pointers} | {about}  \n")


def is_held_out(word):
    return draw(word) < HELD_OUT


class TextTasks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory(prefix="onebit-text-tasks-")
        cls.addClassCleanup(scratch.cleanup)
        cls.directory = pathlib.Path(scratch.name)
        # 26 upper nouns, one of each class, and 2000 nouns below them. Every other word has a second sense with it.
        nouns = [line(k, 3 + k, "n", [f"upper{k}"], [], f"the Upper-thing {k}") for k in range(26)]
        for k in range(26, 2026):
            example = f'; "this is thing{k // 2} of sense {k}"'
            nouns.append(line(k, 3 + k % 26, "n", [f"thing{k // 2}", f"alias_{k}"], [k % 26], f"gloss {k}{example}"))
        nouns += [line(3000, 5, "n", ["twice"], [], "a gloss of two classes"),
                  line(3001, 6, "n", ["thrice"], [], "a gloss of two classes")]
        (cls.directory / "data.noun").write_text("  1 a licence\n" + "".join(nouns))
        for part, kind, file in (("verb", "v", 30), ("adj", "s", 0), ("adv", "r", 2)):
            (cls.directory / f"data.{part}").write_text(line(1, file, kind, [f"{part}(a)"], [], f"a {part}"))

    def make(self, task, output, *options, expected=0, wordnet=None):
        """Makes a task; returns ({file: lines}, what ended)."""
        output = self.directory / output
        done = subprocess.run([ROOT / "scripts/text_tasks.py", task, "--wordnet", wordnet or self.directory, "--output",
                               output, *options], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, expected, done.stdout + done.stderr)
        return {path.name: path.read_text().splitlines() for path in output.glob("*")}, done

    def sides(self, task, *options):
        """(samples to train on, samples held out, lines to pre-train on), of two calls that make the same."""
        made, done = self.make(task, task, *options)
        self.assertEqual(self.make(task, f"{task}_again", *options)[0], made)
        train, held_out = ([row.split("\t") for row in made[f"{task}_{name}.tsv"]] for name in ("train", "held_out"))
        self.assertIn(f"{task}_held_out.tsv: {len(held_out)} lines, SHA-256 ", done.stdout)
        return train, held_out, made["wordnet_text.txt"]

    def test_noun_classes(self):
        train, held_out, text = self.sides("noun_classes", "--train", "100")
        self.assertEqual(len(train), 100)
        self.assertEqual(len({label for label, _ in train}), 26)
        self.assertNotIn(" a gloss of two classes", [gloss for _, gloss in train + held_out])
        for _, gloss in train + held_out:
            self.assertRegex(gloss, r"^ (gloss \d+|the upper thing \d+)$")  # lower case, a space before each word
        for gloss in (gloss for _, gloss in held_out if gloss.startswith(" gloss")):
            number = int(gloss.split()[1])
            self.assertTrue(is_held_out(f"thing{number // 2}") or is_held_out(f"alias_{number}"), gloss)
        self.assertFalse({gloss for _, gloss in train} & {gloss for _, gloss in held_out})
        held_out_texts = {gloss for _, gloss in held_out}
        self.assertFalse([row for row in text for gloss in held_out_texts if f"{gloss} this" in row or row == gloss])
        self.assertTrue(any(row.startswith(" gloss 30 this is thing15 of sense 30") for row in text)
                        or is_held_out("thing15") or is_held_out("alias_30"))

    def test_hypernyms(self):
        for side in self.sides("hypernyms")[:2]:
            self.assertTrue(side)
            for label, lower, upper in side:
                number = int(lower.split()[1])
                self.assertEqual(label, "hypernym" if upper == f" the upper thing {number % 26}" else "other")
            share = sum(label == "other" for label, _, _ in side) / len(side)
            self.assertTrue(0.4 < share < 0.5, share)  # a few nouns are below the other's hypernym, too

    def test_same_class(self):
        for side in self.sides("same_class")[:2]:
            for label, *glosses in side:
                if " a gloss of two classes" in glosses:
                    continue
                first, second = (int(gloss.split()[-1]) % 26 for gloss in glosses)
                self.assertEqual(label, "same" if first == second else "other")
            share = sum(label == "other" for label, _, _ in side) / len(side)
            self.assertTrue(0.4 < share <= 0.5, share)

    def test_spans(self):
        # Examples are "this is thing7 of sense 14", of the names thing7 and alias_14.
        for side in self.sides("spans")[:2]:
            self.assertTrue(side)
            for label, gloss, example in side:
                number = int(gloss.split()[-1])
                word = f"thing{number // 2}"
                self.assertEqual((label, example), (word, f" this is {word} of sense {number}"))

    def test_forms_of_names(self):
        example = " tried and running he carries a runner to ice creams of an ice cream making"
        found = {name: text_tasks.places(name, example)
                 for name in ("run", "try", "carry", "make", "ice_cream", "an", "")}
        self.assertEqual(found, {"run": {(2, "running")}, "try": {(0, "tried")}, "carry": {(4, "carries")},
                                 "make": {(14, "making")}, "ice_cream": {(8, "ice creams"), (12, "ice cream")},
                                 "an": {(11, "an")}, "": set()})

    def test_a_folder_without_wordnet_is_refused(self):
        _, done = self.make("noun_classes", "none", expected=1, wordnet=self.directory / "absent")
        self.assertIn("wordnet-base", done.stderr)
        self.assertFalse((self.directory / "none").exists())


if __name__ == "__main__":
    skips.main(sys.argv[2:])
