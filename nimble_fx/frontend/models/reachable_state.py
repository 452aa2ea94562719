"""Finds what a call to a model may change: containers, tensors and random generators."""

import inspect
import sys
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from types import FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

Container = list[Any] | dict[Any, Any] | set[Any] | deque[Any]

_CONTAINERS = (list, dict, set, deque)
_FUNCTIONS = (FunctionType, MethodType, partial)
_LIBRARIES = frozenset({"torch", "nimble_fx", *sys.stdlib_module_names})


class ReachableState(NamedTuple):
    """What a call may change, each object once.

    Attributes:
        containers: lists, dicts, sets and deques; the attributes of an object are a dict.
        tensors: parameters, buffers and others.
        generators: random generators.
    """

    containers: list[Container]
    tensors: list[Tensor]
    generators: list[torch.Generator]


def reachable_state(model: Callable[..., Any], arguments: Sequence[object] = ()) -> ReachableState:
    """What a call to a model may change.

    That is all in the arguments, and in the attributes of modules; for a function, in its defaults,
    its closure and the globals that it names, and of the functions among these; for a method or
    callable object, in its object too. Objects in these are looked into if their classes are from a
    package of the model's or the arguments' own classes: others, such as a trainer or a logger, may
    change meanwhile for reasons of their own. Nothing of PyTorch's and Python's is looked into,
    except modules, containers and `SimpleNamespace`.

    Args:
        model: a module or a function.
        arguments: those of the call that are not tensors.
    """
    found = _Walk(_packages(model, arguments))
    found.walk([*arguments, *([model] if isinstance(model, nn.Module) else _of_callable(model))])
    state = found.containers, found.tensors, found.generators
    return ReachableState(*(list(each.values()) for each in state))  # type: ignore[arg-type]


class _Walk:
    """A walk from object to object."""

    def __init__(self, packages: frozenset[str]) -> None:
        self.containers: dict[int, Container] = {}
        self.tensors: dict[int, Tensor] = {}
        self.generators: dict[int, torch.Generator] = {}
        self._packages = packages
        self._functions: set[int] = set()

    def walk(self, stack: list[object]) -> None:
        """Visits these objects, and all that they refer to."""
        while stack:
            value = stack.pop()
            if isinstance(value, _FUNCTIONS) and id(value) not in self._functions:
                self._functions.add(id(value))
                stack += _referenced(value)
            if isinstance(value, Tensor):
                self.tensors[id(value)] = value
            if isinstance(value, torch.Generator):
                self.generators[id(value)] = value
            stack += self._contents(value)

    def _contents(self, value: object) -> Sequence[object]:
        """The objects in a container or an object; none if it was visited before."""
        if isinstance(value, tuple):
            return value
        container = value if isinstance(value, _CONTAINERS) else self._attributes(value)
        if container is None or id(container) in self.containers:
            return ()
        self.containers[id(container)] = container
        return list(container.values() if isinstance(container, dict) else container)

    def _attributes(self, value: object) -> dict[Any, Any] | None:
        is_own = _package(type(value).__module__) in self._packages
        is_looked_into = isinstance(value, nn.Module | SimpleNamespace) or is_own
        return _attributes(value) if is_looked_into else None


def _packages(model: Callable[..., Any], arguments: Sequence[object]) -> frozenset[str]:
    """The packages of the classes of a model's modules, or of a function, and of arguments."""
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    names = [type(value).__module__ for value in (*modules, *arguments)]
    if not modules:
        called = model.func if isinstance(model, partial) else model
        names.append(str(getattr(called, "__module__", "")))
    return frozenset(map(_package, names)) - _LIBRARIES


def _package(module: str) -> str:
    return module.partition(".")[0]


def _of_callable(model: object) -> list[object]:
    """The objects that a call to the model refers to; the model is not a module."""
    if isinstance(model, _FUNCTIONS):
        return [model]
    return [_attributes(model), type(model).__call__]


def _referenced(function: FunctionType | MethodType | partial[Any]) -> list[object]:
    """The objects that a function refers to besides its arguments."""
    if isinstance(function, partial):
        return [*function.args, *function.keywords.values(), function.func]
    if isinstance(function, MethodType):
        owner, called = function.__self__, function.__func__
        if isinstance(owner, nn.Module):
            return [owner, called]
        return [] if _is_of_library(called) else [_attributes(owner), called]
    if _is_of_library(function):
        return []
    defaults = [function.__defaults__, function.__kwdefaults__]
    try:
        variables = inspect.getclosurevars(function)
    except ValueError:  # a variable of its closure has no value yet
        return [*defaults]
    return [*defaults, *variables.nonlocals.values(), *variables.globals.values()]


def _is_of_library(function: Callable[..., Any]) -> bool:
    """Whether a function is PyTorch's, this package's or Python's; looks through wrappers."""
    return _package(str(function.__module__)) in _LIBRARIES


def _attributes(value: object) -> dict[Any, Any] | None:
    """The attributes of an object, if it has a `__dict__` and is not a class or Python module."""
    is_namespace = isinstance(value, type | ModuleType)
    attributes = None if is_namespace else getattr(value, "__dict__", None)
    return attributes if isinstance(attributes, dict) else None
