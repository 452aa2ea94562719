"""Calls of custom operators that write to their arguments, as AOTAutograd makes them functional.

It wraps such a call in a higher-order operator that copies the *bases* of the written arguments
(tensors that are no views), calls the operator on the copies' views, and returns its results and
the copies.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from nimble_fx.torch_internals.names import OpOverload, lookup
from nimble_fx.torch_internals.operators import schema_of

_MODULE = "torch._higher_order_ops.auto_functionalize"
WRAPPER = lookup(f"{_MODULE}.auto_functionalized_v2")
"""The higher-order operator."""

_written_parameters = lookup(f"{_MODULE}.get_mutable_args_from_schema")
_read_views = lookup(f"{_MODULE}.read_view_information_from_args")

AsStrided = lookup(f"{_MODULE}.AsStridedViewInfo")
Slice = lookup(f"{_MODULE}.SliceViewInfo")
View = Any
"""`AsStrided`, `Slice`, or a view of the whole; each has the position of its base: `base_index`."""


@dataclass(frozen=True)
class WrappedCall:
    """A wrapped call of an operator.

    Attributes:
        operator: the operator, none of whose results aliases an argument.
        bases: the tensors that it writes to, in whole or in part.
        written: the views that it takes, by its parameters: one, a list of them, or None.
        others: its other arguments by name.
    """

    operator: OpOverload
    bases: Sequence[Node]
    written: Mapping[str, View | list[View | None] | None]
    others: Mapping[str, Any]

    @property
    def n_results(self) -> int:
        """How many of the wrapper's results, which precede the bases', are the operator's."""
        return max(1, len(schema_of(self.operator).returns))


def wrapped_call(node: Node) -> WrappedCall | None:
    """The call that a node wraps; None if its operator returns an argument.

    Args:
        node: a call of `WRAPPER`.
    """
    op = node.args[0]
    if not isinstance(op, OpOverload) or any(r.alias_info for r in schema_of(op).returns):
        return None
    others = dict(node.kwargs)
    bases: Any = others.pop("_all_bases")
    names, types = _written_parameters(schema_of(op))
    views = _read_views(names, types, others, bases)  # removes them from the others
    return WrappedCall(op, bases, views, others)
