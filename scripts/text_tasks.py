#!/usr/bin/env python3
"""Makes the files of a text task in corpus/ from WordNet, and prints what a bag of words reaches on it.

TASK is one of
    noun_classes  which of WordNet's 26 classes of nouns a gloss, the definition of a sense, belongs to
    hypernyms     two glosses of nouns: whether the second sense is the first one's hypernym, as "animal" is of "dog"
    same_class    two glosses of nouns: whether their senses belong to the same class
    spans         a gloss and an example of its sense: the word of the example that has this sense

and has three files:
    wordnet_text.txt   for the tokeniser and for pre-training, the same of every task: a line of each sense's gloss and
                       examples, without those held out
    TASK_train.tsv     label<TAB>text, or label<TAB>text<TAB>second text; the label of spans is the word, or the words
    TASK_held_out.tsv

Reads the files data.noun, data.verb, data.adj and data.adv of WordNet 3.0 (Debian's package wordnet-base). Their lines
are senses, sets of words that mean the same. Texts are written in lower case and without punctuation, because a small
model cannot learn that "Plant" and "plant" are the same. A space stands before each word, also before the first, so
that a tokeniser whose tokens begin with the space gives a word the same tokens everywhere.

A hash of a word decides whether it is held out, and all senses of a held-out word are. So no word has senses on both
sides. Of a pair, the first text's sense decides; a pair of which only the second one is held out is left out. A sample
that occurs several times is taken once. One that occurs with several labels, or on both sides, is left out. A text that
also belongs to a held-out sense is not in wordnet_text.txt. Lines are in the order of their hashes. The same WordNet
gives the same files, and the program prints the start of the SHA-256 of each.

Few samples are taken to train on (--train), because with many a model learns a task without pre-training.

It also prints how often a guess is right: the most frequent label, or the word that WordNet has least often. With
--baselines it prints the accuracy of a logistic regression on TF-IDF, too, but of spans. That needs NumPy and SciPy.
"""

import argparse
import collections
import math
import pathlib
import re
import sys

from lib import ROOT, program_name
from lib.tasks import draw, write

PARTS_OF_SPEECH = ("noun", "verb", "adj", "adv")
HELD_OUT = 0.1  # of the words
# The lexicographer files of nouns, of which the first is number 3 (lexnames(5WN)).
FIRST_CLASS = 3
CLASSES = ("top", "act", "animal", "artifact", "attribute", "body", "cognition", "communication", "event", "feeling",
           "food", "group", "location", "motive", "object", "person", "phenomenon", "plant", "possession", "process",
           "quantity", "relation", "shape", "state", "substance", "time")
PENALTY = 0.05  # of the logistic regression: half of it times the squared norm of the weights is added to the sum


class Sense(collections.namedtuple("Sense", "words part file gloss examples above")):
    """A line of WordNet: its words, part of speech and file, its texts, and the keys of its hypernyms."""

    def is_held_out(self):
        return any(draw(word) < HELD_OUT for word in self.words)

    def texts(self):
        return [self.gloss, *self.examples]


class Sample(collections.namedtuple("Sample", "label texts is_held_out")):
    """One text or two, with their label."""


def stop(message, remedy):
    sys.exit(f"{program_name()}: {message}\n  remedy: {remedy}. Nothing is written")


def words(text):
    """The words of a text as they are written; empty where it has none."""
    return "".join(" " + word for word in re.findall(r"\w+", text.lower()))


def sense(part, line):
    """(key, sense) of a line of a data file (wndb(5WN)):

    offset file type COUNT word id … COUNT symbol offset part numbers … | gloss; "example"; …
    """
    head, _, about = line.partition(" | ")
    fields = head.split()
    end = 4 + 2 * int(fields[3], 16)  # of the words, whose count is hexadecimal
    names = [re.sub(r"\(.*\)$", "", name).lower() for name in fields[4:end:2]]  # without adjectives' markers
    pointers = [fields[end + 1 + 4 * k:end + 5 + 4 * k] for k in range(int(fields[end]))]
    above = [(offset, kind) for symbol, offset, kind, _ in pointers if symbol in ("@", "@i")]
    examples = [text for text in map(words, re.findall(r'"([^"]*)"', about)) if text]
    return (fields[0], fields[2]), Sense(names, part, int(fields[1]), words(about.partition('"')[0]), examples, above)


def wordnet(folder):
    """All senses by their key."""
    senses = {}
    for part in PARTS_OF_SPEECH:
        path = folder / f"data.{part}"
        try:
            # Lines that begin with spaces are the licence.
            lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith(" ")]
            senses.update(sense(part, line) for line in lines)
        except (OSError, ValueError, IndexError) as error:
            stop(f"{path} is no file of WordNet: {error}",
                 "install it (Debian: wordnet-base), or name its folder with --wordnet")
    return senses


