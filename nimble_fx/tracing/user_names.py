"""Names from the user's code for programs and inputs, as Dynamo recorded them."""

import ast
import linecache
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from nimble_fx.ir.display import printable
from nimble_fx.ir.locked_ast import syntax_tree
from nimble_fx.ir.unique_names import unique
from nimble_fx.torch_internals.dynamo.names import ViewAndMutationMeta
from nimble_fx.torch_internals.names import is_wrapper_subclass
from nimble_fx.tracing.dynamo_paths import (
    is_in_module,
    module_path,
    named_steps,
    path_steps,
    steps_in_model,
)
from nimble_fx.tracing.source_lines import frames_of

_Scope = ast.ClassDef | ast.FunctionDef


def program_name(gm: GraphModule) -> str:
    """The name of the user's function that was compiled, such as "Branchy.forward"."""
    for node in gm.graph.nodes:
        frames = frames_of(node.meta.get("stack_trace") or "")
        first = next((f for f in frames if not _is_wrapper(_scopes(f))), next(iter(frames), None))
        names = [scope.name for scope in _scopes(first)] if first else None
        container = _container(list((node.meta.get("nn_module_stack") or {}).values()), names)
        if container is not None:
            return f"{container}.forward"
        if first is not None:
            return ".".join(names or []) or first["function"]
    return "program"


def _container(modules: Sequence[tuple[str, Any]], names: Sequence[str] | None) -> str | None:
    """The class of the model, if it has a `forward` of PyTorch's that calls others; else None.

    Such a `forward`, as that of `nn.Sequential`, has no frame in stack traces.

    Args:
        modules: the path and class of each module that an operator is in, outermost first.
        names: the classes and functions around the user's line of it; None if it has no line.
    """
    if not modules or not re.fullmatch(r"L\['\w+'\]", modules[0][0]):
        return None
    model, *inner = [getattr(module, "__name__", str(module)) for _, module in modules]
    if names is None:
        return model
    is_inside = any(names[-2:] == [each, "forward"] for each in inner if each != model)
    return model if is_inside else None


class InputNames:
    """The user's names for the inputs of the ATen graphs of one Dynamo graph.

    Attributes:
        static: the names, in ATen graphs, of the inputs that are parameters and buffers.
        tensors: what the inputs of the matched graph are, in order: "layers.0.weight", in a
            function "encoder.layers.0.weight", or "x", and "" for numbers; empty if they could not
            be matched.
    """

    def __init__(self, gm: GraphModule, own_source: Callable[[str], str]) -> None:
        """Reads the names from a Dynamo graph.

        Args:
            gm: the graph.
            own_source: translates Dynamo's sources to those in the user's function.
        """
        self.static: set[str] = set()
        self.tensors: tuple[str, ...] = ()
        static = (i for i, node in enumerate(_placeholders(gm)) if _is_at_fixed_address(node))
        self._first_static = list(islice(static, 1))
        sources = [own_source(source) for source in _sources(gm)]
        inputs = zip(sources, _placeholders(gm), strict=True)
        names = [input_name(source) or node.name for source, node in inputs]
        parts = [_parts(node.meta.get("example_value")) for node in _placeholders(gm)]
        self._names = [n + part for n, of in zip(names, parts, strict=True) for part in of]
        self._are_numbers = [
            not isinstance(node.meta.get("example_value"), Tensor)
            for node, of in zip(_placeholders(gm), parts, strict=True)
            for _ in of
        ]
        paths = zip(input_paths(sources), parts, strict=True)
        self._paths = [path if part == "" else "" for path, of in paths for part in of]
        places = zip(map(place_of, sources), names, parts, strict=True)
        self._places = [(place or name) + part for place, name, of in places for part in of]
        self._wanted: dict[str, str] = {}
        self._path_of: dict[str, str] = {}

    def match_inputs(
        self, gm: GraphModule, metadata: ViewAndMutationMeta | None, n_missing: int = 0
    ) -> None:
        """Matches the inputs of an inference or forward graph with those of the Dynamo graph.

        A backward graph has some of them, under the same names.

        Args:
            gm: the graph.
            metadata: AOTAutograd's, of the graph.
            n_missing: how many inputs, tokens, AOTAutograd took out of the graph before all others;
                not all versions of PyTorch have corrected the metadata.
        """
        placeholders = [node.name for node in _placeholders(gm)]
        matched = self._without_sizes_of_parts(_placeholders(gm))
        if len(matched) == len(self._names):
            self._wanted = dict(zip(matched, self._names, strict=True))
            self._path_of = dict(zip(matched, self._paths, strict=True))
            lines = [" ".join(printable(place).split()) for place in self._places]
            distinct = unique(lines, set())
            known = zip(self._are_numbers, distinct, strict=True)
            self.tensors = tuple(["" if is_number else name for is_number, name in known])
        if metadata is not None:
            found = metadata.static_input_indices
            is_shifted = found[:1] == [i + n_missing for i in self._first_static]
            shift = n_missing if is_shifted else 0
            self.static = {placeholders[i - shift] for i in found}

    def _without_sizes_of_parts(self, placeholders: Sequence[Node]) -> list[str]:
        """The names of the inputs that the Dynamo graph has too.

        Since PyTorch 2.14 the symbolic sizes of a subclass's tensors follow each of these.
        """
        left, names = list(self._are_numbers), list[str]()
        for node in placeholders:
            is_number = not isinstance(node.meta.get("val"), Tensor)
            if left[:1] == [is_number] or not is_number:
                left = left[1:]
                names.append(node.name)
        return names

    @property
    def weights(self) -> set[str]:
        """The inputs in `static` that belong to a module; users write to other static inputs."""
        return {name for name in self.static if self._path_of.get(name)}

    def rename_moved(self, moved: Mapping[str, str]) -> None:
        """Gives copies of inputs on another device the names of the inputs."""
        for copy, original in moved.items():
            self._wanted[copy] = self._wanted.get(original, original)
            self._path_of[copy] = ""

    def add_folded(self, sources: Mapping[str, str]) -> None:
        """Adds inputs that are computed from parameters, each named after one of its parameters.

        They stay at their address as parameters do, and have names such as "conv_weight_folded".
        """
        for result, source in sources.items():
            self.static.add(result)
            self._wanted[result] = f"{self._wanted.get(source, source)}_folded"
            self._path_of[result] = ""

    def user_names(self, gm: GraphModule) -> dict[str, str]:
        """The user's names for the graph's inputs, numbered where another node has that name."""
        names = [node.name for node in gm.graph.nodes]
        known = [name for name in names if name in self._wanted]
        taken = set(names).difference(known)
        chosen = unique([self._wanted[name] for name in known], taken)
        return dict(zip(known, chosen, strict=True))

    def parameters(self, names: Mapping[str, str]) -> dict[str, str]:
        """The model's names of parameters and buffers, "layers.0.weight", by `user_names`."""
        return {new: self._path_of[old] for old, new in names.items() if self._path_of[old]}


