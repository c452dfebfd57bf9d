#!/usr/bin/env python3
"""The pages agree with the repository: their code, their links and the paths that they name. They are short.

Usage: docs_test.py SOURCE_DIRECTORY

- A code block that begins with ```LANGUAGE FILE is an excerpt of FILE.
- Every relative link leads to a file, and to a heading if it names one.
- Every path in code quotes and code blocks exists, so the paper map (docs/reference/papers) names real files.
- Sources, scripts and inputs name pages that exist.
- README is short. Its tables count and its code does not. A page under docs has at most MOST_PAGE_WORDS words.
- The files of docs/develop/reading.md are few and short, and each leads to the next.
- A drawing of docs/develop/figures is small, its text is text, and it has colours for dark pages.
"""

import pathlib
import re
import sys
import xml.etree.ElementTree

# The least number of excerpts of a page, and of paths in the paper map. Pages without any would pass unseen.
LEAST_BLOCKS = {"extending.md": 8, "library.md": 3, "python.md": 2}
LEAST_PATHS = {"onebit_adam.md": 25, "onebit_training.md": 20}
MOST_WORDS = 500  # of README
MOST_PAGE_WORDS = 2500  # of a page under docs, as `wc -w` counts them
LONG_TABLES = {"docs/reference/input.md", "docs/results/convergence/small_runs.md"}  # that programs make
MOST_BYTES = 8000  # of a drawing
MOST_FILES, MOST_LINES = 12, 1600  # from `main` to the sign words

FOLDERS = r"src|inputs|scripts|tests|docs|cmake|packaging|python"
PATH = re.compile(rf"(?:\./)?((?:{FOLDERS})/[\w./-]*\w|[a-z]+/\w+\.(?:hpp|cpp))")
PAGE = re.compile(r"docs/(?!results/)[\w/]+\.md")


def lines_of(text: str) -> list[str]:
    """Lines without the indentation that all of them have."""
    lines = [line.rstrip() for line in text.splitlines()]
    indents = [len(line) - len(line.lstrip()) for line in lines if line]
    return [line[min(indents, default=0):] for line in lines]


def is_excerpt(block: str, file: pathlib.Path) -> bool:
    wanted, lines = lines_of(block), file.read_text(encoding="utf-8").splitlines()
    return any(lines_of("\n".join(lines[at:at + len(wanted)])) == wanted for at in range(len(lines)))


def place(page: pathlib.Path, text: str, position: int) -> str:
    return f"{page}:{text.count(chr(10), 0, position) + 1}"


def anchors(page: pathlib.Path) -> set[str]:
    """The names that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def block_errors(source, page, text):
    """Errors of the excerpts of a page, and how many there are."""
    errors, count = [], 0
    for match in re.finditer(r"^```\w+ (\S+)\n(.*?)^```$", text, re.M | re.S):
        count += 1
        file = source / match[1]
        if not file.is_file():
            errors.append(f"{place(page, text, match.start())}: there is no {match[1]}")
        elif not match[2].strip() or not is_excerpt(match[2], file):
            errors.append(f"{place(page, text, match.start())}: these lines are not in {match[1]}")
    return errors, count


def link_errors(page, text):
    errors = []
    for match in re.finditer(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:", match[1]):
            continue
        path, _, heading = match[1].partition("#")
        target = page.parent / path if path else page
        if not target.exists():
            errors.append(f"{place(page, text, match.start())}: the link {match[1]} leads nowhere")
        elif heading and heading not in anchors(target):
            errors.append(f"{place(page, text, match.start())}: {target.name} has no heading #{heading}")
    return errors


def path_errors(source, page, text):
    """Errors of the paths in code quotes and code blocks, and how many different paths exist."""
    errors, found = [], set()
    for match in re.finditer(r"^```.*?^```$|`[^`\n]+`", text, re.M | re.S):
        for word in re.findall(r"[^\s`'\"(),;=]+", match[0]):
            path = PATH.fullmatch(word.rstrip(".:"))
            if not path:
                continue
            if (source / path[1]).exists() or (source / "src" / path[1]).exists():
                found.add(path[1])
            else:
                errors.append(f"{place(page, text, match.start())}: there is no {path[1]}")
    return errors, len(found)


def mention_errors(source):
    """Pages that sources, scripts, tests and inputs name."""
    errors = []
    files = [path for folder in FOLDERS.split("|") for path in (source / folder).rglob("*")]
    for file in [*files, *source.glob("*.md"), source / "CMakeLists.txt"]:
        if not file.is_file() or file.suffix in {".svg", ".h5", ".csv", ".pyc"}:
            continue
        text = file.read_text(encoding="utf-8", errors="ignore")
        errors += [f"{place(file, text, match.start())}: there is no {match[0]}"
                   for match in PAGE.finditer(text) if not (source / match[0]).is_file()]
    return errors


def words_of(text: str) -> int:
    """Words of a page without its code blocks and link targets. The border of a table's column counts as one."""
    without_code = re.sub(r"(?ms)^```.*?^```$", "", text)
    return len(re.sub(r"\]\([^)]*\)", "]", without_code).split())


