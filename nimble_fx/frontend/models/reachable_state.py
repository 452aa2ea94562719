"""Finds what a call to a model may change: containers, tensors and random generators."""

import dis
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from types import CellType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

Container = list[Any] | dict[Any, Any] | set[Any] | deque[Any] | CellType

_CONTAINERS = (list, dict, set, deque, CellType)
_FUNCTIONS = (FunctionType, MethodType, partial)
_READ_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_LIBRARIES = frozenset({"torch", "nimble_fx", *sys.stdlib_module_names})


class ReachableState(NamedTuple):
    """What a call may change, each object once.

    Attributes:
        containers: lists, dicts, sets and deques; the attributes of an object are a dict, and a
            variable of a closure is a cell.
        tensors: parameters, buffers and others, and those on the memory of NumPy arrays.
        generators: random generators.
    """

    containers: list[Container]
    tensors: list[Tensor]
    generators: list[torch.Generator]


def reachable_state(model: Callable[..., Any], arguments: Sequence[object] = ()) -> ReachableState:
    """What a call to a model may change.

    That is all in the arguments, and in the attributes of modules; for a function, in its defaults,
    its attributes, its closure and the globals that it names, and of the functions among these; for
    a method or callable object, in its object too. Objects in these are looked into if their
    classes are from a package of the model's or the arguments' own classes: others, such as a
    trainer or a logger, may change meanwhile for reasons of their own. Nothing of PyTorch's and
    Python's is looked into, except modules, containers, cells and `SimpleNamespace`.

    It does not find `__slots__`, iterators, which objects the names of globals are bound to, nor
    attributes of classes and tensors.

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
        self._visited: dict[int, object] = {}  # tuples and functions; keeps them, and so their ids

    def walk(self, stack: list[object]) -> None:
        """Visits these objects, and all that they refer to."""
        while stack:
            value = stack.pop()
            if isinstance(value, (*_FUNCTIONS, tuple)) and id(value) not in self._visited:
                self._visited[id(value)] = value
                stack += value if isinstance(value, tuple) else _referenced(value)
            memory = _memory(value)
            if memory is not None:
                self.tensors[id(value)] = memory
            if isinstance(value, torch.Generator):
                self.generators[id(value)] = value
            stack += self._contents(value)

    def _contents(self, value: object) -> Sequence[object]:
        """The objects in a container or an object; none if it was visited before."""
        found: list[object] = []
        for container in (value, self._attributes(value)):
            if isinstance(container, _CONTAINERS) and id(container) not in self.containers:
                self.containers[id(container)] = container
                found += items_of(container)
        return found

    def _attributes(self, value: object) -> dict[Any, Any] | None:
        is_own = _package(type(value).__module__) in self._packages
        is_looked_into = isinstance(value, nn.Module | SimpleNamespace) or is_own
        return _attributes(value) if is_looked_into else None


def items_of(container: Container) -> list[Any]:
    """The items of a list, deque or set, the value of a cell, or the keys and values of a dict.

    By the methods of the built-in types: those of subclasses may refuse to, or do more.
    """
    match container:
        case list():
            return list.copy(container)
        case deque():
            return [*deque.__iter__(container)]
        case set():
            return [*set.__iter__(container)]
        case CellType():
            with suppress(ValueError):  # a variable that has no value yet
                return [container.cell_contents]
            return []
        case OrderedDict():
            return [*chain.from_iterable(OrderedDict.items(container))]
    return [*chain.from_iterable(dict.items(container))]


def _memory(value: object) -> Tensor | None:
    """A tensor itself, or a tensor on the memory of a NumPy array; None for anything else."""
    if isinstance(value, Tensor):
        return value
    numpy: Any = sys.modules.get("numpy")  # which PyTorch can do without
    if numpy is None or not isinstance(value, numpy.ndarray) or not value.flags.writeable:
        return None
    with suppress(TypeError, ValueError):  # types and strides that PyTorch does not have
        return torch.from_numpy(value)
    return None


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
    known = function.__globals__
    named = [known[name] for name in _global_names(function.__code__) if name in known]
    own = [function.__defaults__, function.__kwdefaults__, function.__dict__]
    return [*own, *(function.__closure__ or ()), *named]


def _global_names(code: CodeType) -> dict[str, None]:
    """The global names that code reads, or a function or comprehension in it, each once."""
    names = {i.argval: None for i in dis.get_instructions(code) if i.opname in _READ_GLOBALS}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            names.update(_global_names(inner))
    return names


def _is_of_library(function: Callable[..., Any]) -> bool:
    """Whether a function is PyTorch's, this package's or Python's; looks through wrappers."""
    return _package(str(function.__module__)) in _LIBRARIES


def _attributes(value: object) -> dict[Any, Any] | None:
    """The attributes of an object, if it has a `__dict__` and is not a class or Python module."""
    is_namespace = isinstance(value, type | ModuleType)
    attributes = None if is_namespace else getattr(value, "__dict__", None)
    return attributes if isinstance(attributes, dict) else None
