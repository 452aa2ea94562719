"""Elementwise operators write their result over an operand that nobody reads again.

In eager, models say so themselves (`nn.ReLU(inplace=True)`), and autograd does it where it sums
gradients; AOTAutograd's graphs never do. A result of its own costs memory, and on a CPU the faults
of its fresh pages, which may take longer than the operation.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import torch

from nimble_fx.ir.task_graph import Arg, Ref, Task, TaskGraph, TensorType, Type, ref_names
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.torch_internals.operators import is_composite, overload_name, schema_of

_aten = torch.ops.aten
_REARRANGE = {
    _aten._unsafe_view.default,
    _aten.alias.default,
    _aten.detach.default,
    _aten.permute.default,
    _aten.squeeze.default,
    _aten.squeeze.dim,
    _aten.squeeze.dims,
    _aten.t.default,
    _aten.transpose.int,
    _aten.unsqueeze.default,
    _aten.view.default,
}
"""Views of all elements of a tensor, each once."""

_DATA_DEPENDENT = re.compile(r"\bu\d")
"""What PyTorch calls sizes that data decide: "u0"."""


@dataclass(frozen=True)
class ReinplacePointwise:
    """Makes an elementwise operator write its result over its first operand.

    An operator becomes its in-place form where its first operand is the whole of a tensor that
    another task made, has the result's shape, strides and element type, and is read by no other
    task and held by no output. Operands whose fake tensor may have another element type than the
    real one are left alone, because the result's type may then differ too. So are single numbers:
    the memory of one may hold all the elements that it is the sum of (`mse_loss`).

    Requires: a traced graph: in program order, with its dependencies, not scheduled.
    Ensures: the same results from fewer allocations; the same orders between tasks.

    Before: c = a.add(b); d = c.relu()
    After:  c = a.add(b); d = c.relu_()
    """

    name = "reinplace-pointwise"

    def __call__(self, graph: TaskGraph) -> TaskGraph:
        """The graph with fewer allocations. Cost: O(size of the graph)."""
        operands = _Operands(graph)
        lies_in: dict[str, str] = {}
        tasks = []
        for task in graph.tasks:
            storage = operands.overwritten_by(task)
            if storage is not None:
                lies_in[task.allocates[0]] = lies_in.get(storage, storage)
                task = task.updated(target=in_place_form(task.target), allocates=())
            tasks.append(_moved(task, lies_in))
        return graph.replace_tasks(tasks)


class _Operands:
    """Which tensors of a graph may be written over, and by whom."""

    def __init__(self, graph: TaskGraph) -> None:
        self._values = {value.name: value for value in graph.values}
        accesses = Counter(s for task in graph.launching for s in {*task.reads, *task.writes})
        returned = {s for name in ref_names(graph.outputs) for s in self._values[name].holds}
        self._read_once = {s for s, n in accesses.items() if n == 2} - returned
        self._doubtful = self._of_doubtful_type(graph)
        self._whole: dict[str, str] = {}
        for task in graph.tasks:
            storage = self._made(task)
            if storage is not None:
                self._whole[task.name] = storage

    def overwritten_by(self, task: Task) -> str | None:
        """The storage of the operand that a task may write its result over, if there is one."""
        operand, storage = self._first(task)
        if storage not in self._read_once or in_place_form(task.target) is None:
            return None
        if self._values[operand].type != task.type or not _has_one_layout(task.type):
            return None
        if not self._doubtful.isdisjoint(task.uses):
            return None
        n_operands = sum(storage in self._values[name].holds for name in task.uses)
        return storage if n_operands == 1 else None

    def _of_doubtful_type(self, graph: TaskGraph) -> set[str]:
        """The values whose element type may be another than their fake tensors'.

        Those are statistics of norms whose weights and inputs are of two types, on a CPU, and what
        is computed from them.
        """
        doubtful: set[str] = set()
        for task in graph.tasks:
            if task.is_item:
                is_first = task.args[1] == 0
                is_doubtful = not is_first and self._mixes_types(task.uses)
            else:
                is_doubtful = not doubtful.isdisjoint(task.uses)
            if is_doubtful:
                doubtful.add(task.name)
        return doubtful

    def _mixes_types(self, names: Iterable[str]) -> bool:
        """Whether the operator of that name takes floating-point tensors of several types."""
        (maker,) = (self._values[name] for name in names)
        taken = [self._values[name].type for name in getattr(maker, "uses", ())]
        dtypes = {each.dtype for each in taken if isinstance(each, TensorType)}
        return len({dtype for dtype in dtypes if dtype.is_floating_point}) > 1

    def _first(self, task: Task) -> tuple[str, str | None]:
        """A task's first argument, and the storage that it is the whole of; None if it is not."""
        name = task.args[0].name if task.args and isinstance(task.args[0], Ref) else ""
        return name, self._whole.get(name)

    def _made(self, task: Task) -> str | None:
        """The storage that a task's value is the whole of, made by a task that tells the truth."""
        if task.target in _REARRANGE:
            return self._first(task)[1]
        maker = self._values[task.args[0].name] if task.is_item else task
        if not isinstance(maker, Task) or len(task.holds) != 1 or not _makes_new(maker.target):
            return None
        return task.holds[0] if task.holds[0] in maker.allocates else None