def length_errors(source):
    assert words_of("One [two](three.md).\n```\nfour\n```\n| five |\n") == 5
    words = words_of((source / "README.md").read_text(encoding="utf-8"))
    errors = [f"README.md: {words} words; at most {MOST_WORDS} are wanted"] if words > MOST_WORDS else []
    long = {str(page.relative_to(source)): words for page in sorted((source / "docs").rglob("*.md"))
            if (words := len(page.read_text(encoding="utf-8").split())) > MOST_PAGE_WORDS}
    errors += [f"{page}: {words} words; at most {MOST_PAGE_WORDS} are wanted: split it by subject"
               for page, words in long.items() if page not in LONG_TABLES]
    return errors + [f"{page}: LONG_TABLES names it, and it is not long" for page in sorted(LONG_TABLES - long.keys())]


def drawing_errors(source):
    errors = []
    for drawing in sorted((source / "docs/develop/figures").glob("*.svg")):
        text = drawing.read_text(encoding="utf-8")
        tags = {element.tag.rpartition("}")[2] for element in xml.etree.ElementTree.fromstring(text).iter()}
        if len(text.encode()) >= MOST_BYTES:
            errors.append(f"{drawing}: {len(text.encode())} bytes; fewer than {MOST_BYTES} are wanted")
        if "text" not in tags or {"image", "script"} & tags or "prefers-color-scheme: dark" not in text:
            errors.append(f"{drawing}: text, and colours for dark pages, are wanted, and neither images nor scripts")
    return errors


def reading_errors(source):
    """The way from `main` to the sign words: a table of files, each with the name that leads to the next."""
    page = source / "docs/develop/reading.md"
    rows = re.findall(r"^\| `(src/\S+)` \|.*\| (?:`(\S+)`)? ?\|$", page.read_text(encoding="utf-8"), re.M)
    texts = [(source / file).read_text(encoding="utf-8") for file, _ in rows]
    lines = sum(text.count("\n") for text in texts)
    errors = []
    if not 2 <= len(rows) <= MOST_FILES or lines > MOST_LINES:
        errors.append(f"{page}: {len(rows)} files of {lines} lines; an afternoon is {MOST_FILES} and {MOST_LINES}")
    for (file, name), text, later in zip(rows, texts, texts[1:]):
        last = name.split("::")[-1]
        if not last or last not in text or last not in later:
            errors.append(f"{page}: '{name}' does not lead from {file} to the next file")
    return errors


def main() -> None:
    source = pathlib.Path(sys.argv[1])
    errors, blocks, paths = mention_errors(source) + length_errors(source), {}, {}
    errors += drawing_errors(source) + reading_errors(source)
    changelog = source / "CHANGELOG.md"  # names what was, not what is
    for page in sorted([*(source / "docs").rglob("*.md"), *source.glob("*.md")]):
        text = page.read_text(encoding="utf-8")
        of_blocks, blocks[page.name] = block_errors(source, page, text)
        of_paths, paths[page.name] = path_errors(source, page, text)
        errors += of_blocks + (of_paths if page != changelog else [])
        if page.name != "notes.md":  # a part of another page, where its links count
            errors += link_errors(page, text)
    errors += [f"{page}: {counts.get(page, 0)} of {least} {what}"
               for what, counts, wanted in (("blocks", blocks, LEAST_BLOCKS), ("paths", paths, LEAST_PATHS))
               for page, least in wanted.items() if counts.get(page, 0) < least]
    print("\n".join(errors))
    print(f"{sum(blocks.values())} blocks and {sum(paths.values())} paths looked at, {len(errors)} errors")
    sys.exit(bool(errors))


if __name__ == "__main__":
    main()
