"""Operators that Inductor leaves as they are, because it gets stand-ins that it does not know.

A stand-in computes what its operator does. Inductor fuses concatenations, which orders what could
run side by side, compiles products by packed weights only where these are constants, and knows
`aten.linear` only before it is decomposed.
"""

from collections.abc import Collection
from typing import Any

import torch
from torch.fx import Graph, GraphModule

from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.torch_internals.onednn import LINEAR
from nimble_fx.torch_internals.operators import KERNELS, schema_of

CONCATENATIONS = (torch.ops.aten.cat.default, torch.ops.aten.stack.default)
PRODUCTS = (torch.ops.aten.linear.default, LINEAR)

_NAMES = dict(
    zip(
        (*CONCATENATIONS, *PRODUCTS),
        ("concatenation", "stack", "linear", "packed_linear"),
        strict=True,
    )
)
_OPERATORS = {name: op for op, name in _NAMES.items() if isinstance(op, OpOverload)}
_library: Any = torch.library.Library(KERNELS, "FRAGMENT")  # type: ignore[no-untyped-call]

for _name, _operator in _OPERATORS.items():
    _library.define(f"{_name}({str(schema_of(_operator)).partition('(')[2]}")
    _library.impl(_name, _operator, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{KERNELS}::{_name}", _operator, lib=_library)


def with_stand_ins(gm: GraphModule, operators: Collection[object]) -> GraphModule:
    """A copy of an ATen graph with stand-ins for these operators.

    Args:
        gm: the graph, which is not changed.
        operators: of `CONCATENATIONS` and `PRODUCTS`.
    """
    graph = Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    for node in graph.nodes:
        if node.target in operators:
            node.target = getattr(getattr(torch.ops, KERNELS), _NAMES[node.target]).default
    return GraphModule(gm, graph)


def operator_of(stand_in: str) -> OpOverload | None:
    """The operator that a stand-in of this name is for; None if it is none."""
    return _OPERATORS.get(stand_in)
