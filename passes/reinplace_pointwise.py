"""Replaces elementwise operators by in-place forms where no task reads the operand again.

In eager, models ask for that (`nn.ReLU(inplace=True)`), and autograd does it where it sums
gradients; AOTAutograd's graphs are functionalized. A new result costs memory, and on a CPU the page
faults of fresh memory, which may take longer than the operation.
"""

import re
from collections import Counter
from dataclasses import dataclass
from math import prod

import torch

from nimble_fx.ir.operator_aliasing import is_autograd_view
from nimble_fx.ir.task_graph import Ref, Task, TaskGraph, ref_names
from nimble_fx.ir.types import TensorType, Type
from nimble_fx.torch_internals.in_place_forms import (
    allocates_results,
    elementwise_in_place_form,
)
from nimble_fx.torch_internals.names import OpOverload

_aten = torch.ops.aten
_WHOLE_VIEWS = {
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
"""PyTorch's names of data-dependent sizes: "u0"."""


@dataclass(frozen=True)
class ReinplacePointwise:
    """Replaces an elementwise operator by its in-place form.

    The first operand must be a whole tensor that another task allocated, have the result's shape,
    strides and dtype, and be read by no other task and aliased by no output. Scalars are excluded:
    the memory of one may have all the elements that it is the sum of (`mse_loss`). A result that is
    returned does not overwrite a view (`is_autograd_view`).

    Requires: a traced graph: in program order, with its dependencies, not scheduled.
    Ensures: the same results from fewer allocations; the same dependencies.

    Before: c = a.add(b); d = c.relu()
    After:  c = a.add(b); d = c.relu_()
    """

    name = "reinplace-pointwise"

    def __call__(self, graph: TaskGraph) -> TaskGraph:
        """The graph with fewer allocations. Cost: O(size of the graph)."""
        overwritten = _Operands(graph).overwritten
        merged: dict[str, str] = {}
        tasks = []
        for task in graph.tasks:
            storage = overwritten.get(task.name)
            if storage is not None:
                merged[task.allocates[0]] = merged.get(storage, storage)
                task = task.updated(target=elementwise_in_place_form(task.target), allocates=())
            tasks.append(_with_storages(task, merged))
        return graph.replace_tasks(tasks)


class _Operands:
    """Finds the operands of a graph that may be overwritten.

    Attributes:
        overwritten: names of tasks to the storages that their in-place forms would overwrite.
    """

    def __init__(self, graph: TaskGraph) -> None:
        self._values = {value.name: value for value in graph.values}
        accesses = Counter(s for task in graph.launching for s in {*task.reads, *task.writes})
        self._returned = {s for name in ref_names(graph.outputs) for s in self._values[name].holds}
        self._read_once = {s for s, n in accesses.items() if n == 2} - self._returned
        self._whole: dict[str, str] = {}
        self._views: set[str] = set()
        self.overwritten: dict[str, str] = {}
        for task in graph.tasks:
            whole, overwritten = self._whole_storage(task), self._overwritten_by(task)
            if whole is not None:
                self._whole[task.name] = whole
            if overwritten is not None:
                self.overwritten[task.name] = overwritten
            if self._is_view(task):
                self._views.add(task.name)

    def _is_view(self, task: Task) -> bool:
        """Whether autograd would regard a task's value as a view."""
        if task.name in self.overwritten:
            return self._first(task)[0] in self._views
        return isinstance(task.target, OpOverload) and is_autograd_view(task.target)

    def _overwritten_by(self, task: Task) -> str | None:
        operand, storage = self._first(task)
        if storage not in self._read_once or elementwise_in_place_form(task.target) is None:
            return None
        if self._values[operand].type != task.type or not _has_one_layout(task.type):
            return None
        if operand in self._views and not self._returned.isdisjoint(task.allocates):
            return None
        n_operands = sum(storage in self._values[name].holds for name in task.uses)
        return storage if n_operands == 1 else None

    def _first(self, task: Task) -> tuple[str, str | None]:
        """A task's first argument, and its storage if it is the whole of that, else None."""
        name = task.args[0].name if task.args and isinstance(task.args[0], Ref) else ""
        return name, self._whole.get(name)

    def _whole_storage(self, task: Task) -> str | None:
        """The storage that a task's value is the whole of, if its schema is reliable; else None."""
        if task.target in _WHOLE_VIEWS:
            return self._first(task)[1]
        maker = self._values[task.args[0].name] if task.is_item else task
        if (
            not isinstance(maker, Task)
            or len(task.holds) != 1
            or not allocates_results(maker.target)
        ):
            return None
        return task.holds[0] if task.holds[0] in maker.allocates else None


def _has_one_layout(value: Type | None) -> bool:
    """Whether shape and layout determine the strides of a tensor, if it has several elements.

    The stride of a dimension of size 1 is arbitrary: operators may choose another one than their
    fake tensors. For the first dimension, a batch of one, the stride must be that of the whole. A
    data-dependent size may turn out to be 1 or 0; other symbolic sizes are neither, by Dynamo's
    guards.
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


def _with_storages(task: Task, merged: dict[str, str]) -> Task:
    """The task with some storages replaced by others."""
    if merged.keys().isdisjoint((*task.reads, *task.writes, *task.holds)):
        return task
    storages = {"reads": task.reads, "writes": task.writes, "holds": task.holds}
    return task.updated(**{k: tuple([merged.get(s, s) for s in v]) for k, v in storages.items()})
