"""Launches of Triton kernels, as a compile wraps them; the kernels are functions of CPU tensors."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from nimble_fx.rewrites.reinplace.reinplace_updates import reinplace_updates
from nimble_fx.rewrites.reinplace.wrapped_calls import wrapped_nodes
from nimble_fx.torch_internals import triton_calls
from nimble_fx.torch_internals.operators import KERNELS
from nimble_fx.torch_internals.triton_calls import TRITON_WRAPPER

table = triton_calls._table


class Kernel:
    """Looks like a Triton kernel, and runs a function of CPU tensors."""

    def __init__(self, function: Callable[..., None], arg_names: Sequence[str]) -> None:
        self.function, self.arg_names = function, list(arg_names)
        self.fn: Any = SimpleNamespace(__name__="stub", src=f"text of {function.__name__}")

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *args, **kwargs: self.function(grid, *args, **kwargs)


def wrapped(
    kernel: Any, written: Sequence[str], factor: Any = 3, descriptors: Any = None, **kwargs: Any
) -> Any:
    """The results of a wrapped launch; the factor is a constant of the kernel."""
    return TRITON_WRAPPER(
        kernel_idx=table.add_kernel(kernel),
        constant_args_idx=table.add_constant_args({"factor": factor}),
        grid=[(1, 1, 1)],
        tma_descriptor_metadata=descriptors or {},
        kwargs=kwargs,
        tensors_to_clone=list(written),
    )


def _scale(grid: Any, x: Tensor, out: Tensor, n: int, factor: int) -> None:
    out.view(-1)[:n].copy_((x * factor + grid[0]).view(-1)[:n])


scale = Kernel(_scale, ("x", "out", "n", "factor"))


def traced(program: Callable[..., Any], x: Tensor, mode: Any = "fake") -> GraphModule:
    gm: GraphModule = make_fx(program, tracing_mode=mode)(x)
    assert wrapped_nodes(gm.graph)
    return gm


def operator_of(kernel: Kernel, factor: Any = 3) -> Any:
    def program(x: Tensor) -> Any:
        return wrapped(kernel, ["out"], factor, x=x, out=x.sin(), n=2)["out"]

    unwrapped = reinplace_updates(traced(program, torch.randn(3, 4)))
    (operator,) = [n.target for n in unwrapped.graph.nodes if KERNELS in str(n.target)]
    return operator
