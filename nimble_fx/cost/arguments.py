"""What an operator is given: a task's arguments with values in place of their names."""

from collections.abc import Mapping
from typing import Any

from nimble_fx.ir.task_graph import Arg, Ref


def filled(arg: Arg, values: Mapping[str, Any]) -> Any:
    """An argument with values in place of names; it is done between timed calls, and so quick."""
    kind = type(arg)
    if kind is Ref:
        return values[arg.name]
    if kind is list or kind is tuple:
        return kind([filled(item, values) for item in arg])
    if kind is dict:
        return {name: filled(item, values) for name, item in arg.items()}
    if kind is slice:
        return slice(*(filled(each, values) for each in (arg.start, arg.stop, arg.step)))
    return arg
