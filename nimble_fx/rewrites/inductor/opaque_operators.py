"""Hides operators from Inductor, behind custom operators that it does not know.

Each custom operator computes the same as its original. Without them Inductor would fuse
concatenations, which orders branches that could run concurrently; it compiles products with packed
weights only if these are constants, and knows `aten.linear` only before it is decomposed; it would
let oneDNN's convolutions apply activations, some of which then replace NaN with a number. And it
removes copies that it takes for needless (see `overwritten_values`).
"""

from collections.abc import Collection
from typing import Any

import torch
from torch.fx import GraphModule

from nimble_fx.torch_internals.graph_modules import copied
from nimble_fx.torch_internals.kernels.onednn import CONVOLUTION, CONVOLUTION_ADD, LINEAR
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.torch_internals.operators import KERNELS, schema_of

CONCATENATIONS = (torch.ops.aten.cat.default, torch.ops.aten.stack.default)
PRODUCTS = (torch.ops.aten.linear.default, LINEAR)
CONVOLUTIONS = (CONVOLUTION, CONVOLUTION_ADD)

_NAMES = {
    torch.ops.aten.cat.default: "concatenation",
    torch.ops.aten.stack.default: "stack",
    torch.ops.aten.linear.default: "linear",
    LINEAR: "packed_linear",
    CONVOLUTION: "convolution",
    CONVOLUTION_ADD: "convolution_add",
    torch.ops.aten.clone.default: "clone",
}
_OPERATORS = {name: op for op, name in _NAMES.items() if isinstance(op, OpOverload)}
_library: Any = torch.library.Library(KERNELS, "FRAGMENT")  # type: ignore[no-untyped-call]

for _name, _operator in _OPERATORS.items():
    _library.define(f"{_name}({str(schema_of(_operator)).partition('(')[2]}")
    _library.impl(_name, _operator, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{KERNELS}::{_name}", _operator, lib=_library)


def with_opaque_operators(gm: GraphModule, operators: Collection[object]) -> GraphModule:
    """A copy of an ATen graph with some operators replaced with opaque ones.

    Args:
        gm: the graph, which is not changed.
        operators: the operators to replace, from `CONCATENATIONS`, `PRODUCTS` and `CONVOLUTIONS`.
    """
    replaced = copied(gm)
    for node in replaced.graph.nodes:
        if node.target in operators:
            node.target = opaque(node.target)
    replaced.recompile()
    return replaced


def opaque(operator: Any) -> OpOverload:
    """The opaque operator that computes the same as one of the operators of this module."""
    found: OpOverload = getattr(getattr(torch.ops, KERNELS), _NAMES[operator]).default
    return found


def original_of(name: str) -> OpOverload | None:
    """The original of an opaque operator, by its name; None if there is no such operator."""
    return _OPERATORS.get(name)
