"""The user's names for what a wrapper's arguments and a model's free variables hold."""

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from torch import nn

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def own_sources(model: Callable[..., Any]) -> dict[str, str]:
    """Replacements for prefixes of Dynamo's sources in a `unique_function` of the model.

    Dynamo describes where a tensor or a module is by code that reads it, from the arguments and
    free variables of the function that it compiles, which is the wrapper `unique_function`:
    `L['args'][0]` for what the model calls `x`, `L['model'].__closure__[0].cell_contents` for what
    it calls `encoder`. The replacements are what Dynamo would write for the model itself:
    `L['x']`, `L['encoder']`.
    """
    forward = model.forward if isinstance(model, nn.Module) else model
    arguments = {f"L['args'][{i}]": _local(name) for i, name in enumerate(_positional(forward))}
    by_keyword = {"L['kwargs']['": "L['"}
    return arguments | by_keyword | dict(_sources_in("L['model']", model, frozenset()))


def _positional(function: Callable[..., Any]) -> list[str]:
    """The names of a function's positional parameters; none of a builtin."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [each.name for each in parameters if each.kind in _POSITIONAL]


def _sources_in(text: str, value: object, around: frozenset[int]) -> Iterator[tuple[str, str]]:
    """The replacements for what a function holds, and the functions that it calls.

    Args:
        text: what Dynamo writes for the function.
        value: the function; nothing is found in other objects.
        around: the identities of the functions that hold it, which may call themselves.
    """
    if id(value) in around:
        return
    around |= {id(value)}
    match value:
        case partial():
            for i, name in enumerate(_positional(value.func)[: len(value.args)]):
                yield f"{text}.args[{i}]", _local(name)
            yield f"{text}.keywords['", "L['"
            yield from _sources_in(f"{text}.func", value.func, around)
        case MethodType():
            yield f"{text}.__self__", _local("self")
            yield from _sources_in(f"{text}.__func__", value.__func__, around)
        case FunctionType():
            yield from _of_function(text, value, around)


def _of_function(
    text: str, function: FunctionType, around: frozenset[int]
) -> Iterator[tuple[str, str]]:
    defaults = function.__defaults__ or ()
    n_positional = function.__code__.co_argcount
    with_default = function.__code__.co_varnames[n_positional - len(defaults) : n_positional]
    for i, name in enumerate(with_default):
        yield f"{text}.__defaults__[{i}]", _local(name)
    yield f"{text}.__kwdefaults__['", "L['"
    free = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for i, (name, cell) in enumerate(free):
        content = f"{text}.__closure__[{i}].cell_contents"
        yield content, _local(name)
        try:
            held = cell.cell_contents
        except ValueError:  # a variable without a value
            continue
        yield from _sources_in(content, held, around)


def _local(name: str) -> str:
    """What Dynamo writes for a variable."""
    return f"L[{name!r}]"
