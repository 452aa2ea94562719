"""Graphs of two devices on one: "meta" stands for the GPU, values are the CPU's."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from tests.support.schedules import aten_graph

GPU = torch.device("meta")


def graph_of(
    function: Callable[..., Any],
    on_gpu: Sequence[Tensor],
    on_cpu: Sequence[Tensor],
    functional: bool = True,
) -> GraphModule:
    """The ATen graph of a function of tensors on the GPU, then on the CPU."""
    with FakeTensorMode() as mode:
        moved = [torch.empty_like(mode.from_tensor(x), device=GPU) for x in on_gpu]
        here = [mode.from_tensor(x) for x in on_cpu]
    return aten_graph(function, *moved, *here, functional=functional)


def with_values(gm: GraphModule) -> GraphModule:
    """The graph itself, changed: it computes on the CPU what it would on the GPU."""
    for node in gm.graph.nodes:
        node.args, node.kwargs = pytree.tree_map_only(
            torch.device, lambda _: torch.device("cpu"), (node.args, node.kwargs)
        )
    gm.recompile()
    return gm
