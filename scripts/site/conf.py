"""Sphinx's configuration of the documentation's site; scripts/docs.sh runs it.

The pages are written to be read on a forge. What a site needs besides is added while they are read: the order of the
pages, which is that of the links, and the declarations of HEADERS on the library's page.
"""

import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADERS = ["src/comm/library/compressed_allreduce.hpp", "src/comm/library/onebit.h"]  # what is installed
# Breathe's names of what a header declares for its users.
SECTIONS = ("briefdescription detaileddescription innernamespace innerclass public-type public-func public-static-func "
            "public-attrib define enum typedef func")
FRONT, LIBRARY = "docs/index", "docs/reference/library"

project = "OneBit"
author = copyright = "The OneBit authors"
release = re.search(r"(?m)^version: (\S+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"))[1]

extensions = ["myst_parser", "breathe"]
root_doc = FRONT
include_patterns = ["*.md", "docs/**.md", "packaging/*.md"]
exclude_patterns = ["docs/results/performance/notes.md",  # a part of another page
                    ".*", "build", "corpus", "results"]  # large, and without pages
myst_heading_anchors = 6
highlight_language = "text"
smartquotes = False
breathe_default_project = project
breathe_show_include = False  # it lacks onebit/

html_theme = "alabaster"
html_theme_options = {"description": "Training with one bit per parameter", "fixed_sidebar": True,
                      "font_family": "system-ui, sans-serif", "head_font_family": "system-ui, sans-serif",
                      "page_width": "1120px", "sidebar_width": "240px", "show_powered_by": False}
html_static_path = ["style.css"]
html_css_files = ["style.css"]
html_extra_path = ["index.html"]  # leads to the front page
html_copy_source = False


def pages_of(docname, text):
    """The pages below this one in the site's contents: those that it links to, in this order.

    The front page has the folders' README.md and the pages of the root. A README.md has the pages with which rows of
    its table begin, and another page those of the folder of its name."""
    if docname == FRONT:
        return list(dict.fromkeys(re.findall(r"\]\(([\w./]*/[A-Z]+)\.md\)", text)))
    name = docname.rpartition("/")[2]
    below = r"[\w/]+" if name == "README" else rf"{name}/\w+"
    return re.findall(rf"(?m)^\| \[[^\]]*\]\(({below})\.md\)", text)


def add_to_page(_, docname, source):
    """For Sphinx's event source-read: `source` holds the text of the page, which this function replaces."""
    if pages := pages_of(docname, source[0]):
        source[0] += "\n```{toctree}\n:hidden:\n\n" + "\n".join(pages) + "\n```\n"
    if docname == LIBRARY:
        source[0] += "\n## Declarations\n\n" + "".join(
            f"```{{doxygenfile}} {pathlib.Path(header).name}\n:sections: {SECTIONS}\n```\n" for header in HEADERS)


def read_headers(app):
    """Has Doxygen write HEADERS as XML, and fails on whatever it has to say about them."""
    output = pathlib.Path(app.doctreedir).parent / "doxygen"
    settings = {"PROJECT_NAME": project, "INPUT": " ".join(HEADERS), "STRIP_FROM_PATH": ROOT,
                "OUTPUT_DIRECTORY": output, "GENERATE_XML": "YES", "GENERATE_HTML": "NO", "GENERATE_LATEX": "NO",
                "QUIET": "YES", "TYPEDEF_HIDES_STRUCT": "YES",  # or C's structs would be there twice
                "WARN_AS_ERROR": "FAIL_ON_WARNINGS"}
    output.mkdir(parents=True, exist_ok=True)
    subprocess.run(["doxygen", "-"], input="".join(f"{name} = {value}\n" for name, value in settings.items()),
                   text=True, cwd=ROOT, check=True)
    app.config.breathe_projects = {project: str(output / "xml")}


def setup(app):
    app.connect("builder-inited", read_headers, priority=1)
    app.connect("source-read", add_to_page)
