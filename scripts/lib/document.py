"""A page with headings, tables, figures and links, written as HTML and as Markdown: for report.py."""

import base64
import collections
import hashlib
import html
import os
import re
import urllib.parse


class Link(collections.namedtuple("Link", "text target note")):
    """Text that leads to a file, or to an anchor of the page (#name)."""


class Figure(collections.namedtuple("Figure", "name svg caption")):
    pass


def is_text(cell):
    text = cell.text if isinstance(cell, Link) else cell
    return isinstance(text, list) or not re.match(r"$|[-+]?[\d.]", text)


class Table:
    """Cells are texts, links, or lists of links; `anchors` are names of rows. It leaves out empty columns."""

    def __init__(self, header, rows, anchors=None):
        kept = [i for i in range(len(header)) if not rows or any(row[i] for row in rows)]
        self.header, self.rows = [header[i] for i in kept], [[row[i] for i in kept] for row in rows]
        self.anchors = anchors or [""] * len(rows)
        # Columns of words start at the left, columns of numbers end at the right.
        self.is_text = [place == 0 or any(is_text(row[place]) for row in self.rows) for place in range(len(kept))]


class Heading(collections.namedtuple("Heading", "level text")):
    pass


def visible(text):
    """The text without control characters and bytes that are no text."""
    text = str(text).encode("utf-8", "replace").decode()
    return "".join(c if c.isprintable() else "�" for c in text)


def url(target):
    return target if target.startswith("#") else urllib.parse.quote(os.fsencode(target))


