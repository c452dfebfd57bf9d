#!/usr/bin/env python3
"""Makes the files of a classification task in corpus/, and prints what classical methods reach on it.

TASK is one of
    sections  the section of Debian's archive that a package belongs to, from its one-line description. Reads what
              `apt-cache dumpavail` prints (run `apt-get update` before), or the file that --available names.
    digits    scikit-learn's 1797 images of handwritten digits, 8 x 8 pixels of 17 grey levels. Needs scikit-learn.

and has three files:
    TASK_text.txt      the texts without those held out: for the tokeniser and for pre-training, without labels
    TASK_train.tsv     label<TAB>text
    TASK_held_out.tsv  label<TAB>text

A description is written in lower case and without punctuation, because a small model cannot learn that "Editor" and
"editor" are the same. A space stands before each word, also before the first, so that a tokeniser whose tokens begin
with the space gives a word the same tokens everywhere. TASK_text.txt has packages of all sections.

An image is written as 64 letters, row by row, from a for white to e for black, so that data.tokenizer=characters makes
one token of each pixel. The 17 grey levels are rounded to five, because to a model that has a vector for each token,
neighbouring levels are no more alike than others, and 1400 images are few to learn it from.

A hash decides what is held out: of the source package's name, so that all packages of one source are on one side, or of
the image's number. Each text is written once; the held-out ones are not in the other files. Lines are in the order of
their hashes, because neighbours in the order of names come from one source and repeat each other. The same input gives
the same files. Other package lists give others, so the program prints the number of lines of each file and the start of
its SHA-256.

With scikit-learn it also prints the accuracy of a logistic regression, for sections on TF-IDF, and for digits that of a
support vector machine with a Gaussian kernel.
"""

import argparse
import collections
import pathlib
import re
import subprocess
import sys

from lib import ROOT, program_name
from lib.tasks import draw, write

# Sections that say what a package is for. Those of programming languages and libraries are left out, because names in
# the descriptions would give them away, and so are the catch-alls (utils, misc, devel), which nothing tells apart.
SECTIONS = ("admin", "editors", "fonts", "games", "graphics", "mail", "math", "net", "science", "sound", "text",
            "video", "web", "x11")
GREY_LEVELS = "abcde"


class Sample(collections.namedtuple("Sample", "label origin text")):
    """A text with its label. Samples of one origin are held out together."""


def available(path):
    """The package lists as text."""
    try:
        if path:
            return path.read_text()
        return subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout
    except (OSError, UnicodeDecodeError, subprocess.CalledProcessError) as error:
        sys.exit(f"{program_name()}: no package lists: {error}. Give a file that 'apt-cache dumpavail' wrote with "
                 "--available")


def words(description):
    """The words of a description as they are written; empty where it has none."""
    return "".join(" " + word for word in re.findall(r"\w+", description.lower()))


def packages(text):
    """A sample of every description, in the order of the packages' names."""
    found = {}
    for stanza in re.split(r"\n\n+", text):
        fields = dict(re.findall(r"^(Package|Source|Section|Description): *(\S.*?)\s*$", stanza, re.MULTILINE))
        if {"Package", "Section", "Description"} <= fields.keys():
            source = fields.get("Source", fields["Package"]).split()[0]
            description = words(fields["Description"])
            found.setdefault((fields["Package"], description),
                             Sample(fields["Section"].rpartition("/")[2], source, description))
    once = {}
    for name, description in sorted(found):
        if description:
            once.setdefault(description, found[name, description])
    return list(once.values())


def images():
    """A sample of every image."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        sys.exit(f"{program_name()}: the digits are scikit-learn's, which {sys.executable} does not have. Install it "
                 "(pip install scikit-learn; Debian: python3-sklearn). Nothing is written")
    digits = load_digits()
    return [Sample(str(label), str(number), "".join(GREY_LEVELS[round(level / 4)] for level in image))
            for number, (image, label) in enumerate(zip(digits.data, digits.target))]


def write_lines(path, lines):
    write(path, "".join(line + "\n" for line in lines).encode(), f"{len(lines)} lines")


def section_methods():
    """(name, method) of each classical method; ImportError without scikit-learn."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    yield ("TF-IDF and a logistic regression",
           make_pipeline(TfidfVectorizer(sublinear_tf=True), LogisticRegression(C=10, max_iter=300)))


def digit_methods():
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer
    from sklearn.svm import SVC

    def pixels(texts):
        return [[GREY_LEVELS.index(letter) / 4 for letter in text] for text in texts]

    for name, method in (("a logistic regression", LogisticRegression(max_iter=1000)),
                         ("a support vector machine with a Gaussian kernel", SVC(C=10))):
        yield name, make_pipeline(FunctionTransformer(pixels), method)


def print_baselines(methods, train, held_out):
    label, count = collections.Counter(sample.label for sample in held_out).most_common(1)[0]
    print(f"to answer with '{label}' always: {100 * count / len(held_out):.1f} % of the held-out ones")
    try:
        for name, method in methods():
            method.fit([sample.text for sample in train], [sample.label for sample in train])
            share = method.score([sample.text for sample in held_out], [sample.label for sample in held_out])
            print(f"{name}: {100 * share:.1f} %")
    except ImportError:
        print("no scikit-learn: no logistic regression")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("sections", "digits"), metavar="TASK")
    parser.add_argument("--available", type=pathlib.Path, metavar="FILE", help="what apt-cache dumpavail printed")
    parser.add_argument("--directory", type=pathlib.Path, default=ROOT / "corpus", help="default: %(default)s")
    parser.add_argument("--share", type=float, default=0.2, help="of the origins to hold out; default: %(default)s")
    arguments = parser.parse_args()

    samples, methods, classes = ((packages(available(arguments.available)), section_methods, SECTIONS)
                                 if arguments.task == "sections" else
                                 (images(), digit_methods, tuple(map(str, range(10)))))
    text = sorted((sample.text for sample in samples if draw(sample.origin) >= arguments.share), key=draw)

    def labelled(held_out):
        chosen = [sample for sample in samples
                  if sample.label in classes and (draw(sample.origin) < arguments.share) == held_out]
        return sorted(chosen, key=lambda sample: draw(sample.text))

    train, held_out = labelled(False), labelled(True)
    if missing := set(classes) - {s.label for s in train} | set(classes) - {s.label for s in held_out}:
        remedy = "are the package lists whole (apt-get update)?" if arguments.task == "sections" else "change --share."
        sys.exit(f"{program_name()}: no samples of {', '.join(sorted(missing))}: {remedy} Nothing is written")
    arguments.directory.mkdir(parents=True, exist_ok=True)
    write_lines(arguments.directory / f"{arguments.task}_text.txt", text)
    for name, chosen in (("train", train), ("held_out", held_out)):
        write_lines(arguments.directory / f"{arguments.task}_{name}.tsv",
                    [f"{sample.label}\t{sample.text}" for sample in chosen])
    print_baselines(methods, train, held_out)


if __name__ == "__main__":
    main()
