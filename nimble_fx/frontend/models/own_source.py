"""The user's names for what a wrapper's arguments and a model's free variables hold."""

import inspect
import re
from collections.abc import Callable
from functools import partial
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from torch import nn

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_PASSES_ALL = [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD]
_ARGUMENT = re.compile(r"L\['args'\]\[(\d+)\]")
_KEYWORD = re.compile(r"""L\['kwargs'\]\[('[^']*'|"[^"]*")\]""")
_MODEL = "L['model']"
_ATTRIBUTE = re.compile(r"\.(\w+)(?:\[(?:(\d+)|'(\w+)')\])?(\.cell_contents)?")
"""An attribute of a function, and an item of it: `.__closure__[0].cell_contents`."""


class OwnSource:
    """Translates Dynamo's sources in a `unique_function` of a model to those in the model itself.

    Dynamo describes where a tensor or a module is by code that reads it, from the arguments and
    free variables of the function that it compiles, which is the wrapper `unique_function`:
    `L['args'][0]` for what the model calls `x`, `L['model'].__closure__[0].cell_contents` for what
    it calls `encoder`. This returns what Dynamo would write for the model itself: `L['x']`,
    `L['encoder']`; `L['self']` is the model.
    """

    def __init__(self, model: Callable[..., Any]) -> None:
        """Sources in the wrapper of this model."""
        self._model = model
        function = _with_parameters(model)
        self._names, self._rest = _positional(function), _rest(function)

    def __call__(self, source: str) -> str:
        """The source in the model. Cost: O(length)."""
        if (found := _ARGUMENT.match(source)) and (name := self._argument(int(found[1]))):
            return name + source[found.end() :]
        if found := _KEYWORD.match(source):
            return f"L[{found[1]}]" + source[found.end() :]
        if not source.startswith(_MODEL):
            return source
        name, value, position = "self", self._model, len(_MODEL)
        while (found := _ATTRIBUTE.match(source, position)) and (step := _step(value, found)):
            name, value, position = step.name or name, step.value, found.end()
        return _local(name) + source[position:]

    def _argument(self, index: int) -> str:
        """The source of an argument that is passed by position, "" if its parameter is unknown."""
        if index < len(self._names):
            return _local(self._names[index])
        return f"{_local(self._rest)}[{index - len(self._names)}]" if self._rest else ""


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
    """The names of a function's positional parameters."""
    return [each.name for each in _parameters(function) if each.kind in _POSITIONAL]


def _rest(function: Callable[..., Any]) -> str:
    """The name of a function's `*args`; "" without one, or if a `partial` may have some of them."""
    kinds = {each.kind: each.name for each in _parameters(function)}
    has_some = isinstance(function, partial) and function.args
    return "" if has_some else kinds.get(inspect.Parameter.VAR_POSITIONAL, "")


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a function; none of a builtin."""
    try:
        return list(inspect.signature(function, follow_wrapped=False).parameters.values())
    except (TypeError, ValueError):
        return []


def _with_parameters(model: Callable[..., Any]) -> Callable[..., Any]:
    """The function whose parameters a call's arguments are for: behind wrappers that pass all."""
    passes_all = [each.kind for each in _parameters(model)] == _PASSES_ALL
    if passes_all and isinstance(model, nn.Module):
        return _with_parameters(model.forward)
    wrapped = getattr(model, "__wrapped__", None) if passes_all else None
    if wrapped is None:
        return model
    # What a bound method's wrapper wraps takes the object first.
    owner = getattr(model, "__self__", None)
    return _with_parameters(wrapped if owner is None else MethodType(wrapped, owner))


def _local(name: str) -> str:
    """What Dynamo writes for a variable."""
    return f"L[{name!r}]"