CSS = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; max-width: 76rem; margin: 2rem auto; padding: 0 1.5rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.35rem; border-bottom: 2px solid #0072B2; padding-bottom: .2rem; margin: 2.6rem 0 .8rem; }
h3 { font-size: 1.05rem; margin: 1.8rem 0 .5rem; }
h1, h2, h3, p, figcaption { overflow-wrap: anywhere; } p { max-width: 60rem; margin: .5rem 0; }
a { color: #00588a; text-decoration: none; } a:hover { text-decoration: underline; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; margin: .6rem 0; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #e2e2e2; }
td { white-space: nowrap; }
th { vertical-align: bottom; background: #f2f5f8; border-bottom: 1px solid #9ab; }
.text { text-align: left; } td.text { white-space: normal; overflow-wrap: break-word; max-width: 34rem; }
td:first-child { min-width: 13rem; overflow-wrap: anywhere; }
tbody tr:hover { background: #f7f9fb; } tr:target { background: #fff3cd; }
figure { margin: 1rem 0; } figure img { max-width: 100%; height: auto; }
figcaption { font-size: .85rem; color: #555; max-width: 60rem; }
th { cursor: pointer; }
th[aria-sort=ascending]::after { content: " ▲"; }
th[aria-sort=descending]::after { content: " ▼"; }
@media (max-width: 40rem) {
  body { margin: 1rem auto; padding: 0 .8rem; } td:first-child { min-width: 9rem; }
  /* A figure keeps the size at which it can be read, and is moved sideways. */
  figure { overflow-x: auto; } figure img { max-width: none; width: 44rem; }
}
@page { size: A4 landscape; margin: 12mm; }
@media print {
  body { font-size: 9.5pt; margin: 0; padding: 0; max-width: none; } a { color: inherit; }
  h2, h3 { break-after: avoid; } figure, tr { break-inside: avoid; } thead { display: table-header-group; }
  .wide { overflow: visible; } table { font-size: 7.2pt; max-width: 100%; } th, td { padding: .12rem .35rem; }
  td, td:first-child { white-space: normal; min-width: 0; }
  figure img { max-width: 100%; max-height: 92mm; }
}
"""


# A click on the head of a column sorts its table, by the numbers and their units where there are some.
SCRIPT = """
const units = {kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12};
function key(row, place) {
  const text = row.cells[place].textContent.trim(), found = /^[-+]?[\\d.,]+(e[-+]?\\d+)?/i.exec(text);
  if (!found) return text === "" ? Infinity : text;
  return Number(found[0].replace(/,/g, "")) * (units[(text.split(/\\s/)[1] || "").slice(0, 2)] || 1);
}
function sort(head) {
  const place = head.cellIndex, up = head.getAttribute("aria-sort") !== "ascending" ? 1 : -1;
  const body = head.closest("table").tBodies[0];
  const compare = (a, b) => typeof a === typeof b && typeof a === "number" ? a - b
    : String(a).localeCompare(String(b), undefined, {numeric: true});
  for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up > 0 ? "ascending" : "descending");
  body.append(...[...body.rows].sort((a, b) => up * compare(key(a, place), key(b, place))));
}
for (const head of document.querySelectorAll("th")) {
  head.tabIndex = 0;
  head.addEventListener("click", () => sort(head));
  head.addEventListener("keydown", event => { if (event.key === "Enter") sort(head); });
}
"""


def script_hash():
    return base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()


def html_cell(cell):
    if isinstance(cell, list):
        return "&nbsp;".join(map(html_cell, cell))
    if isinstance(cell, Link):
        title = f' title="{html.escape(visible(cell.note))}"' if cell.note else ""
        return f'<a href="{html.escape(url(cell.target))}"{title}>{html.escape(visible(cell.text))}</a>'
    return html.escape(visible(cell))


def to_html(title, blocks):
    parts = ["<!DOCTYPE html>", '<html lang="en"><head><meta charset="utf-8">',
             # Whatever the files held that were read, the page runs its own script alone and loads nothing.
             '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
             f'style-src \'unsafe-inline\'; script-src \'sha256-{script_hash()}\'">',
             '<meta name="viewport" content="width=device-width, initial-scale=1">',
             f"<title>{html.escape(visible(title))}</title><style>{CSS}</style></head><body>",
             f"<h1>{html.escape(visible(title))}</h1>"]
    for block in blocks:
        if isinstance(block, Heading):
            parts.append(f"<h{block.level}>{html.escape(visible(block.text))}</h{block.level}>")
        elif isinstance(block, Figure):
            data = base64.b64encode(block.svg).decode()
            caption = html.escape(visible(block.caption))
            parts.append(f'<figure><img alt="{caption}" src="data:image/svg+xml;base64,{data}">'
                         f"<figcaption>{caption}</figcaption></figure>")
        elif isinstance(block, Table):
            kinds = [" class=text" if text else "" for text in block.is_text]
            parts.append('<div class="wide"><table><thead><tr>' + "".join(
                f"<th{kind}>{html_cell(cell)}</th>" for kind, cell in zip(kinds, block.header))
                + "</tr></thead><tbody>")
            for anchor, row in zip(block.anchors, block.rows):
                parts.append((f'<tr id="{anchor}">' if anchor else "<tr>") + "".join(
                    f"<td{kind}>{html_cell(cell)}</td>" for kind, cell in zip(kinds, row)) + "</tr>")
            parts.append("</tbody></table></div>")
        else:
            parts.append(f"<p>{html_cell(block)}</p>")
    return "\n".join([*parts, f"<script>{SCRIPT}</script></body></html>"]) + "\n"


def markdown_text(text):
    return re.sub(r"([\\`*_{}\[\]<>|#&~!$])", r"\\\1", visible(text))


def markdown_cell(cell):
    if isinstance(cell, list):
        return " ".join(map(markdown_cell, cell))
    if isinstance(cell, Link):
        # Rows of a Markdown table have no anchors, headings do.
        target = "#all-runs" if cell.target.startswith("#") else url(cell.target)
        return f"[{markdown_text(cell.text)}](<{target}>)"
    return markdown_text(cell)


def to_markdown(title, blocks, figures):
    parts = [f"# {markdown_text(title)}"]
    for block in blocks:
        if isinstance(block, Heading):
            parts.append("#" * block.level + " " + markdown_text(block.text))
        elif isinstance(block, Figure):
            parts.append(f"![{markdown_text(block.caption)}](<{url(figures)}/{block.name}.svg>)\n\n"
                         + markdown_text(block.caption))
        elif isinstance(block, Table):
            lines = [[markdown_cell(cell) for cell in row] for row in [block.header, *block.rows]]
            lines.insert(1, ["---" if text else "---:" for text in block.is_text])
            parts.append("\n".join("| " + " | ".join(line) + " |" for line in lines))
        else:
            parts.append(markdown_cell(block))
    return "\n\n".join(parts) + "\n"
