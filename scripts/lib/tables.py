"""CSV files, tables for people, and numbers as text."""

import collections
import csv
import math
import pathlib
import re
import statistics
import textwrap


def number(text):
    """The number in a cell; NaN where it is empty or none."""
    try:
        return float(text)
    except (TypeError, ValueError):
        return math.nan


def mean(values):
    values = list(values)
    return sum(values) / len(values) if values else math.nan


def with_unit(count, digits=".3g"):
    """Bytes with a decimal prefix; empty for NaN and infinity."""
    if not math.isfinite(count):
        return ""
    power = min(max(0, int(math.log10(max(count, 1))) // 3), 4)
    return f"{count / 1000 ** power:{digits if power else '.3g'}} {['B', 'kB', 'MB', 'GB', 'TB'][power]}"


def with_range(values, digits=4):
    """The median, followed by the least and the greatest value where these differ as printed."""
    least, middle, most = (f"{value:.{digits}g}" for value in (min(values), statistics.median(values), max(values)))
    return middle if least == most else f"{middle} ({least} – {most})"


def percent(share, digits=0):
    """A share in per cent; empty for NaN and infinity."""
    return f"{100 * share:.{digits}f} %" if math.isfinite(share) else ""


def file_name(text):
    """The text with every character replaced that a file name should not have."""
    return re.sub(r"[^A-Za-z0-9.=+-]+", "_", text)


def markdown(header, rows):
    """A table in Markdown."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def page(parts):
    """The parts as Markdown. Paragraphs are filled to 118 columns; tables, headings, code and figures stay."""
    blocks = "\n\n".join(part.strip("\n") for part in parts if part).split("\n\n")
    return "\n\n".join(block if re.match(r"\||#|```|<!--|- |!", block) else
                       textwrap.fill(block, 118, break_long_words=False, break_on_hyphens=False)
                       for block in blocks) + "\n"


def aligned(header, rows, left=0):
    """A table in plain text; the first `left` columns are aligned left, all others right."""
    rows = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(cell.ljust(width) if place < left else cell.rjust(width)
                               for place, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in rows)


def problem_of(header):
    """What is wrong with the first line of a CSV file that a spreadsheet saved again, in words; "" for nothing."""
    if len(header) == 1 and re.search("[;\t]", header[0]):
        return ("the columns are separated by semicolons or tabs, as a spreadsheet saves them: take the file as it was "
                "written, or save it with commas")
    return "this is not CSV in UTF-8" if any("\ufffd" in name or "\0" in name for name in header) else ""


def read_csv(path):
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        if problem := problem_of(reader.fieldnames or []):
            raise ValueError(f"{path}: {problem}")
        return list(reader)


def read_rows(path):
    """(rows, the file's error in words or ""). A broken file gives the rows before the break."""
    rows, header = [], None
    try:
        with open(path, newline="", encoding="utf-8-sig", errors="replace") as file:
            last_line = ""

            def lines():
                nonlocal last_line
                for last_line in file:
                    yield last_line.replace("\0", "�")

            for cells in csv.reader(lines()):
                if not last_line.endswith(("\n", "\r")):
                    return rows, f"the last row is cut off after {len(rows)} whole ones" if header else "no whole line"
                if header is None:
                    header = cells
                    if problem := problem_of(header):
                        return rows, problem
                elif len(cells) != len(header):
                    return rows, f"row {len(rows) + 1} has {len(cells)} cells, not {len(header)}"
                else:
                    rows.append(dict(zip(header, cells)))
    except (OSError, csv.Error) as error:
        return rows, str(error)
    return rows, "" if rows else "no rows"


def write_csv(path, rows, columns=None):
    """Writes all rows or, on failure, leaves an earlier file as it was. `columns` default to the first row's."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with open(partial, "w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.DictWriter(file, columns or list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    partial.replace(path)


def replace_rows(path, columns, rows):
    """Replaces the rows of this machine and puts them first, because README quotes the first machine. Rows of others
    stay if their commit can be built."""
    kept = [row for row in (read_csv(path) if path.exists() else [])
            if row.get("machine") and row["machine"] != rows[0]["machine"] and not row["git"].endswith("-dirty")]
    write_csv(path, [{column: row.get(column, "") for column in columns} for row in rows + kept], columns)


def rows_by_machine(path):
    """{machine: rows}, without rows that name no machine or no commit."""
    machines = collections.defaultdict(list)
    for row in read_csv(path) if path.exists() else []:
        if row.get("machine") and not row["git"].endswith("-dirty"):
            machines[row["machine"]].append(row)
    return machines
