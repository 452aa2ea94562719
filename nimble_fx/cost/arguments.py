"""What an operator is given: a task's arguments with values in place of their names."""

from collections.abc import Mapping
from typing import Any

from nimble_fx.ir.arguments import map_leaves
from nimble_fx.ir.task_graph import Arg, Ref


def filled(arg: Arg, values: Mapping[str, Any]) -> Any:
    """The argument with values in place of their names."""
    return map_leaves(lambda leaf: values[leaf.name] if type(leaf) is Ref else leaf, arg)
