"""Predicts a GPU's times with PyTorch's and Inductor's kernels, with and without folded weights.

Each model is planned in four ways, on one stream and with the schedule that "auto" selects. Times
come from the roofline and the simulator; nothing is measured. Inductor compiles for a GPU that
PyTorch sees; a stand-in for the CUDA runtime (tests/cuda_runtime) suffices, because no kernel runs.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

import torch

import nimble_fx
from bench.command_line.console import print_table, progress
from bench.command_line.record import Target, finish, keep
from bench.command_line.selection import chosen, selecting_parser, zoo
from bench.kernels import prepared
from bench.measuring.predicted import There, predicted_for
from bench.models.model import Form
from nimble_fx.devices.specs import Device, find_device
from nimble_fx.errors import UnsupportedError

WAYS: Mapping[str, Mapping[str, Any]] = {
    "PyTorch's": {"kernels": "aten"},
    "folded": {"kernels": "aten", "fold_weights": True},
    "Inductor's": {"kernels": "inductor"},
    "Inductor's, folded": {"kernels": "inductor", "fold_weights": True},
}
"""The options of each way."""

HEADER = ("model", *WAYS, "streams gain", "why")


@dataclass(frozen=True)
class FusionRow:
    """A model at a batch size.

    Attributes:
        n_kernels: how many kernels a call launches, by way.
        there: the prediction, by way.
        error: why there is no prediction; "" if there is one.
    """

    model: str
    title: str
    batch: int
    n_kernels: Mapping[str, int]
    there: Mapping[str, There]
    error: str = ""

    @staticmethod
    def of(plain: Mapping[str, Any]) -> "FusionRow":
        """The row that JSON was made from."""
        there = {way: There(**each) for way, each in plain["there"].items()}
        return FusionRow(**{**plain, "there": there})


def predicted(name: str, title: str, form: Form, batch: int, device: Device) -> FusionRow:
    """Plans a model in each way; if that fails, the row says why."""
    n_kernels, there = dict[str, int](), dict[str, There]()
    for way, options in WAYS.items():
        model, inputs = prepared(form, batch, "cpu")
        try:
            program = nimble_fx.plan(model, inputs, device=device, on_fallback="error", **options)
        except UnsupportedError as error:
            return FusionRow(name, title, batch, n_kernels, there, f"{way}: {error}")
        n_kernels[way] = len(program.graph.launching)
        there[way] = predicted_for(device, [program.graph])
    return FusionRow(name, title, batch, n_kernels, there)


def fusion_cells(row: FusionRow) -> list[str]:
    """The columns of `HEADER`; for each way "kernels: microseconds on one stream, on several"."""
    cells = [row.title]
    for way in WAYS:
        times = row.there[way].schedules if way in row.there else None
        cells.append(
            f"{row.n_kernels[way]}: {times['serial']:.0f}, {times['auto']:.0f}" if times else "-"
        )
    if row.error:
        return [*cells, "-", row.error.partition("\n")[0]]
    *_, last = row.there.values()
    return [*cells, f"{last.gain:.2f} x", last.reason]


def main(argv: Sequence[str] | None = None) -> int:
    """Plans, prints and writes; returns 0, or 1 if PyTorch sees no GPU."""
    options = selecting_parser(__doc__, zoo())
    options.add_argument("--gpu", default="h100", help="the GPU to predict for")
    args = options.parse_args(argv)
    if not torch.cuda.is_available():
        print("FAILED: PyTorch sees no GPU for which Inductor can compile", file=sys.stderr)
        return 1
    device = find_device(args.gpu)
    cases, rows = chosen(args, training=False), list[FusionRow]()
    with progress("predictions", len(cases)) as begin:
        for model, form, batch in cases:
            title = f"{model.title}, {form.title}, batch {batch}"
            begin(title)
            rows.append(predicted(model.name, title, form, batch, device))
            keep("fusion", args, {"rows": rows})
    title = f"Predicted for {device.name}: kernels, microseconds on one stream and on several"
    print_table(title, HEADER[:-1], [[fusion_cells(row)[:-1] for row in rows]])
    finish("fusion", args, {"rows": rows}, targets(rows))
    return 0


def targets(rows: Sequence[FusionRow]) -> list[Target]:
    """Other kernels must not take longer than PyTorch's."""
    whole = [row.there for row in rows if not row.error]
    if not whole:
        return []
    by_way = {
        way: geometric_mean(
            there[way].schedules["auto"] / there["PyTorch's"].schedules["auto"] for there in whole
        )
        for way in list(WAYS)[1:]
    }
    return [
        Target(f"{way} / PyTorch's, what is chosen, geometric mean", figure, 1)
        for way, figure in by_way.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
