"""What a call of a program does besides returning its results."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from nimble_fx.ir.task_graph import Task, TaskGraph
from nimble_fx.ir.types import tensor_types
from nimble_fx.ir.written_inputs import written_inputs
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.torch_internals.operators import does_what_its_schema_says


@dataclass(frozen=True)
class Effects:
    """The effects of a call.

    Attributes:
        written: the positions of the inputs that it writes to.
        drawn_on: the devices on which it may draw random numbers.
        may_be_more: whether it may do what no schema says, as any custom operator may.
    """

    written: Sequence[int]
    drawn_on: frozenset[torch.device]
    may_be_more: bool

    @staticmethod
    def of(graph: TaskGraph) -> "Effects":
        """The effects of a graph's tasks."""
        names, drawing = written_inputs(graph), filter(_draws, graph.tasks)
        return Effects(
            written=[i for i, value in enumerate(graph.inputs) if value.name in names],
            drawn_on=frozenset(each.device for task in drawing for each in tensor_types(task.type)),
            may_be_more=any(map(_is_custom, graph.tasks)),
        )


def _draws(task: Task) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(task.target, "tags", ())


def _is_custom(task: Task) -> bool:
    op = task.target
    return isinstance(op, OpOverload) and not does_what_its_schema_says(op)
