"""Styles and axes of figures. Import this before matplotlib: it chooses the backend that needs no display."""

import re
import statistics
import textwrap

from lib import require
from lib.tables import number

require({"matplotlib": "matplotlib", "yaml": "PyYAML"})
import matplotlib  # noqa: E402

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

# The same figure has the same bytes. Glyphs are outlines, because fonts differ between readers.
matplotlib.rcParams.update({"svg.hashsalt": "onebit", "svg.fonttype": "path", "legend.fontsize": 9})

WIDTH = 8  # of a figure, inches: 768 pixels, which a page shows without shrinking, so no text is below 9 points

# Okabe and Ito's palette, which colour-blind readers can tell apart, without yellow, which is too light for a line.
COLORS = ["#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]
DASHES = ["-", "--", ":"]

# Kinds of kernels in a roofline: the marker, and the names; the first that fits.
KINDS = {
    "machine": ("x", r"triad|gemm.*"),
    "optimiser's passes": ("o", r"adam|.*_norm|.*compress|.*_update"),
    "products": ("s", r"(qkv|attention_output|feed_forward_in|feed_forward_out|head)_.*|.*_product.*"),
    "attention": ("^", r"attention_.*"),
    "other layers": ("D", r".*"),
}


def style(place):
    """Colour and dashes of the line at this place of a figure."""
    return {"color": COLORS[place % len(COLORS)], "linestyle": DASHES[place // len(COLORS) % len(DASHES)]}


def axes(x_label, y_label):
    """A figure with one pair of axes."""
    figure, pair = pyplot.subplots(figsize=(WIDTH, 4.4), constrained_layout=True)
    pair.set(xlabel=x_label, ylabel=y_label)
    pair.grid(alpha=0.3)
    for side in ("top", "right"):
        pair.spines[side].set_visible(False)
    return figure, pair


def legend_beside(pair, handles=None, labels=None, **options):
    """A legend at the right of the axes, where constrained layout makes room for it; long labels get several lines."""
    if handles is None:
        handles, labels = pair.get_legend_handles_labels()
    # No line breaks at a no-break space: an equation and a number with its unit stay together.
    whole = [re.sub(r" = | (?=\w+/s)", lambda part: part[0].replace(" ", "\xa0"), label) for label in labels]
    words = [textwrap.fill(label, 28) for label in whole]
    pair.legend(handles, words, loc="upper left", bbox_to_anchor=(1.01, 1.02), frameon=False, **options)


def roofline(pair, rows, name, place=1):
    """Rows of a kernels.csv in log-log axes, below the roofline of their machine.

    The roofline is that of the medians of the rows' bandwidths and peaks, for each precision; kernels without FLOP
    (copy) or without bytes (fma) have no place here. \param place of the colour in COLORS"""
    color = style(place)["color"]
    shown = [row for row in rows if number(row["arithmetic_intensity"]) > 0]
    intensities = [number(row["arithmetic_intensity"]) for row in shown]
    bandwidth = statistics.median(number(row["bandwidth_B_per_s"]) for row in rows)
    for dashes, precision in zip(DASHES, sorted({row["precision"] for row in rows}, key=lambda word: word != "fp32")):
        peak = statistics.median(number(row["peak_FLOP_per_s"]) for row in rows
                                 if row["precision"] == precision and number(row["peak_FLOP_per_s"]) > 0)
        ends = [min(intensities) / 2, peak / bandwidth, max(*intensities, peak / bandwidth) * 2]
        pair.loglog(ends, [1e-9 * min(peak, bandwidth * at) for at in ends], color=color, linestyle=dashes,
                    label=f"{name}: {1e-9 * bandwidth:.3g} GB/s, {precision} {1e-9 * peak:.0f} GFLOP/s")
    points = {}
    for at, row in zip(intensities, shown):
        kind = next(kind for kind, (_, pattern) in KINDS.items() if re.fullmatch(pattern, row["kernel"]))
        points.setdefault((kind, row["precision"]), []).append((at, 1e-9 * number(row["flop"])
                                                                / number(row["median_s"])))
    for (kind, precision), of_kind in points.items():
        filled, note = ("none", "") if precision == "fp32" else ("full", f" in {precision}")
        pair.plot(*zip(*of_kind), KINDS[kind][0], color=color, markersize=5, fillstyle=filled,
                  label=f"{name}: {kind}{note}")


def save(figure, path, **options):
    """Writes a figure as SVG, without the date, so that it changes only where its data do."""
    figure.savefig(path, format="svg", metadata={"Date": None}, **options)
    pyplot.close(figure)
