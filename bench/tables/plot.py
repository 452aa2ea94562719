"""Plots a comparison: for each model, each contestant's time over nimble_fx's."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from bench.tables.rows import OURS, Row

BAR = 0.8
"""The part of a model's width that its bars fill."""


def plot(rows: Sequence[Row], title: str, path: Path) -> None:
    """Writes an SVG file; deterministic."""
    names = [n for n in dict.fromkeys(n for row in rows for n in row.results) if n != OURS]
    figure = Figure(figsize=(9, 1.5 + 0.14 * len(rows) * max(len(names), 1)), layout="constrained")
    axes = figure.add_subplot()
    for i, name in enumerate(names):
        ratios = [(k, row.ratio(name, over=OURS)) for k, row in enumerate(rows)]
        drawn = [(k, ratio.median) for k, ratio in ratios if ratio is not None]
        height = BAR / len(names)
        places = [k - BAR / 2 + (i + 0.5) * height for k, _ in drawn]
        axes.barh(places, [times - 1 for _, times in drawn], height, left=1, label=name)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("{x:g}")
    axes.set_xlabel(f"time of a call over {OURS}'s (to the right of 1: {OURS} is faster)")
    axes.set_yticks(range(len(rows)), [row.title for row in rows], fontsize=7)
    axes.invert_yaxis()
    axes.set_title(title)
    axes.legend(fontsize=7)
    with mpl.rc_context({"svg.hashsalt": "nimble_fx", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None})
