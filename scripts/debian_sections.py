#!/usr/bin/env python3
"""Makes a classification task of Debian's package lists: the section of a package, from its one-line description.

Reads what `apt-cache dumpavail` prints (run `apt-get update` before), or the file that --available names, and writes
into corpus/:
    sections_text.txt      descriptions of packages of all sections, held-out ones left out: for the tokeniser and for
                           pre-training, without labels
    sections_train.tsv     section<TAB>description
    sections_held_out.tsv  section<TAB>description, from the held-out source packages

Descriptions are written in lower case and without punctuation, because a small model cannot learn that "Editor" and
"editor" are the same. A space stands before each word, also before the first, so that a tokeniser whose tokens begin
with the space gives a word the same tokens everywhere.

The hash of a source package's name decides whether its packages are held out, so that all packages of one source are on
one side. Each description is written once; the held-out ones are not in the other files. Lines are in the order of
their hashes, because neighbours in the order of names come from one source and repeat each other. The same package
lists give the same files. Other lists give others, so the program prints the number of lines of each file and the start
of its SHA-256.

With scikit-learn it also prints the accuracy of TF-IDF and a logistic regression.
"""

import argparse
import collections
import hashlib
import pathlib
import re
import subprocess
import sys

from lib import ROOT

# Sections that say what a package is for. Those of programming languages and libraries are left out, because names in
# the descriptions would give them away, and so are the catch-alls (utils, misc, devel), which nothing tells apart.
SECTIONS = ("admin", "editors", "fonts", "games", "graphics", "mail", "math", "net", "science", "sound", "text",
            "video", "web", "x11")


def draw(text):
    """A number in [0, 1) from the text's hash, the same on every machine."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48


def available(path):
    """The package lists as text."""
    try:
        if path:
            return path.read_text()
        return subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout
    except (OSError, UnicodeDecodeError, subprocess.CalledProcessError) as error:
        sys.exit(f"debian_sections: no package lists: {error}. Give a file that 'apt-cache dumpavail' wrote with "
                 "--available")


def words(description):
    """The words of a description as they are written; empty where it has none."""
    return "".join(" " + word for word in re.findall(r"\w+", description.lower()))


def packages(text):
    """(section, source package, words) of every description, in the order of the packages' names."""
    found = {}
    for stanza in re.split(r"\n\n+", text):
        fields = dict(re.findall(r"^(Package|Source|Section|Description): *(\S.*?)\s*$", stanza, re.MULTILINE))
        if {"Package", "Section", "Description"} <= fields.keys():
            source = fields.get("Source", fields["Package"]).split()[0]
            description = words(fields["Description"])
            found.setdefault((fields["Package"], description),
                             (fields["Section"].rpartition("/")[2], source, description))
    once = {}
    for name, description in sorted(found):
        if description:
            once.setdefault(description, found[name, description])
    return list(once.values())


def write(path, lines):
    content = "".join(line + "\n" for line in lines).encode()
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    partial.replace(path)
    print(f"{path}: {len(lines)} lines, SHA-256 {hashlib.sha256(content).hexdigest()[:12]}")


def logistic_regression(train, held_out):
    """The accuracy of TF-IDF and a logistic regression on the held-out descriptions; None without scikit-learn."""
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
    except ImportError:
        return None
    weights = TfidfVectorizer(sublinear_tf=True)
    model = LogisticRegression(C=10, max_iter=300)
    model.fit(weights.fit_transform([text for _, text in train]), [label for label, _ in train])
    return model.score(weights.transform([text for _, text in held_out]), [label for label, _ in held_out])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--available", type=pathlib.Path, metavar="FILE", help="what apt-cache dumpavail printed")
    parser.add_argument("--directory", type=pathlib.Path, default=ROOT / "corpus", help="default: %(default)s")
    parser.add_argument("--share", type=float, default=0.2, help="of the sources to hold out; default: %(default)s")
    arguments = parser.parse_args()

    everything = packages(available(arguments.available))
    text = sorted((description for _, source, description in everything if draw(source) >= arguments.share), key=draw)

    def labelled(held_out):
        chosen = [(section, description) for section, source, description in everything
                  if section in SECTIONS and (draw(source) < arguments.share) == held_out]
        return sorted(chosen, key=lambda pair: draw(pair[1]))

    train, validation = labelled(False), labelled(True)
    if missing := set(SECTIONS) - {label for label, _ in train} | set(SECTIONS) - {label for label, _ in validation}:
        sys.exit(f"debian_sections: no packages of {', '.join(sorted(missing))}: are the package lists whole (apt-get "
                 "update)? Nothing is written")
    arguments.directory.mkdir(parents=True, exist_ok=True)
    write(arguments.directory / "sections_text.txt", text)
    for name, pairs in (("train", train), ("held_out", validation)):
        write(arguments.directory / f"sections_{name}.tsv", [f"{label}\t{text}" for label, text in pairs])

    section, count = collections.Counter(label for label, _ in validation).most_common(1)[0]
    print(f"to answer with '{section}' always: {100 * count / len(validation):.1f} % of the held-out ones")
    share = logistic_regression(train, validation)
    print("no scikit-learn: no logistic regression" if share is None else
          f"TF-IDF and a logistic regression: {100 * share:.1f} %")


if __name__ == "__main__":
    main()
