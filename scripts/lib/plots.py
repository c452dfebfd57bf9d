"""Styles and axes of figures. Import this before matplotlib: it chooses the backend that needs no display."""

from lib import require

require({"matplotlib": "matplotlib", "yaml": "PyYAML"})
import matplotlib  # noqa: E402

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402
from PIL import Image  # noqa: E402  (matplotlib needs it too)

# Okabe and Ito's palette, which colour-blind readers can tell apart, without yellow, which is too light for a line.
COLORS = ["#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]
DASHES = ["-", "--", ":"]


def style(place):
    """Colour and dashes of the line at this place of a figure."""
    return {"color": COLORS[place % len(COLORS)], "linestyle": DASHES[place // len(COLORS) % len(DASHES)]}


def axes(x_label, y_label):
    """A figure with one pair of axes."""
    figure, pair = pyplot.subplots(figsize=(7, 4), constrained_layout=True)
    pair.set(xlabel=x_label, ylabel=y_label)
    pair.grid(alpha=0.3)
    for side in ("top", "right"):
        pair.spines[side].set_visible(False)
    return figure, pair


def save(figure, path, palette=0, **options):
    """Writes a figure. A palette of so many colours makes a PNG three times smaller."""
    figure.savefig(path, **options)
    pyplot.close(figure)
    if palette:
        Image.open(path).convert("RGB").quantize(palette).save(path, optimize=True)
