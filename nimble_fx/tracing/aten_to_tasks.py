"""Turns an ATen graph (`torch.fx`, from AOTAutograd) into a TaskGraph.

The storages that an operator reads, writes and aliases come from its schema (which arguments it
writes, which results alias them) and from the fake tensors in `meta["val"]`, whose storages alias
as the real ones will.
"""

import operator
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import torch
from torch.fx import GraphModule, Node

from nimble_fx.errors import UnsupportedError
from nimble_fx.ir.dependencies import hazards
from nimble_fx.ir.operator_aliasing import UNDECLARED_VIEWS, is_view, written_or_returned
from nimble_fx.ir.operators import is_importable
from nimble_fx.ir.task_graph import Arg, Input, Ref, Task, TaskGraph
from nimble_fx.ir.types import ScalarType, TensorType, TupleType, Type
from nimble_fx.torch_internals.leaves import nodes_in, tensors_in, tensors_of
from nimble_fx.torch_internals.names import HigherOrderOperator, OpOverload, pytree
from nimble_fx.torch_internals.obstacles import OBSTACLE
from nimble_fx.torch_internals.operators import (
    does_what_its_schema_says,
    is_composite,
    is_factory,
    is_kernel,
    schema_of,
)
from nimble_fx.torch_internals.storages import storage_key
from nimble_fx.torch_internals.symbolic import NUMBERS
from nimble_fx.tracing.escape_analysis import keeps_to_its_schema
from nimble_fx.tracing.source_lines import fused_sources, line_of, source_of

_Value = TypeVar("_Value", Input, Task)

_LITERALS = (
    int,
    float,
    bool,
    complex,
    str,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)
_READ_NO_DATA = {
    "sym_size",
    "sym_stride",
    "sym_numel",
    "sym_storage_offset",
    "_assert_tensor_metadata",
}
_CHANGE_STORAGE = {
    "_cudnn_rnn_flatten_weight",
    "_resize_output_",
    "accumulate_grad_",
    "resize",
    "resize_",
    "resize_as_",
    "resize_storage_bytes_",
    "set",
    "set_",
    "set_data",
}
_COLLECTIVES = {"c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd"}


@dataclass(frozen=True)
class Traced:
    """The result of `trace`: the task graph, and the values of its constants by name."""

    graph: TaskGraph
    constants: Mapping[str, torch.Tensor]


def trace(
    gm: GraphModule,
    name: str = "program",
    renamed: Mapping[str, str] | None = None,
    static: Iterable[str] = (),
) -> Traced:
    """The task graph of an ATen graph, in program order. Cost: O(nodes).

    Args:
        gm: a graph that AOTAutograd passed to its compiler; each node has `meta["val"]`.
        name: the program's title, such as "Branchy.forward".
        renamed: names to use for placeholders instead of theirs.
        static: the placeholders whose address stays the same: parameters and buffers.

    Raises:
        UnsupportedError: the graph has an operator or a value that cannot be scheduled.
    """
    tracer = _Tracer(gm, renamed or {}, frozenset(static))
    _refuse_user_streams(gm)
    for node in gm.graph.nodes:
        tracer.visit(node)
    graph = TaskGraph(
        name=name,
        inputs=tuple(tracer.inputs),
        constants=tuple(tracer.constants),
        tasks=_with_dependencies(tracer.tasks),
        outputs=tracer.outputs,
        provenance=("trace",),
    )
    _refuse_several_devices(gm)
    values = {node.name: _attribute(gm, node) for node in gm.graph.nodes if node.op == "get_attr"}
    return Traced(graph, values)


