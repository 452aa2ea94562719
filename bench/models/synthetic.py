"""Task graphs of any size in the shape of NASNet: what the passes cost as graphs grow."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from nimble_fx.ir.dependencies import hazards
from nimble_fx.ir.task_graph import Input, Ref, Task, TaskGraph
from nimble_fx.ir.types import TensorType

# Relus in a row on the left and on the right branch of each of a cell's blocks, as in NASNet-A's
# normal cell: a separable convolution is 8 operators, a pooling 1, the identity none.
Blocks = tuple[tuple[int, int], ...]
BLOCKS: Blocks = ((8, 8), (8, 8), (1, 0), (1, 1), (8, 0))
BLOCKS_FOR_16_STREAMS: Blocks = (*BLOCKS, (8, 8), (8, 0), (1, 0))

_aten = torch.ops.aten


def cell_graph(n_tasks: int, blocks: Blocks = BLOCKS) -> TaskGraph:
    """A graph of about `n_tasks` tasks: cells whose inputs are the two cells before them.

    A block adds a branch of the newer input to one of the older; the cell concatenates its blocks.
    """
    builder = _Builder(blocks)
    older = newer = "x"
    tasks_per_cell = 2 + sum(left + right + 1 for left, right in blocks) + 1
    for _ in range(max(1, round(n_tasks / tasks_per_cell))):
        older, newer = newer, builder.cell(older, newer)
    return builder.graph(newer)


class _Builder:
    """Adds tasks one by one. Feature maps are f32[1, 64]; a cell's output is f32[blocks, 64]."""

    def __init__(self, lengths: Blocks) -> None:
        self._tasks: list[Task] = []
        self._lengths, self._blocks = lengths, _feature_map(len(lengths))

    def cell(self, older: str, newer: str) -> str:
        """Adds a cell; each input is first brought back to the size of one block."""
        left, right = self._mean(newer), self._mean(older)
        sums = [self._block(left, right, *lengths) for lengths in self._lengths]
        blocks = tuple(Ref(name) for name in sums)
        return self._add("cat", _aten.cat.default, (blocks,), sums, self._blocks)

    def graph(self, output: str) -> TaskGraph:
        """The tasks so far as a graph that returns `output`, with dependencies as traced."""
        after = hazards(self._tasks)
        return TaskGraph(
            name=f"cells_{len(self._tasks)}",
            inputs=(Input("x", self._blocks, holds=("x",)),),
            constants=(),
            tasks=tuple(replace(task, after=after[task.name]) for task in self._tasks),
            outputs=(Ref(output),),
            provenance=("synthetic",),
        )

    def _block(self, left: str, right: str, left_length: int, right_length: int) -> str:
        left, right = self._chain(left, left_length), self._chain(right, right_length)
        return self._add("add", _aten.add.Tensor, (Ref(left), Ref(right)), [left, right])

    def _chain(self, name: str, length: int) -> str:
        for _ in range(length):
            name = self._add("relu", _aten.relu.default, (Ref(name),), [name])
        return name

    def _mean(self, name: str) -> str:
        return self._add("mean", _aten.mean.dim, (Ref(name), (0,), True), [name])

    def _add(
        self,
        prefix: str,
        target: Callable[..., Any],
        args: tuple[Any, ...],
        reads: list[str],
        made: TensorType | None = None,
    ) -> str:
        """Adds an operator call that reads `reads` and allocates its result; its name."""
        name = f"{prefix}_{len(self._tasks)}"
        task = Task(
            name=name,
            target=target,
            args=args,
            type=made or _feature_map(1),
            index=len(self._tasks),
            reads=tuple(dict.fromkeys(reads)),
            writes=(name,),
            allocates=(name,),
            holds=(name,),
        )
        self._tasks.append(task)
        return name


def _feature_map(rows: int) -> TensorType:
    return TensorType((rows, 64), (64, 1), torch.float32, torch.device("cpu"))