def _has_one_layout(value: Type | None) -> bool:
    """Whether a tensor of its strides is laid out in one way only, if it has several elements.

    The stride of a dimension of size 1 means nothing: operators choose it anew, and a fake tensor
    may not tell how. The first one's, of a batch of one, is that of the whole. A size that depends
    on data may turn out to be 1 or 0; other symbolic sizes are neither, by Dynamo's guards.
    """
    if not isinstance(value, TensorType) or not value.shape or 0 in value.shape:
        return False
    if any(_DATA_DEPENDENT.search(str(size)) for size in value.shape):
        return False
    first, *others = value.shape
    if 1 in others:
        return False
    step, sizes = value.stride[0], [n for n in others if isinstance(n, int)]
    is_symbolic = len(sizes) < len(others)
    return first != 1 or (isinstance(step, str) if is_symbolic else step == prod(sizes))


def _moved(task: Task, lies_in: dict[str, str]) -> Task:
    """The task, where the memory of some values has become that of others."""
    if lies_in.keys().isdisjoint((*task.reads, *task.writes, *task.holds)):
        return task
    places = {"reads": task.reads, "writes": task.writes, "holds": task.holds}
    return task.updated(**{k: tuple([lies_in.get(s, s) for s in v]) for k, v in places.items()})


@cache
def _makes_new(target: Any) -> bool:
    """Whether the memory of an operator's results is new: custom ones may not say what they do."""
    if not isinstance(target, OpOverload) or target.namespace not in ("aten", "prims"):
        return False
    return not is_composite(target) and all(r.alias_info is None for r in schema_of(target).returns)


@cache
def in_place_form(target: Any) -> OpOverload | None:
    """The operator that writes an elementwise operator's result over its first argument."""
    if not isinstance(target, OpOverload) or torch.Tag.pointwise not in target.tags:
        return None
    if torch.Tag.nondeterministic_seeded in target.tags or not _makes_new(target):
        return None
    packet = getattr(torch.ops.aten, f"{schema_of(target).name.removeprefix('aten::')}_", None)
    form = getattr(packet, overload_name(target), None)
    return form if isinstance(form, OpOverload) and _writes_first(form, target) else None


def _writes_first(form: OpOverload, target: OpOverload) -> bool:
    """Whether it takes what the target takes, and writes the first argument and no other."""
    first, *others = schema_of(form).arguments
    writes = first.alias_info is not None and first.alias_info.is_write
    is_alike = _parameters(form) == _parameters(target) and not is_composite(form)
    return writes and is_alike and all(other.alias_info is None for other in others)


def _parameters(op: OpOverload) -> list[tuple[str, str, Arg, bool]]:
    return [(p.name, str(p.type), p.default_value, p.kwarg_only) for p in schema_of(op).arguments]