def _placeholders(gm: GraphModule) -> list[Node]:
    return list(gm.graph.find_nodes(op="placeholder"))


def _parts(value: object) -> list[str]:
    """What the names of the tensors end with that AOTAutograd passes for an input: "" for itself.

    For a tensor subclass it passes the tensors that this consists of: "_values", "_offsets".
    """
    if not is_wrapper_subclass(value):
        return [""]
    attributes, _ = cast(Any, value).__tensor_flatten__()
    inner = {name: _parts(getattr(value, name)) for name in attributes}
    return [f"_{name.strip('_')}{part}" for name, of in inner.items() for part in of]


def _is_at_fixed_address(node: Node) -> bool:
    """Whether Dynamo says so of an input of its graph: parameters and buffers are."""
    return "_dynamo_static_input_type" in node.meta.get("tensor_dict", {})


def input_paths(sources: Sequence[str]) -> list[str]:
    """The names of inputs in the user's module, by Dynamo's sources: "layers.0.weight".

    "" for an input that is not a module's parameter or buffer. If there are several modules, their
    names in the user's function come first: "encoder.0.weight".
    """
    steps = [path_steps(source) for source in sources]
    if len({found[0] for found in steps if is_in_module(found)}) > 1:
        paths = [place_of(source) for source in sources]
    else:
        paths = [module_path(found[1:]) if is_in_module(found) else "" for found in steps]
    repeated = {path for path, n in Counter(paths).items() if n > 1}
    full = map(module_path, steps)
    return [
        whole if path and path in repeated else path
        for path, whole in zip(paths, full, strict=True)
    ]


def place_of(source: str) -> str:
    """Where a parameter or buffer is, by Dynamo's source: "encoder.0.weight"; "" for others."""
    return module_path(steps_in_model(source)) if is_in_module(path_steps(source)) else ""


def input_name(source: str) -> str:
    """An identifier for an input, by Dynamo's source: "x", "layers_0_weight"; "" for none.

    Args:
        source: such as `L['self']._modules['fc']._parameters['weight']`.
    """
    steps = named_steps(steps_in_model(source) or path_steps(source))
    normal = unicodedata.normalize("NFKC", "_".join(steps))  # as Python reads identifiers
    name = re.sub(r"\W+", "_", normal).strip("_")
    name = f"_{name}" if name[:1].isdigit() else name  # a layer of a Sequential
    return name if name.isidentifier() else ""


def _sources(gm: GraphModule) -> list[str]:
    """Dynamo's source of each input: `L['self']._modules['fc']._parameters['weight']`.

    "" for an input without one, such as a symbolic size.
    """
    return [_source(node) for node in _placeholders(gm)]


def _source(node: Node) -> str:
    grapharg = node.meta.get("grapharg")
    if grapharg is None or isinstance(node.meta.get("example_value"), torch.SymInt):
        return ""
    source = grapharg.source.name
    return str(source() if callable(source) else source)


def _scopes(frame: re.Match[str]) -> list[_Scope]:
    """The classes and functions around a line, outermost first; empty if it cannot be parsed."""
    text = "".join(linecache.getlines(frame["file"]))
    try:
        scope: ast.AST = syntax_tree(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # all that `ast` raises
        return []
    scopes: list[_Scope] = []
    while (inner := _enclosing(scope, int(frame["line"]))) is not None:
        scopes.append(inner)
        scope = inner
    return scopes


def _is_wrapper(scopes: Sequence[_Scope]) -> bool:
    """Whether the innermost is a decorator's wrapper, marked with `@wraps(function)`."""
    decorators = scopes[-1].decorator_list if scopes else []
    return any(re.match(r"(functools\.)?wraps\(", ast.unparse(each)) for each in decorators)


def _enclosing(scope: ast.AST, line: int) -> _Scope | None:
    scopes = (n for n in ast.walk(scope) if isinstance(n, _Scope))
    for node in scopes:
        if node is not scope and node.lineno <= line <= (node.end_lineno or node.lineno):
            return node
    return None
