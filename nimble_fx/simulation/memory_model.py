"""What memory a scheduled graph takes: its values' lives, played to PyTorch's allocator."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from nimble_fx.ir.symbolic_sizes import extent, numbers
from nimble_fx.ir.task_graph import Task, TaskGraph, TensorType, TupleType, Type
from nimble_fx.simulation.caching_allocator import Allocator, Block


@dataclass(frozen=True)
class Footprint:
    """Bytes that a program owns while it is kept frozen; inputs and parameters are not its own.

    Attributes:
        reserved: what the allocator takes of CUDA, in segments of 2 and 20 MiB and more.
        pooled: what streams would take that have a pool each and no segments: the sum of the most
            that each has in use.
        peak: the most that all together have in use at any moment, in launch order.
    """

    reserved: int
    pooled: int
    peak: int


def footprint(graph: TaskGraph) -> Footprint:
    """Plays a capture: what each task allocates, on its stream, and what is freed behind it.

    What kernels use for themselves while they run (workspaces) is not known and not counted.

    Raises:
        UnsupportedError: a size of what a task makes is symbolic (see `sizes.concrete`).
    """
    allocator = Allocator()
    blocks: dict[str, Block] = {}
    holders: Counter[str] = Counter()
    holds = {value.name: value.holds for value in graph.values}
    for task in graph.tasks:
        for storage, nbytes in allocated(task):
            if not nbytes:  # PyTorch asks its allocator for nothing
                continue
            blocks[storage] = allocator.allocate(nbytes, task.stream or 0)
        holders.update(task.holds)
        for name in task.frees:
            holders.subtract(holds[name])
            for storage in holds[name]:
                if not holders[storage] and storage in blocks:
                    allocator.free(blocks.pop(storage))
    reserved, pooled = (sum(each.values()) for each in (allocator.reserved, allocator.peaks))
    return Footprint(reserved, pooled, allocator.peak)


def allocated(task: Task) -> Iterator[tuple[str, int]]:
    """The storages that a task allocates and their bytes.

    A result among several is in a storage named after the task and its position.
    """
    made = list(_leaves(task.type))
    for storage in task.allocates:
        position = storage.removeprefix(f"{task.name}.")
        if position.isdecimal() and storage != task.name:
            yield storage, _nbytes(made[int(position)])
        else:
            yield storage, sum(map(_nbytes, made))


def _leaves(made: Type | None) -> Iterator[Type | None]:
    """What a task returns, result by result."""
    if isinstance(made, TupleType):
        for item in made.items:
            yield from _leaves(item)
    else:
        yield made


def _nbytes(made: Type | None) -> int:
    """From the first to the last byte of a tensor; nothing else has bytes."""
    if not isinstance(made, TensorType):
        return 0
    return extent(numbers(made.shape), numbers(made.stride)) * made.dtype.itemsize
