"""Parses an emitted module around the body of `call`: its imports, and the tables at its end."""

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nimble_fx.errors import ScheduleError

_TABLES = ("N_STREAMS", "EVENTS", "INPUTS", "PARAMETERS")
_OPTIONAL: dict[str, Any] = {"MEMORY": {}, "URGENT": None}
_IMPORTS = ("import torch", "aten = torch.ops.aten")
"""The imports that every module has, in this order."""
_MODULES = {f"import {name}": name for name in ("builtins", "math", "operator")}
_SIGNATURE = "inputs, p, streams, e"


@dataclass(frozen=True)
class ModuleTables:
    """The tables at the end of a module: what its caller must pass to `call`.

    Attributes:
        n_streams: the number of streams.
        events: the attributes of e.
        inputs: the items of inputs.
        parameters: the attributes of p.
        memory: for each value without memory of its own, the values whose memory it is in.
        urgent: the stream that a CUDA graph prefers; None for none.
        modules: the modules of Python that it imports, besides torch.
    """

    n_streams: int
    events: tuple[str, ...]
    inputs: tuple[str, ...]
    parameters: tuple[str, ...]
    memory: Mapping[str, tuple[str, ...]]
    urgent: int | None
    modules: frozenset[str]

    @property
    def storages(self) -> dict[str, tuple[str, ...]]:
        """The storages of each input and parameter, by its name in `call`."""
        names = (*self.inputs, *(f"p.{name}" for name in self.parameters))
        return {name: self.memory.get(name, (name,)) for name in names}

    def check(self, n_streams: int, events: Collection[str]) -> None:
        """Compares the tables with the streams that `call` unpacks and the events it records.

        Raises:
            ScheduleError: they differ.
        """
        if self.n_streams != n_streams:
            raise ScheduleError(f"N_STREAMS is {self.n_streams}, but call has {n_streams} streams")
        if differ := sorted(set(self.events) ^ set(events)):
            raise ScheduleError(f"EVENTS and the events that call records differ: {differ}")


def read_module(module: ast.Module, lines: Sequence[str]) -> tuple[ast.FunctionDef, ModuleTables]:
    """The function `call`, and the tables.

    Raises:
        ScheduleError: something is missing, repeated, or not part of an emitted module.
    """
    functions: list[ast.FunctionDef] = []
    tables: dict[str, Any] = {}
    imports: list[str] = []
    known = {*_TABLES, *_OPTIONAL}
    for node in module.body:
        match node:
            case ast.FunctionDef("call") if _is_call(node) and not functions:
                functions.append(node)
            case ast.Assign([ast.Name(name)], value) if name in known and name not in tables:
                tables[name] = _literal(value)
            case ast.Expr(ast.Constant(str())):
                pass
            case _ if (code := ast.unparse(node)) in _IMPORTS or code in _MODULES:
                imports.append(code)
            case _:
                code = lines[node.lineno - 1].strip()
                raise ScheduleError(f"line {node.lineno} is in no emitted module: {code}")
    missing = [name for name in _TABLES if name not in tables] + ["call"] * (not functions)
    if missing:
        raise ScheduleError(f"the module has no {', '.join(missing)}")
    modules = _modules(imports)
    tables = _OPTIONAL | tables
    return functions[0], _checked(modules, *(tables[name] for name in (*_TABLES, *_OPTIONAL)))


def _modules(imports: Sequence[str]) -> frozenset[str]:
    """The modules of Python that a module imports, once it has what every module needs."""
    if tuple(dict.fromkeys(line for line in imports if line in _IMPORTS)) != _IMPORTS:
        raise ScheduleError(f"the module must have the lines {' and '.join(_IMPORTS)}, in order")
    return frozenset(_MODULES[line] for line in imports if line in _MODULES)


def _is_call(function: ast.FunctionDef) -> bool:
    extras = (function.decorator_list, function.returns, getattr(function, "type_params", None))
    return ast.unparse(function.args) == _SIGNATURE and not any(extras)


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError) as error:
        raise ScheduleError(f"line {node.lineno}: a table must be a literal: {error}") from error


def _checked(
    modules: frozenset[str],
    n_streams: Any,
    events: Any,
    inputs: Any,
    parameters: Any,
    memory: Any,
    urgent: Any,
) -> ModuleTables:
    if type(n_streams) is not int:
        raise ScheduleError(f"N_STREAMS is {n_streams!r:.99}, not a number")
    if urgent is not None and (type(urgent) is not int or urgent not in range(n_streams)):
        raise ScheduleError(f"URGENT is {urgent!r}, not one of {n_streams} streams")
    for names in (events, inputs, parameters):
        if not isinstance(names, tuple) or not all(map(_is_name, names)):
            raise ScheduleError(f"EVENTS, INPUTS, PARAMETERS must be tuples of names: {names!r}")
        if len(set(names)) != len(names):
            raise ScheduleError(f"a table has a name twice: {names}")
    tables = ModuleTables(n_streams, events, inputs, parameters, memory, urgent, modules)
    _check_memory(memory, [*inputs, *(f"p.{name}" for name in parameters)])
    return tables


def _is_name(value: Any) -> bool:
    """Whether it is a name that Python allows; the storage of a result, "mm.0", is none."""
    return isinstance(value, str) and value.isidentifier()


def _check_memory(memory: Any, names: Sequence[str]) -> None:
    """Checks that each value in MEMORY names values that have memory of their own."""
    owners = set(names) - set(memory if isinstance(memory, dict) else ())
    for name, lies_in in memory.items() if isinstance(memory, dict) else [(memory, None)]:
        listed = isinstance(lies_in, tuple) and all(isinstance(owner, str) for owner in lies_in)
        if name not in names or not listed or not owners.issuperset(lies_in or ()):
            raise ScheduleError(f"MEMORY has {name!r} in the memory of {lies_in!r}")
