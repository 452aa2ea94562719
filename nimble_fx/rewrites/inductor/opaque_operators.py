"""Operators that Inductor leaves as they are, because it gets others that it does not know.

Each computes what its original does. Inductor fuses concatenations, which orders what could run
side by side, compiles products by packed weights only where these are constants, and knows
`aten.linear` only before it is decomposed.
"""

from collections.abc import Collection
from typing import Any

import torch
from torch.fx import GraphModule

from nimble_fx.torch_internals.graph_modules import copied
from nimble_fx.torch_internals.kernels.onednn import LINEAR
from nimble_fx.torch_internals.names import OpOverload
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


def with_opaque_operators(gm: GraphModule, operators: Collection[object]) -> GraphModule:
    """A copy of an ATen graph with opaque operators in the place of some.

    Args:
        gm: the graph, which is not changed.
        operators: those to replace, of `CONCATENATIONS` and `PRODUCTS`.
    """
    replaced = copied(gm)
    for node in replaced.graph.nodes:
        if node.target in operators:
            node.target = getattr(getattr(torch.ops, KERNELS), _NAMES[node.target]).default
    replaced.recompile()
    return replaced


def original_of(name: str) -> OpOverload | None:
    """What the opaque operator of this name computes; None if there is no such operator."""
    return _OPERATORS.get(name)