class _Tracer:
    """Visits nodes in order and tracks the storage of each value."""

    def __init__(self, gm: GraphModule, renamed: Mapping[str, str], static: frozenset[str]):
        self.inputs: list[Input] = []
        self.constants: list[Input] = []
        self.tasks: list[Task] = []
        self.outputs: tuple[Arg, ...] = ()
        self._gm, self._renamed, self._static = gm, renamed, static
        self._outside: dict[int, str] = {}
        self._storages: defaultdict[Node, dict[int, str]] = defaultdict(dict)
        self._holds: dict[Node, tuple[str, ...]] = {}

    def visit(self, node: Node) -> None:
        """Adds the node's input, constant, task or outputs; nodes must come in order."""
        if node.op == "output":
            returned = self._argument(node, node.args[0])
            self.outputs = returned if isinstance(returned, tuple) else (returned,)
        elif node.op == "placeholder":
            self._add(node, self._input(node, node.name in self._static), self.inputs)
        elif node.op == "get_attr":
            self._add(node, self._constant(node), self.constants)
        else:
            self._add(node, self._task(node), self.tasks)

    def _add(self, node: Node, value: _Value, values: list[_Value]) -> None:
        values.append(value)
        self._holds[node] = value.holds

    def _input(self, node: Node, static: bool) -> Input:
        name = self._name(node)
        keys = [_key(node, tensor) for tensor in tensors_of(node)]
        held = {key: self._outside.setdefault(key, name) for key in keys}
        self._storages[node] = held
        return Input(name, _type(node, node.meta.get("val")), tuple(held.values()), static)

    def _constant(self, node: Node) -> Input:
        value = _attribute(self._gm, node)
        if not isinstance(value, torch.Tensor):
            user = next(iter(node.users), node)
            kind = "graph" if isinstance(value, GraphModule) else type(value).__name__
            raise _unsupported(user, f"is a higher-order operator: it takes a {kind}")
        node.meta.setdefault("val", value)
        return self._input(node, static=True)

    def _task(self, node: Node) -> Task:
        if isinstance(node.target, HigherOrderOperator):
            inner = [x for x in node.args if isinstance(x, (HigherOrderOperator, OpOverload))]
            around = f" around {inner[0]}" if inner else ""
            why = f": {node.meta[OBSTACLE]}" if OBSTACLE in node.meta else ""
            raise _unsupported(node, f"is a higher-order operator{around}{why}")
        return Task(
            name=self._name(node),
            target=node.target,  # type: ignore[arg-type]  # call_function: always callable
            args=self._argument(node, node.args),
            kwargs=tuple((k, self._argument(node, v)) for k, v in node.kwargs.items()),
            type=_type(node, node.meta.get("val")),
            index=len(self.tasks),
            source=source_of(node),
            fused=fused_sources(node),
            **self._effects(node),
        )

    def _effects(self, node: Node) -> dict[str, Any]:
        """The attributes of a task that describe its memory accesses and their order."""
        if isinstance(node.target, OpOverload):
            return self._effects_of_operator(node, node.target)
        if node.target is operator.getitem:
            return {"holds": self._item(node)}
        if isinstance(node.meta.get("val"), NUMBERS) and is_importable(node.target):
            return {}
        raise _unsupported(node, "is not an operator of PyTorch's")

    def _effects_of_operator(self, node: Node, op: OpOverload) -> dict[str, Any]:
        name = schema_of(op).name.split("::")[-1]
        if name in _CHANGE_STORAGE:
            raise _unsupported(node, "replaces the storage of a tensor")
        if op.namespace in _COLLECTIVES:
            raise _unsupported(node, "is a collective, which all ranks must launch in one order")
        operands = self._held(node.all_input_nodes)
        read = self._held(nodes_in((node.args[1:], node.kwargs))) if is_factory(op) else operands
        written, aliased = self._by_schema(node, op)
        results = self._results(node, _common_storage(op, operands, aliased))
        fresh = tuple(s for s in dict.fromkeys(results) if s not in operands)
        effects = {
            "holds": tuple(dict.fromkeys([*results, *aliased])),
            "ordered": _keeps_program_order(op),
        }
        reads_no_data = is_view(op) or name in _READ_NO_DATA
        if reads_no_data and not written and not fresh:
            return effects
        writes = tuple(dict.fromkeys([*written, *fresh]))
        return effects | {"reads": tuple(read), "writes": writes, "allocates": fresh}

    def _results(self, node: Node, same: str | None) -> list[str]:
        """The storages of an operator's results; new ones are named after the task.

        Only its arguments' storages count as known. In a backward, what is computed again has the
        fake tensors of the forward, which a saved view shares, but not the memory.

        Args:
            node: the operator call.
            same: the storage of all results if it is known; it overrides their fake tensors.
        """
        results, name = tensors_of(node), self._name(node)
        labels = [name] if len(results) <= 1 else [f"{name}.{i}" for i in _indices(node)]
        if same is not None:
            labels = [same] * len(results)
        args = [] if _returns_new_memory(node.target) else node.all_input_nodes
        known = {key: s for arg in args for key, s in self._storages[arg].items()}
        keys = [_key(node, tensor) for tensor in results]
        held = [known.setdefault(key, new) for key, new in zip(keys, labels, strict=False)]
        self._storages[node] = dict(zip(keys, held, strict=True))
        return held

    def _item(self, node: Node) -> tuple[str, ...]:
        """The storages of one of an operator's results."""
        several, index = node.args
        if not isinstance(several, Node) or not isinstance(index, int):
            raise _unsupported(node, "selects an item of something other than an operator's result")
        items = tensors_in(several.meta["val"][index])
        held = [self._storages[several][_key(several, item)] for item in items]
        keys = [_key(node, tensor) for tensor in tensors_of(node)]
        self._storages[node] = dict(zip(keys, held, strict=True))
        return tuple(dict.fromkeys(held))

    def _by_schema(self, node: Node, op: OpOverload) -> tuple[dict[str, None], dict[str, None]]:
        """By its schema, the storages that the operator writes and those that its results alias."""
        written: dict[str, None] = {}
        aliased: dict[str, None] = {}
        for i, parameter, is_written, is_returned in written_or_returned(op):
            value = node.args[i] if i < len(node.args) else node.kwargs.get(parameter)
            held = self._held(nodes_in(value))
            if is_written:
                written.update(held)
            if is_returned:
                aliased.update(held)
        return written, aliased

    def _held(self, nodes: Iterable[Node]) -> dict[str, None]:
        """The storages of nodes, each once."""
        return {storage: None for node in nodes for storage in self._holds[node]}

    def _name(self, node: Node) -> str:
        return self._renamed.get(node.name, node.name)

    def _argument(self, node: Node, value: Any) -> Arg:
        if isinstance(value, Node):
            return Ref(self._name(value))
        if isinstance(value, (list, tuple)):
            return tuple([self._argument(node, item) for item in value])
        if isinstance(value, _LITERALS):
            return value
        if isinstance(value, slice):
            parts = (value.start, value.stop, value.step)
            return slice(*(self._argument(node, part) for part in parts))
        raise _unsupported(node, f"has an argument of type {type(value).__name__}")


