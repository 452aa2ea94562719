"""The arguments of a task with values in place of Refs."""

from collections.abc import Mapping
from typing import Any

from nimble_fx.ir.arguments import map_leaves
from nimble_fx.ir.task_graph import Arg, Ref


def with_values(arg: Arg, values: Mapping[str, Any]) -> Any:
    """An argument with values in place of Refs; fast, because it runs between timed calls."""
    return map_leaves(lambda leaf: values[leaf.name] if type(leaf) is Ref else leaf, arg)
