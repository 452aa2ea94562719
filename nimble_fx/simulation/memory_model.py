"""The memory of a scheduled graph, by simulating PyTorch's allocator on the lives of its values."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from nimble_fx.ir.symbolic_sizes import extent_nbytes
from nimble_fx.ir.task_graph import Task, TaskGraph
from nimble_fx.ir.types import TensorType, TupleType, Type
from nimble_fx.ir.workspaces import takes_workspace, workspace_limit
from nimble_fx.simulation.caching_allocator import Allocator, Block


@dataclass(frozen=True)
class Footprint:
    """Bytes that a frozen program owns, which inputs and parameters are not part of.

    Attributes:
        reserved: the bytes that the allocator takes from CUDA, in segments of 2, 20 and more MiB.
        pooled: the sum of the peaks of the streams: their memory in pools without segments.
        peak: the most bytes in use at any moment, in launch order.
    """

    reserved: int
    pooled: int
    peak: int


def footprint(graph: TaskGraph, workspace_nbytes: int = 0) -> Footprint:
    """The memory of a program, by simulating the allocations and frees of its capture.

    What kernels allocate for themselves while they run is not known and not counted.

    Args:
        graph: a scheduled graph.
        workspace_nbytes: what libraries take for each stream with matrix products, unless all of
            these are so small that less suffices (see `ir.workspaces`).

    Raises:
        UnsupportedError: a size of a task's result is symbolic (see `symbolic_sizes.concrete`).
    """
    allocator = Allocator()
    blocks: dict[str, Block] = {}
    holders: Counter[str] = Counter()
    holds = {value.name: value.holds for value in graph.values}
    limit, with_workspace = workspace_limit(graph), set[int]()
    workspace = workspace_nbytes if limit is None else min(limit, workspace_nbytes)
    for task in graph.tasks:
        stream = task.stream or 0
        for storage, nbytes in allocated(task):
            if not nbytes:  # PyTorch asks its allocator for nothing
                continue
            blocks[storage] = allocator.allocate(nbytes, stream)
        if workspace and stream not in with_workspace and takes_workspace(task):
            with_workspace.add(stream)
            allocator.allocate(workspace, stream)
        holders.update(task.holds)
        for name in task.frees:
            holders.subtract(holds[name])
            for storage in holds[name]:
                if not holders[storage] and storage in blocks:
                    allocator.free(blocks.pop(storage))
    reserved, pooled = (sum(each.values()) for each in (allocator.reserved, allocator.peaks))
    return Footprint(reserved, pooled, allocator.peak)


def allocated(task: Task) -> Iterator[tuple[str, int]]:
    """The storages that a task allocates, with their bytes.

    The storage of one of several results is named after the task and its position.
    """
    results = list(_leaves(task.type))
    for storage in task.allocates:
        position = storage.removeprefix(f"{task.name}.")
        if position.isdecimal():
            yield storage, _nbytes(results[int(position)])
        else:
            yield storage, sum(map(_nbytes, results))


def _leaves(result: Type | None) -> Iterator[Type | None]:
    """The types of a task's results."""
    if isinstance(result, TupleType):
        for item in result.items:
            yield from _leaves(item)
    else:
        yield result


def _nbytes(result: Type | None) -> int:
    """The bytes from the first to the last element of a tensor; 0 for other values."""
    if not isinstance(result, TensorType):
        return 0
    return extent_nbytes(result)
