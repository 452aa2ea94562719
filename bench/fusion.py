"""What a GPU is predicted to take with PyTorch's kernels and with Inductor's, by streams.

Each model is planned with both kinds of kernels; times are the roofline's and the simulator's, so
nothing is measured. Inductor compiles for a GPU that PyTorch sees; a stand-in for the CUDA runtime
(tests/cuda_runtime) will do, as no kernel runs.
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

KINDS = ("aten", "inductor")
"""Of kernels, as the option names them."""

HEADER = (
    *("model", "PyTorch's kernels", "one stream", "several"),
    *("Inductor's kernels", "one stream", "several", "streams gain", "why"),
)


@dataclass(frozen=True)
class FusionRow:
    """A model at a batch size.

    Attributes:
        n_kernels: what a call launches, by kind of kernels.
        there: what is predicted, by kind of kernels.
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
        there = {kind: There(**each) for kind, each in plain["there"].items()}
        return FusionRow(**{**plain, "there": there})


def predicted(name: str, title: str, form: Form, batch: int, device: Device) -> FusionRow:
    """Plans a model with each kind of kernels; what cannot be planned is a row that says why."""
    n_kernels, there = dict[str, int](), dict[str, There]()
    for kind in KINDS:
        model, inputs = prepared(form, batch, "cpu")
        try:
            program = nimble_fx.plan(
                model, inputs, device=device, kernels=kind, on_fallback="error"
            )
        except UnsupportedError as error:
            return FusionRow(name, title, batch, n_kernels, there, f"{kind}: {error}")
        n_kernels[kind] = len(program.graph.launching)
        there[kind] = predicted_for(device, [program.graph])
    return FusionRow(name, title, batch, n_kernels, there)


def fusion_cells(row: FusionRow) -> list[str]:
    """Microseconds, by the columns of `HEADER`."""
    cells = [row.title]
    for kind in KINDS:
        if kind in row.there:
            times = row.there[kind].schedules
            cells += [f"{row.n_kernels[kind]}", f"{times['serial']:.0f}", f"{times['auto']:.0f}"]
        else:
            cells += ["-"] * 3
    if row.error:
        return [*cells, "-", row.error.partition("\n")[0]]
    last = row.there[KINDS[-1]]
    return [*cells, f"{last.gain:.2f} x", last.reason]


def main(argv: Sequence[str] | None = None) -> int:
    """Plans, prints, writes; 0, or 1 if PyTorch sees no GPU."""
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
    title = f"Predicted for {device.name}, microseconds a call"
    print_table(title, HEADER[:-1], [[fusion_cells(row)[:-1] for row in rows]])
    finish("fusion", args, {"rows": rows}, targets(rows))
    return 0


def targets(rows: Sequence[FusionRow]) -> list[Target]:
    """Several streams never take longer than one, nor fused kernels than PyTorch's."""
    whole = [row.there for row in rows if not row.error]
    if not whole:
        return []
    slowest = max(1 / there["inductor"].gain for there in whole)
    fused = [
        there["inductor"].schedules["auto"] / there["aten"].schedules["auto"] for there in whole
    ]
    return [
        Target("Inductor's kernels: what is chosen / one stream, of all models", slowest, 1),
        Target(
            "Inductor's kernels / PyTorch's, what is chosen, geometric mean",
            geometric_mean(fused),
            1,
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
