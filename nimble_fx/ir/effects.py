"""What a call of a program does besides returning its results."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch

from nimble_fx.ir.task_graph import Task, TaskGraph
from nimble_fx.ir.types import TensorType, TupleType, Type
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
        names = written_inputs(graph)
        return Effects(
            written=[i for i, value in enumerate(graph.inputs) if value.name in names],
            drawn_on=frozenset(chain(*[_devices(t.type) for t in graph.tasks if _draws(t)])),
            may_be_more=any(map(_is_custom, graph.tasks)),
        )


def _draws(task: Task) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(task.target, "tags", ())


def _devices(of: Type | None) -> Iterator[torch.device]:
    """The devices of an operator's results."""
    if isinstance(of, TensorType):
        yield of.device
    elif isinstance(of, TupleType):
        yield from chain(*map(_devices, of.items))


def _is_custom(task: Task) -> bool:
    op = task.target
    return isinstance(op, OpOverload) and not does_what_its_schema_says(op)
