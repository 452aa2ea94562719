"""Which weights of a program oneDNN can pack into a layout that its convolutions prefer."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from nimble_fx.ir.task_graph import Ref, Task, TaskGraph, TensorType
from nimble_fx.torch_internals.onednn import WEIGHT_POSITION

Layout = tuple[Any, ...]
"""What a weight is packed for: padding, stride, dilation, groups and the size of the images."""


def layouts(graph: TaskGraph) -> list[Layout | None]:
    """What each input of a graph can be packed for; None if it is to stay as it is.

    An input is packed if it is the weight of oneDNN's convolutions and nothing else reads it. Of
    several convolutions the first decides.
    """
    tasks_by_input = defaultdict[str, list[Task]](list)
    for task in graph.tasks:
        for name in task.uses:
            tasks_by_input[name].append(task)
    types = {value.name: value.type for value in graph.values}
    return [_layout(value.name, tasks_by_input[value.name], types) for value in graph.inputs]


def _layout(name: str, tasks: Sequence[Task], types: Mapping[str, Any]) -> Layout | None:
    if not tasks or not all(_is_weight(name, task) for task in tasks):
        return None
    first = tasks[0]
    images: TensorType = types[first.args[0].name]
    if any(type(n) is not int for n in images.shape):
        return None
    start = WEIGHT_POSITION[first.target] + 2
    return (*first.args[start : start + 4], images.shape)


def _is_weight(name: str, task: Task) -> bool:
    """Whether a value is the weight of a convolution, and no other argument of it."""
    if task.target not in WEIGHT_POSITION:
        return False
    position = [i for i, arg in enumerate(task.args) if arg == Ref(name)]
    return position == [WEIGHT_POSITION[task.target]]
