"""Draws the README's picture of a schedule: one GoogLeNet module on one and several streams.

The module is planned for a named GPU and simulated, so the picture needs no GPU and shows nothing
that was measured.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

import nimble_fx
from bench.models.googlenet import GoogLeNet
from nimble_fx.ir.display import plural

GPU = "h100"
PICTURE = Path("docs/images/schedule.svg")
TITLES = {"serial": 'policy="serial"', "nimble": 'policy="nimble"'}
COLOURS = {
    "convolution": "#4c78a8",
    "batch norm": "#72b7b2",
    "relu": "#f2cf5b",
    "max pool": "#e45756",
    "concatenation": "#9d755d",
}
KINDS = {
    "convolution": "convolution",
    "_native_batch_norm_legit_no_training": "batch norm",
    "relu": "relu",
    "relu_": "relu",
    "max_pool2d_with_indices": "max pool",
    "cat": "concatenation",
}
"""The legend's names of operators."""

INCEPTION_3A = 5
"""The position of module 3a among GoogLeNet's layers."""


def planned(policy: str) -> nimble_fx.Program:
    """The program of GoogLeNet's module 3a at batch 1, with a policy; needs no data and no GPU."""
    with torch.device("meta"):
        module = GoogLeNet().eval()[INCEPTION_3A]
        return nimble_fx.plan(module, torch.empty(1, 192, 28, 28), device=GPU, policy=policy)


def shown_programs() -> dict[str, nimble_fx.Program]:
    """The programs to draw, one for each policy, by title."""
    return {title: planned(policy) for policy, title in TITLES.items()}


def draw(programs: Mapping[str, nimble_fx.Program], path: Path) -> None:
    """Writes an SVG file with a row of streams for each program; deterministic.

    Args:
        programs: the programs, by their titles in the picture.
        path: the file.
    """
    n_streams = [program.graph.n_streams for program in programs.values()]
    figure = Figure(figsize=(9, 1.6 + 0.32 * sum(n_streams)), layout="constrained")
    rows = figure.subplots(len(programs), sharex=True, squeeze=False, height_ratios=n_streams)
    for axes, (title, program) in zip(rows[:, 0], programs.items(), strict=True):
        _draw_program(axes, title, program)
    rows[-1, 0].set_xlabel(f"microseconds, simulated for {GPU}")
    legend = [Patch(color=colour, label=kind) for kind, colour in COLOURS.items()]
    figure.legend(handles=legend, loc="outside lower center", ncols=len(legend), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": "nimble_fx", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None})


def _draw_program(axes: Axes, title: str, program: nimble_fx.Program) -> None:
    """Draws a bar for each task on its stream, and an arrow for each wait between streams."""
    timeline = nimble_fx.whatif(program).predict().timeline
    spans = {span.name: span for span in timeline.spans}
    streams = sorted({span.queue for span in timeline.spans})
    row = {span.name: streams.index(span.queue) for span in timeline.spans}
    for task in program.graph.launching:
        span = spans[task.name]
        colour = COLOURS[KINDS[str(task.target).split(".")[1]]]
        us = span.end_us - span.start_us
        axes.barh(row[task.name], us, 0.7, left=span.start_us, color=colour, edgecolor="white")
        for name in task.waits:
            start, end = (spans[name].end_us, row[name]), (span.start_us, row[task.name])
            axes.annotate("", end, start, arrowprops={"arrowstyle": "->"})
    axes.set_yticks(range(len(streams)), streams)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    counts = f"{plural(len(streams), 'stream')}, {plural(program.graph.n_waits, 'wait')}"
    axes.set_title(f"{title}: {counts}, {timeline.makespan_us:.1f} us", loc="left", fontsize=10)


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the picture; returns 0."""
    options = argparse.ArgumentParser(prog="python -m bench.schedule_picture", description=__doc__)
    options.add_argument("--out", type=Path, default=PICTURE, help="the SVG file")
    args = options.parse_args(argv)
    draw(shown_programs(), args.out)
    print(f"written: {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
