"""Validation loss over wall-clock time (the paper's Figure 4b): rows of figure4b.csv, compared and drawn."""

from lib import plots

LABELS = {"adam": "Adam, bf16", "onebit_adam": "1-bit Adam", "onebit_muon": "1-bit Muon"}


def curves_of(rows):
    """{algorithm: rows}"""
    return {name: [row for row in rows if row["algorithm"] == name] for name in LABELS}


def common_loss(curves):
    """The lowest validation loss that all algorithms reach."""
    return max(min(float(row["validation_loss"]) for row in rows if row["validation_loss"]) for rows in curves.values())


def seconds_to(rows, loss):
    """When the validation loss first is as low, interpolated linearly between two validations; None for never."""
    before = None
    for row in rows:
        if not row["validation_loss"]:
            continue
        now = float(row["seconds"]), float(row["validation_loss"])
        if now[1] <= loss:
            if before is None:
                return now[0]
            return before[0] + (now[0] - before[0]) * (before[1] - loss) / (before[1] - now[1])
        before = now
    return None


def draw(curves, path):
    figure, axes = plots.axes("wall-clock time, s", "validation loss, nats")
    for place, (algorithm, rows) in enumerate(curves.items()):
        validated = [row for row in rows if row["validation_loss"]]
        axes.plot([float(row["seconds"]) for row in validated], [float(row["validation_loss"]) for row in validated],
                  label=LABELS[algorithm], **plots.style(place))
    axes.legend(frameon=False)
    plots.save(figure, path)
