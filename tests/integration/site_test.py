#!/usr/bin/env python3
"""scripts/docs.sh makes the site without a warning; its links lead somewhere, and the front page leads to every page.

Usage: site_test.py SOURCE_DIRECTORY [unittest arguments]
"""

import html.parser
import pathlib
import re
import subprocess
import sys
import unittest
import urllib.parse

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import skips
import support

FRONT = ROOT / "docs/index.md"
PARTS = {"notes.md"}  # of other pages


def pages_below(page, links_of):
    """The pages that can be reached from this one."""
    found, open_ = {page}, [page]
    while open_:
        new = set(links_of(open_.pop())) - found
        found |= new
        open_ += new
    return found


def markdown_links(page):
    """The pages that a page in Markdown leads to."""
    targets = re.findall(r"\]\(([^)\s#:]+\.md)(?:#[^)\s]*)?\)", page.read_text(encoding="utf-8"))
    return [(page.parent / target).resolve() for target in targets]


class Page(html.parser.HTMLParser):
    """Anchors of a page of the site, and the links and files that it names."""

    def __init__(self, path):
        super().__init__()
        self.anchors, self.links = set(), []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors.add(attributes.get("id"))
        self.links += [attributes[name] for name in ("href", "src") if attributes.get(name)]


class Site(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = support.scratch(cls)
        done = subprocess.run([ROOT / "scripts/docs.sh", cls.directory], capture_output=True, text=True, check=False)
        if done.returncode == skips.SKIPPED:
            raise unittest.SkipTest(done.stderr.strip().removeprefix("docs: "))
        assert done.returncode == 0, done.stdout + done.stderr
        cls.printed = pathlib.Path(done.stdout.strip())
        cls.html = cls.directory / "html"
        cls.site = {path: Page(path) for path in cls.html.rglob("*.html")}

    def links_of(self, page):
        """The pages of the site that a page of it leads to."""
        for link in self.site[page].links:
            target = (page.parent / urllib.parse.unquote(urllib.parse.urlsplit(link).path)).resolve()
            if target in self.site:
                yield target

    def test_front_page(self):
        self.assertEqual(self.printed, self.html / "index.html")
        self.assertIn(self.html / "docs/index.html", self.links_of(self.printed))

    def test_every_page_is_below_the_front_page(self):
        wanted = {path for path in [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")] if path.name not in PARTS}
        self.assertGreater(len(wanted), 30)
        self.assertEqual(wanted - pages_below(FRONT, markdown_links), set(), "on a forge")
        below = pages_below(self.html / "docs/index.html", self.links_of)
        of_site = {self.html / path.relative_to(ROOT).with_suffix(".html") for path in wanted}
        self.assertEqual(of_site - below, set(), "on the site")

    def test_links_lead_somewhere(self):
        count = 0
        for path, page in self.site.items():
            for link in page.links:
                parts = urllib.parse.urlsplit(link)
                if parts.scheme or parts.netloc:
                    self.assertIn(parts.netloc, ("github.com", "keepachangelog.com"), f"{path}: {link}")
                    continue
                target = path if not parts.path else (path.parent / urllib.parse.unquote(parts.path)).resolve()
                self.assertTrue(target.is_file(), f"{path}: {link}")
                if parts.fragment and target in self.site:
                    self.assertIn(urllib.parse.unquote(parts.fragment), self.site[target].anchors, f"{path}: {link}")
                count += 1
        self.assertGreater(count, 500)

    def test_the_library_has_its_declarations(self):
        page = self.html / "docs/reference/library.html"
        for name in ("CompressedAllreduceOptions", "bytes_sent", "residual_factor", "onebit_last_error"):
            self.assertIn(name, page.read_text(encoding="utf-8").partition("declarations")[2])

    def test_figures_are_on_their_pages(self):
        for name, figure in (("README", "best_gpt_reduction"), ("docs/results/performance/kernels", "roofline")):
            sources = [link for link in self.site[self.html / f"{name}.html"].links if link.endswith(f"{figure}.svg")]
            self.assertEqual(len(sources), 1, name)


if __name__ == "__main__":
    skips.main(sys.argv[2:])
