"""What Dynamo's code passes to its graph and returns, as Python expressions."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from types import CellType, FunctionType
from typing import Any

from nimble_fx.codegen.emit_call import Path
from nimble_fx.frontend.calls.graph_call import with_graph
from nimble_fx.frontend.models.model_function import Arguments


class Expression:
    """Stands for a value: its attributes and items are expressions too.

    Attributes:
        path__: the expression; no attribute of a model has such a name.
    """

    __slots__ = ("path__",)
    __bool__ = None  # a TypeError: which branch to take is not known
    __iter__ = None  # or Python would ask for items 0, 1, ... without end

    def __init__(self, *path: str) -> None:
        self.path__ = path

    def __getattr__(self, name: str) -> "Expression":
        if name.startswith("__"):
            raise TypeError(f"{name} of {''.join(self.path__)} is not known")
        return Expression(*self.path__, f".{name}")

    def __getitem__(self, key: object) -> "Expression":
        if type(key) not in (int, str):
            raise TypeError(f"an item of {''.join(self.path__)} is selected by {key!r}")
        return Expression(*self.path__, f"[{key!r}]")


@dataclass(frozen=True)
class CallExpressions:
    """The expressions of a call.

    Attributes:
        passed: the arguments of the graph, in terms of `args`, `kwargs` and free variables.
        returned: what the code returns, in terms of these and `outputs`, those of the graph.
        classes: the classes of named tuples in it, by the names that it has for them.
    """

    passed: Sequence[Path]
    returned: str
    classes: dict[str, type]


def call_expressions(
    code: FunctionType, graph: str, example: Arguments, n_outputs: int
) -> CallExpressions:
    """Runs code with expressions instead of arguments, free variables and the graph's outputs.

    Args:
        code: Dynamo's code, without effects besides those of its graph.
        graph: the global name by which it calls its graph.
        example: arguments, of which only the number and the keywords matter.
        n_outputs: the number of the graph's outputs.

    Raises:
        TypeError: the code does more than to read attributes and items, or returns more than these
            in lists, dicts and (named) tuples, with constants.
    """
    passed: list[object] = []

    def record(*args: object) -> Sequence[Expression]:
        passed.extend(args)
        return [Expression("outputs", f"[{k}]") for k in range(n_outputs)]

    cells = tuple(CellType(Expression(name)) for name in code.__code__.co_freevars)
    run = with_graph(code, graph, record, cells)
    args = [Expression("args", f"[{k}]") for k in range(len(example.args))]
    returned = run(*args, **{key: Expression("kwargs", f"[{key!r}]") for key in example.kwargs})
    packed = _Packed()
    text = packed.text(returned)
    return CallExpressions(list(map(_path, passed)), text, packed.classes)


def _path(value: object) -> Path:
    if not isinstance(value, Expression):
        raise TypeError(f"it passes a {type(value).__name__} of its own")
    path: Path = value.path__
    return path


@dataclass
class _Packed:
    """Writes returned values as text.

    Attributes:
        classes: see `CallExpressions`.
        seen: the containers so far. One that is returned twice would become two.
    """

    classes: dict[str, type] = field(default_factory=dict)
    seen: list[object] = field(default_factory=list)

    def text(self, value: Any) -> str:
        """A value as text.

        Raises:
            TypeError: it has another type, or is a container that was returned before.
        """
        kind = type(value)
        if kind is Expression:
            return "".join(value.path__)
        if value is None or kind in (bool, int, str) or (kind is float and isfinite(value)):
            return repr(value)
        if not isinstance(value, (dict, list, tuple)):
            raise TypeError(f"it returns a {kind.__name__}")
        if kind is tuple and not value:
            return "()"
        if any(value is each for each in self.seen):
            raise TypeError("it returns an object twice")
        self.seen.append(value)
        return self._container(kind, value)

    def _container(self, kind: type, value: Any) -> str:
        if kind is dict and all(type(key) in (int, str) for key in value):
            return "{" + ", ".join(f"{k!r}: {self.text(v)}" for k, v in value.items()) + "}"
        if kind is list:
            return "[" + ", ".join(map(self.text, value)) + "]"
        if kind is tuple:
            return "(" + "".join(f"{self.text(each)}, " for each in value) + ")"
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            name = f"result_{len(self.classes)}"
            self.classes[name] = kind
            return f"{name}({', '.join(map(self.text, value))})"
        raise TypeError(f"it returns a {kind.__name__}")
