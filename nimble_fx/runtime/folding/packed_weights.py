"""Finds the weights of a program that oneDNN can pack into the layout it prefers."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

from torch import Tensor

from nimble_fx.ir.task_graph import Ref, Task, TaskGraph
from nimble_fx.ir.types import TensorType
from nimble_fx.torch_internals.kernels.onednn import (
    FILTER_POSITION,
    LINEAR,
    WEIGHT_POSITION,
    packed_filter,
    packed_matrix,
)

Pack = Callable[[Tensor], Tensor]
"""Returns a weight in the layout that oneDNN prefers."""


def packings(graph: TaskGraph) -> list[Pack | None]:
    """A function that packs each input of a graph; None for an input to leave unpacked.

    An input is packed if only oneDNN's operators read it, as their weight. With several operators,
    the first one determines the layout.
    """
    tasks_by_input = defaultdict[str, list[Task]](list)
    for task in graph.tasks:
        for name in task.uses:
            tasks_by_input[name].append(task)
    types = graph.types
    return [_packing(value.name, tasks_by_input[value.name], types) for value in graph.inputs]


def _packing(name: str, tasks: Sequence[Task], types: Mapping[str, Any]) -> Pack | None:
    if not tasks or not all(_is_weight(name, task) for task in tasks):
        return None
    first = tasks[0]
    x: TensorType = types[first.args[0].name]
    sizes = [n for n in x.shape if isinstance(n, int)]
    if len(sizes) < len(x.shape):
        return None
    if first.target is LINEAR:
        return partial(packed_matrix, n_rows=prod(sizes[:-1]))
    start = FILTER_POSITION[first.target] + 2
    names = ("padding", "stride", "dilation", "groups")
    window = dict(zip(names, first.args[start : start + 4], strict=True))
    return partial(packed_filter, **window, input_size=sizes)


def _is_weight(name: str, task: Task) -> bool:
    """Whether a value is the weight of a oneDNN operator, and not also another argument."""
    if task.target not in WEIGHT_POSITION:
        return False
    position = [i for i, arg in enumerate(task.args) if arg == Ref(name)]
    return position == [WEIGHT_POSITION[task.target]]
