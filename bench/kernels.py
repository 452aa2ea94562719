"""Counts the kernels that a model's call launches: PyTorch's, with folded weights, Inductor's.

"PyTorch" counts the operators of the ATen graph that launch something; "unfolded" is after common
subexpression elimination and constant folding, "folded" also with folded weights, and "finite" also
with `assume_finite`. "Inductor" counts its fused kernels and library calls, "both" is Inductor with
convolutions on folded weights, and "all" also with `assume_finite`. Inductor takes minutes for a
large model.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch import nn
from torch.fx import GraphModule

import nimble_fx
from bench.command_line.console import print_table, progress
from bench.command_line.record import finish, keep
from bench.command_line.selection import chosen, selecting_parser, zoo
from bench.models.model import Form
from nimble_fx.torch_internals.dynamo.names import aot_autograd
from nimble_fx.tracing.aten_to_tasks import trace

WAYS: Mapping[str, Mapping[str, Any]] = {
    "unfolded": {"fold_weights": False},
    "folded": {"fold_weights": True},
    "finite": {"fold_weights": True, "assume_finite": True},
    "Inductor": {"fold_weights": False, "kernels": "inductor"},
    "both": {"kernels": "inductor"},
    "all": {"kernels": "inductor", "assume_finite": True},
}
"""The options of nimble_fx for each way."""


@dataclass(frozen=True)
class KernelRow:
    """A model at a batch size.

    Attributes:
        counts: the kernels that a call launches, by way.
    """

    model: str
    title: str
    batch: int
    counts: Mapping[str, int]


def n_operators(form: Form, batch: int, device: str) -> int:
    """The number of operators that launch something in a call in inference, as PyTorch traces."""
    counts: list[int] = []

    def count(gm: GraphModule, _: Sequence[Any]) -> Any:
        counts.append(len(trace(gm).graph.launching))
        return make_boxed_func(gm.forward)

    model, inputs = prepared(form, batch, device)
    traced = torch.compile(model, backend=aot_autograd(fw_compiler=count))
    with torch.no_grad():
        traced(*inputs)
    return sum(counts)


def n_kernels(form: Form, batch: int, device: str, options: Mapping[str, Any]) -> int:
    """The number of kernels that a call in inference launches, with these options of nimble_fx.

    A fallback is an error.
    """
    model, inputs = prepared(form, batch, device)
    compiled = nimble_fx.compile(model, inputs, on_fallback="error", **options)
    return sum(len(program.graph.launching) for program in compiled.programs)


def prepared(form: Form, batch: int, device: str) -> tuple[nn.Module, tuple[Any, ...]]:
    """The model, without compiled code, and inputs for it."""
    torch.compiler.reset()
    torch.manual_seed(0)
    return form.build().eval().to(device), tuple(x.to(device) for x in form.inputs(batch))


def cells(counts: Mapping[str, int]) -> list[str]:
    """The count of each way, and how many times fewer kernels that is than PyTorch's."""
    most = counts["PyTorch"]
    return [f"{n}" if n == most else f"{n}, {most / n:.2f} x fewer" for n in counts.values()]


def main(argv: Sequence[str] | None = None) -> int:
    """Counts, prints and writes; returns 0."""
    options = selecting_parser(__doc__, zoo())
    options.add_argument(
        "--ways", nargs="+", choices=list(WAYS), default=list(WAYS), help='besides "PyTorch"'
    )
    args = options.parse_args(argv)
    ways = [name for name in WAYS if name in args.ways]
    cases, rows = chosen(args, training=False), list[KernelRow]()
    with progress("kernels", len(cases)) as begin:
        for model, form, batch in cases:
            begin(f"{model.title}, batch {batch}")
            counts = {"PyTorch": n_operators(form, batch, args.device)}
            counts |= {name: n_kernels(form, batch, args.device, WAYS[name]) for name in ways}
            title = f"{model.title}, {form.title}, batch {batch}"
            rows.append(KernelRow(model.name, title, batch, counts))
            keep("kernels", args, {"rows": rows})
    body = [[row.title, *cells(row.counts)] for row in rows]
    print_table("Kernels a call", ["", "PyTorch", *ways], [body])
    finish("kernels", args, {"rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
