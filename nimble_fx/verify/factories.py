"""Operators that read only metadata of a tensor, such as `zeros_like`, and what others read."""

import re
from collections.abc import Callable, Iterable
from typing import Any

from nimble_fx.ir.task_graph import Task, ref_names
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.torch_internals.operators import schema_of

_FACTORY = re.compile(r"aten::(new_\w+|\w+_like)")


def is_factory(target: Callable[..., Any]) -> bool:
    """Whether an operator reads only metadata of its first argument."""
    return isinstance(target, OpOverload) and bool(_FACTORY.fullmatch(schema_of(target).name))


def read_values(task: Task) -> Iterable[str]:
    """The names of the values among a launching task's arguments whose data it may read."""
    return ref_names((task.args[1:], task.kwargs)) if is_factory(task.target) else task.uses