def noun_classes(senses):
    for one in senses.values():
        if one.part == "noun" and one.gloss:
            yield Sample(CLASSES[one.file - FIRST_CLASS], (one.gloss,), one.is_held_out())


def nouns_of(senses, is_held_out):
    """The nouns of one side that have a gloss, in the order of their glosses' hashes."""
    return sorted((one for one in senses.values() if one.part == "noun" and one.gloss
                   and one.is_held_out() == is_held_out), key=lambda one: draw(one.gloss))


def pairs(label, nouns, partners, are_related):
    """A pair of each noun that has a partner. Every second noun gets the partner of the noun before it.

    So both labels have the same second texts, and nothing but the pair tells them apart. Where the other's partner is
    related to this noun too, the noun is left out.
    """
    for place, one in enumerate(nouns):
        is_pair = place % 2 == 0
        partner = partners[place if is_pair else place - 1]
        if partner and (is_pair or not are_related(one, partner)):
            yield Sample(label if is_pair else "other", (one.gloss, partner.gloss), one.is_held_out())


def hypernyms(senses):
    """The partner is the noun's first hypernym."""
    def is_above(one, upper):
        found, todo = set(), list(one.above)
        while todo:
            key = todo.pop()
            if key not in found:
                found.add(key)
                todo += senses[key].above
        return any(senses[key] is upper for key in found)

    for side in (False, True):
        lower = [one for one in nouns_of(senses, side) if one.above]
        upper = [senses[one.above[0]] for one in lower]
        known = [one if one.gloss and (side or not one.is_held_out()) else None for one in upper]
        yield from pairs("hypernym", lower, known, is_above)


def same_class(senses):
    """The partner is the next noun of the class."""
    for side in (False, True):
        nouns, partners, following = nouns_of(senses, side), [], {}
        for one in reversed(nouns):
            partners.append(following.get(one.file))
            following[one.file] = one
        yield from pairs("same", nouns, partners[::-1], lambda one, other: one.file == other.file)


def inflected(word):
    """A pattern of a word and its regular forms in -s, -ed and -ing."""
    stem, last = re.escape(word[:-1]), word[-1]
    if last == "e":
        return f"{stem}(e|es|ed|ing)"
    if last == "y":
        return f"{stem}(y|ys|ies|yed|ied|ying)"
    return f"{stem}{last}(|s|es|{last}?(ed|ing))"


def places(name, example):
    """Where an example has a name of a sense, whose last word may be inflected: (number of the word, as it stands)."""
    wanted, found = words(name.replace("_", " ")).split(), example.split()
    if not wanted:
        return set()
    pattern = re.compile(" ".join([*map(re.escape, wanted[:-1]), inflected(wanted[-1])]))
    heads = ((begin, " ".join(found[begin:begin + len(wanted)])) for begin in range(len(found)))
    return {(begin, head) for begin, head in heads if pattern.fullmatch(head)}


def spans(senses):
    """Examples that have one form of one name of their sense."""
    for one in senses.values():
        for example in one.examples:
            found = set().union(*(places(name, example) for name in one.words))
            if one.gloss and len(found) == 1:
                yield Sample(found.pop()[1], (one.gloss, example), one.is_held_out())


# What makes the samples, and how many of them are taken to train on.
TASKS = {"noun_classes": (noun_classes, 500), "hypernyms": (hypernyms, 8000), "same_class": (same_class, 8000),
         "spans": (spans, 8000)}


def distinct(samples):
    """Each sample once, in the order of the hashes, without those of several labels or on both sides."""
    same = collections.defaultdict(set)
    for sample in samples:
        same[sample.texts].add(sample)
    once = [found.pop() for found in same.values() if len(found) == 1]
    print(f"{len(once)} samples; left out: {len(same) - len(once)} with several labels or on both sides")
    return sorted(once, key=lambda sample: draw("\t".join(sample.texts)))


def chosen(samples, count):
    """The first samples, so many, with the first one of each label among them."""
    first = {sample.label: sample for sample in reversed(samples)}.values()
    others = [sample for sample in samples if sample not in first]
    taken = {*first, *others[:max(count - len(first), 0)]}
    return [sample for sample in samples if sample in taken]


def text_lines(senses):
    """The lines to pre-train on."""
    secret = {text for one in senses.values() if one.is_held_out() for text in one.texts()}
    lines = {"".join(text for text in one.texts() if text not in secret)
             for one in senses.values() if not one.is_held_out()}
    return sorted(lines - {""}, key=draw)


def write_lines(path, lines):
    write(path, "".join(line + "\n" for line in lines).encode(), f"{len(lines)} lines")


