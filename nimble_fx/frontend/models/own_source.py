"""The user's names for what a wrapper's arguments and a model's free variables hold."""

import inspect
import re
from collections.abc import Callable
from functools import partial
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from torch import nn

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_ARGUMENT = re.compile(r"L\['args'\]\[(\d+)\]")
_KEYWORD = re.compile(r"L\['kwargs'\]\[('\w+')\]")
_MODEL = "L['model']"
_ATTRIBUTE = re.compile(r"\.(\w+)(?:\[(?:(\d+)|'(\w+)')\])?(\.cell_contents)?")
"""An attribute of a function, and an item of it: `.__closure__[0].cell_contents`."""


class OwnSource:
    """Translates Dynamo's sources in a `unique_function` of a model to those in the model itself.

    Dynamo describes where a tensor or a module is by code that reads it, from the arguments and
    free variables of the function that it compiles, which is the wrapper `unique_function`:
    `L['args'][0]` for what the model calls `x`, `L['model'].__closure__[0].cell_contents` for what
    it calls `encoder`. This returns what Dynamo would write for the model itself: `L['x']`,
    `L['encoder']`.
    """

    def __init__(self, model: Callable[..., Any]) -> None:
        """Sources in the wrapper of this model."""
        self._model = model
        self._names = _positional(model.forward if isinstance(model, nn.Module) else model)

    def __call__(self, source: str) -> str:
        """The source in the model. Cost: O(length)."""
        if (found := _ARGUMENT.match(source)) and int(found[1]) < len(self._names):
            return _local(self._names[int(found[1])]) + source[found.end() :]
        if found := _KEYWORD.match(source):
            return f"L[{found[1]}]" + source[found.end() :]
        if not source.startswith(_MODEL):
            return source
        name, value, position = "model", self._model, len(_MODEL)
        while (found := _ATTRIBUTE.match(source, position)) and (step := _step(value, found)):
            name, value, position = step.name or name, step.value, found.end()
        return _local(name) + source[position:]


class _Step(NamedTuple):
    """The variable that an attribute of a function leads to, "" if it has no name; its value."""

    name: str
    value: Any


def _step(function: Any, found: re.Match[str]) -> _Step | None:
    """What an attribute of a function holds; None for other attributes and other objects."""
    attribute, index, key, is_cell = found.groups()
    match function, attribute:
        case FunctionType(), "__closure__" if index and is_cell:
            cell = (function.__closure__ or ())[int(index)]
            return _Step(function.__code__.co_freevars[int(index)], cell.cell_contents)
        case (FunctionType(), "__kwdefaults__") | (partial(), "keywords") if key:
            return _Step(key, getattr(function, attribute)[key])
        case FunctionType(), "__defaults__" if index:
            code, defaults = function.__code__, function.__defaults__ or ()
            first = code.co_argcount - len(defaults)
            return _Step(code.co_varnames[first + int(index)], defaults[int(index)])
        case partial(), "args" if index and int(index) < len(names := _positional(function.func)):
            return _Step(names[int(index)], function.args[int(index)])
        case MethodType(), "__self__" if not (index or key):
            return _Step("self", function.__self__)
        case (MethodType(), "__func__") | (partial(), "func"):
            return _Step("", getattr(function, attribute))
    return None


def _positional(function: Callable[..., Any]) -> list[str]:
    """The names of a function's positional parameters; none of a builtin."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [each.name for each in parameters if each.kind in _POSITIONAL]


def _local(name: str) -> str:
    """What Dynamo writes for a variable."""
    return f"L[{name!r}]"
