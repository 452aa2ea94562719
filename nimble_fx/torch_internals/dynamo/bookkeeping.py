"""What Dynamo's code does in each call besides calling a graph, and code that does not do it.

It reports to profilers how long it takes itself, and on a GPU it hands over the current stream and
other objects of the user to the graph, in a global table. That takes five microseconds.
"""

from collections.abc import Mapping
from types import CodeType, SimpleNamespace
from typing import Any

from torch.fx import GraphModule

from nimble_fx.torch_internals.names import HigherOrderOperator

_IMPORTED = "__import_"
"""Prefix of the global names that Dynamo gives to modules."""

FOR_PROFILERS = frozenset({"record_pregraph_bytecode_enter", "record_pregraph_bytecode_exit"})
FOR_USER_OBJECTS = frozenset({"store_user_object_weakrefs", "get_current_stream"})
"""Functions that code calls for these purposes alone, unless its graph reads such objects."""

READ_BESIDES = frozenset({"_is_profiler_enabled", "device"})
"""Names without effects that it uses next to them."""

_GETTER = "get_external_object_by_index"
"""The function by which a graph gets an object that was handed over."""


def reads_user_objects(gm: GraphModule) -> bool:
    """Whether a graph may read objects, such as streams, that Dynamo's code hands over.

    Args:
        gm: Dynamo's graph.
    """
    graphs = [module.graph for module in gm.modules() if isinstance(module, GraphModule)]
    return any(_may_read_user_objects(node.target) for graph in graphs for node in graph.nodes)


def _may_read_user_objects(target: object) -> bool:
    return getattr(target, "__name__", "") == _GETTER or isinstance(target, HigherOrderOperator)


def without_bookkeeping(
    code: CodeType, scope: Mapping[str, Any], user_objects: bool
) -> dict[str, Any]:
    """Global names for code, in which the functions for bookkeeping do nothing.

    Args:
        code: Dynamo's code, which has no effects (`DynamoEntry.effects`).
        scope: its global names.
        user_objects: whether it must hand over the user's objects to its graph.
    """
    skipped = FOR_PROFILERS if user_objects else FOR_PROFILERS | FOR_USER_OBJECTS
    names = [name for name in code.co_names if name in scope]

    def trimmed(module: object) -> SimpleNamespace:
        present = [name for name in code.co_names if hasattr(module, name)]
        kept = {name: getattr(module, name) for name in present if name not in skipped}
        return SimpleNamespace(**kept, **{n: _nothing for n in present if n in skipped})

    return {n: trimmed(scope[n]) if n.startswith(_IMPORTED) else scope[n] for n in names}


def _nothing(*_: object) -> None:
    """Does nothing."""
