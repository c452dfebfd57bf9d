#!/usr/bin/env python3
"""Makes a classification task of the King James Bible in Debian's package bible-kjv: to which part of the canon does a
verse belong?

Writes into corpus/:
    verses_text.txt        all chapters but the held-out ones, one verse a line: for pre-training, without labels
    verses_train.tsv       label<TAB>verse, from these chapters
    verses_held_out.tsv    label<TAB>verse, from the held-out chapters

A chapter is held out or not as a whole, by the hash of its name, so that neighbouring verses are on one side; a verse
whose words also stand in a held-out chapter is left out of the two other files. The verses of either .tsv file are
those with the least hashes, so they are spread over all books and in no order.
"""

import argparse
import hashlib
import itertools
import pathlib
import re
import subprocess
import sys

# The traditional parts of the canon, by their last books.
PARTS = {"law": "Deuteronomy", "history": "Esther", "poetry": "Song of Solomon", "prophets": "Malachi",
         "gospels": "Acts", "letters": "Revelation"}
VERSES = 31102


def draw(text):
    """A number in [0, 1) that is the same on every machine."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48


def read_bible():
    """[(label, chapter, verse)] of all verses, in order."""
    try:
        text = subprocess.run(["bible", "-l9999", "gen1:1-rev22:21"], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"verses: the program 'bible' of Debian's bible-kjv does not run: {error}")
    parts, verses, chapter = iter(PARTS.items()), [], ""
    label, last_book = next(parts)
    for line in text.splitlines():
        if verse := re.fullmatch(r"  \d+ (.*\S)\s*", line):
            verses.append((label, chapter, verse[1]))
        elif heading := re.fullmatch(r"(\S.*) \d+", line):
            # A part ends with its last book's last chapter.
            if chapter.rsplit(" ", 1)[0] == last_book != heading[1]:
                label, last_book = next(parts)
            chapter = line
    if len(verses) != VERSES:
        sys.exit(f"verses: the Bible has {VERSES} verses, 'bible' printed {len(verses)}: nothing written")
    return verses


def write(path, lines):
    partial = path.with_name(path.name + ".partial")
    partial.write_text("".join(line + "\n" for line in lines))
    partial.replace(path)
    print(f"{path}: {len(lines)} lines")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("--directory", type=pathlib.Path, default=root / "corpus", help="default: %(default)s")
    parser.add_argument("--train", type=int, default=512, metavar="N", help="labelled verses; default: %(default)s")
    parser.add_argument("--held-out", type=int, default=2048, metavar="N", help="default: %(default)s")
    parser.add_argument("--share", type=float, default=0.2, help="of the chapters to hold out; default: %(default)s")
    arguments = parser.parse_args()

    verses = read_bible()
    held_out = [verse for verse in verses if draw(verse[1]) < arguments.share]
    held_out_words = {text for _, _, text in held_out}
    seen = [verse for verse in verses if draw(verse[1]) >= arguments.share and verse[2] not in held_out_words]

    def chosen(some, count):
        if count > len(some):
            sys.exit(f"verses: {count} verses are wanted, and there are {len(some)}")
        order = sorted(dict((text, (label, text)) for label, _, text in some).values(), key=lambda pair: draw(pair[1]))
        return [f"{label}\t{text}" for label, text in order[:count]]

    arguments.directory.mkdir(parents=True, exist_ok=True)
    text = []
    for _, chapter in itertools.groupby(seen, key=lambda verse: verse[1]):
        text += ["", *(verse for _, _, verse in chapter)]
    write(arguments.directory / "verses_text.txt", text[1:])
    write(arguments.directory / "verses_train.tsv", chosen(seen, arguments.train))
    write(arguments.directory / "verses_held_out.tsv", chosen(held_out, arguments.held_out))


if __name__ == "__main__":
    main()