def _with_dependencies(tasks: list[Task]) -> tuple[Task, ...]:
    after = hazards(task for task in tasks if task.launches)
    return tuple(t.updated(after=after[t.name]) if t.launches else t for t in tasks)


@cache
def _keeps_program_order(op: OpOverload) -> bool:
    """Whether it draws random numbers or may have side effects, as any custom operator may."""
    seeded = torch.Tag.nondeterministic_seeded in op.tags
    returns = schema_of(op).returns or is_kernel(op)
    return seeded or not returns or not does_what_its_schema_says(op)


def _common_storage(op: OpOverload, operands: Iterable[str], aliased: Iterable[str]) -> str | None:
    """The one storage that all results of an operator certainly alias, if there is one.

    A graph pass may have set a new fake tensor on a node, which aliases nothing. Composite
    operators may return a view or a copy: for them the fake tensors decide.
    """
    if op in UNDECLARED_VIEWS:
        storages = list(operands)
    elif _returns_arguments(op):
        storages = list(aliased)
    else:
        return None
    return storages[0] if len(storages) == 1 else None


@cache
def _returns_arguments(op: OpOverload) -> bool:
    """Whether its results certainly alias its arguments; those of composite operators may not."""
    returns = schema_of(op).returns
    return bool(returns) and all(r.alias_info for r in returns) and not is_composite(op)


@cache
def _returns_new_memory(op: OpOverload) -> bool:
    """Whether its results certainly alias no argument.

    The fake kernel of a dropout that is off returns its argument, unlike the kernel.
    """
    is_declared = keeps_to_its_schema(op) and op not in UNDECLARED_VIEWS and not is_composite(op)
    return is_declared and not any(each.alias_info for each in schema_of(op).returns)


def _indices(node: Node) -> list[int]:
    """The positions of the tensors among an operator's results."""
    leaves = pytree.tree_leaves(node.meta.get("val"))
    return [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]


def _type(node: Node, value: Any) -> Type | None:
    if isinstance(value, torch.Tensor):
        shape, stride = map(_sizes, (value.shape, value.stride()))
        bits = value.is_conj(), value.is_neg()
        return TensorType(shape, stride, value.dtype, value.device, *bits)
    if isinstance(value, (list, tuple)):
        return TupleType(tuple(_type(node, item) for item in value))
    if isinstance(value, NUMBERS):
        return ScalarType(str(value))
    if value is None:
        return None
    raise _unsupported(node, f"is a {type(value).__name__}, neither a tensor nor a number")


def _sizes(sizes: Iterable[int | torch.SymInt]) -> tuple[int | str, ...]:
    return tuple([n if type(n) is int else str(n) for n in sizes])


def _key(node: Node, tensor: torch.Tensor) -> int:
    """The key of the storage of a fake tensor."""
    if tensor.layout is not torch.strided:
        raise _unsupported(node, f"is a {tensor.layout} tensor, not a strided one")
    return storage_key(tensor)


def _attribute(gm: GraphModule, node: Node) -> Any:
    return operator.attrgetter(str(node.target))(gm)


def _refuse_user_streams(gm: GraphModule) -> None:
    for node in gm.graph.nodes:
        if "stream" in (node.meta.get("custom") or {}):
            raise _unsupported(node, "runs on a stream that the model chose itself")
    for node in gm.graph.nodes:
        if _orders_streams(node):
            raise _unsupported(node, "orders streams that the model chose itself")


def _orders_streams(node: Node) -> bool:
    """Whether it is an event or a wait of the model's, which PyTorch wraps in `control_deps`."""
    if isinstance(node.target, HigherOrderOperator):
        return str(node.target) == "control_deps"
    return getattr(node.target, "namespace", "") == "streams"


def _refuse_several_devices(gm: GraphModule) -> None:
    first: dict[torch.device, Node] = {}
    for node in gm.graph.nodes:
        for tensor in tensors_of(node):
            first.setdefault(tensor.device, node)
    if len(first) > 1:
        names = " and ".join(map(str, first))
        raise _unsupported(list(first.values())[-1], f"uses a second device: {names}")


def _unsupported(node: Node, why: str) -> UnsupportedError:
    target = str(node.target)
    what = node.name if node.name == target else f"{node.name} ({target})"
    return UnsupportedError(f"{what} {why} [{line_of(node)}]", node.name, source_of(node))