def features(samples):
    """The words of a sample; those of a pair with their side, and again those that both texts have."""
    for sample in samples:
        sides = [text.split() for text in sample.texts]
        both = set(sides[0]) & set(sides[1]) if len(sides) > 1 else set()
        yield collections.Counter([f"{side} {word}" for side, text in enumerate(sides) for word in text]
                                  + [f"both {word}" for word in both] + ["both"] * len(both))


def logistic_regression(train, held_out):
    """The share of the held-out samples that a logistic regression on TF-IDF, fitted to the others, has right."""
    import numpy
    import scipy.optimize
    import scipy.sparse
    counts = list(features(train))
    frequency = collections.Counter(name for count in counts for name in count)
    columns = {name: column for column, name in enumerate(sorted(frequency))}
    weight = {name: 1 + math.log((1 + len(train)) / (1 + number)) for name, number in frequency.items()}

    def matrix(rows):
        """(samples, features), each row of length 1."""
        entries = [(r, columns[name], (1 + math.log(number)) * weight[name])
                   for r, row in enumerate(rows) for name, number in row.items() if name in columns]
        r, c, values = map(numpy.array, zip(*entries))
        lengths = numpy.sqrt(numpy.bincount(r, values**2, minlength=len(rows)))
        return scipy.sparse.csr_matrix((values / lengths[r], (r, c)), (len(rows), len(columns)))

    labels = sorted({sample.label for sample in train})
    x, right = matrix(counts), numpy.array([labels.index(sample.label) for sample in train])
    one_hot = numpy.eye(len(labels))[right]

    def objective(flat):
        """Cross entropy of the softmax plus the penalty, and the gradient."""
        w = flat.reshape(len(columns), len(labels))
        scores = x @ w
        scores -= scores.max(axis=1, keepdims=True)
        log_shares = scores - numpy.log(numpy.exp(scores).sum(axis=1, keepdims=True))
        gradient = x.T @ (numpy.exp(log_shares) - one_hot) + 2 * PENALTY * w
        return PENALTY * (flat @ flat) - (log_shares * one_hot).sum(), gradient.ravel()

    fitted = scipy.optimize.minimize(objective, numpy.zeros(len(columns) * len(labels)), jac=True, method="L-BFGS-B",
                                     options={"maxiter": 100}).x.reshape(len(columns), len(labels))
    answers = (matrix(list(features(held_out))) @ fitted).argmax(axis=1)
    return sum(labels[answer] == sample.label for answer, sample in zip(answers, held_out)) / len(held_out)


def rarest_word(senses, samples):
    """The share of the samples whose label is the word of the last text that all texts have least often."""
    frequency = collections.Counter(word for one in senses.values() for text in one.texts() for word in text.split())
    return sum(min(sample.texts[-1].split(), key=frequency.get) == sample.label for sample in samples) / len(samples)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS, metavar="TASK")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "corpus", metavar="DIR",
                        help="default: %(default)s")
    parser.add_argument("--wordnet", type=pathlib.Path, default=pathlib.Path("/usr/share/wordnet"), metavar="DIR",
                        help="default: %(default)s")
    parser.add_argument("--train", type=int, metavar="NUMBER", help="samples to train on; default: the task's own")
    parser.add_argument("--baselines", action="store_true", help="print what a logistic regression reaches")
    arguments = parser.parse_args()

    senses = wordnet(arguments.wordnet)
    make, count = TASKS[arguments.task]
    samples = distinct(make(senses))
    train, held_out = ([sample for sample in samples if sample.is_held_out == wanted] for wanted in (False, True))
    count = arguments.train or count
    train = train[:count] if make is spans else chosen(train, count)
    missing = set() if make is spans else {sample.label for sample in held_out} ^ {sample.label for sample in train}
    if missing:
        stop(f"on one side there is no sample of {', '.join(sorted(missing))}", "give a whole WordNet")
    arguments.output.mkdir(parents=True, exist_ok=True)
    write_lines(arguments.output / "wordnet_text.txt", text_lines(senses))
    for name, taken in (("train", train), ("held_out", held_out)):
        write_lines(arguments.output / f"{arguments.task}_{name}.tsv",
                    ["\t".join((sample.label, *sample.texts)) for sample in taken])
    if make is spans:
        print(f"to answer with the rarest word: {100 * rarest_word(senses, held_out):.1f} % of the held-out ones")
        return
    label, number = collections.Counter(sample.label for sample in held_out).most_common(1)[0]
    print(f"to answer with '{label}' always: {100 * number / len(held_out):.1f} % of the held-out ones")
    if arguments.baselines:
        print(f"TF-IDF and a logistic regression: {100 * logistic_regression(train, held_out):.1f} %")


if __name__ == "__main__":
    main()
