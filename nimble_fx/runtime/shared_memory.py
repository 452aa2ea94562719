"""Finds inputs that share memory which a program writes, and did not when it was traced.

PyTorch's guards compare at most the storages of a call's arguments, and not with those of
parameters and buffers. So PyTorch may call a program with a view of a buffer, or with two views of
one tensor, although it was traced with tensors that shared no memory. The schedule may then run a
write before a read that precedes it in the program.
"""

from collections.abc import Collection, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nimble_fx.ir.symbolic_sizes import extent, unnamed_symbols
from nimble_fx.ir.task_graph import Input, TaskGraph
from nimble_fx.ir.written_inputs import written_inputs
from nimble_fx.torch_internals.fake_tensors import are_fake
from nimble_fx.torch_internals.operators import is_kernel
from nimble_fx.torch_internals.storages import may_overlap

_data_ptr = Tensor.data_ptr


class SharedMemory:
    """Finds inputs of one program that overlap in memory, one of which it writes.

    Inputs that shared a storage when the program was traced do not count, because its schedule
    orders them; unless a fused kernel, which may read one while it writes the other, has been
    compiled for parts of the storage that do not overlap. Cost of a call: the address of each
    tensor; a sort if one has changed; the range of each if a size has.
    """

    def __init__(
        self, inputs: Sequence[Input], written: Collection[str], has_fused_kernels: bool = False
    ) -> None:
        """Compares inputs of one program.

        Args:
            inputs: the inputs to compare.
            written: the names of the inputs that the program writes to.
            has_fused_kernels: whether some of its tasks do the work of several operators.
        """
        self._inputs, self._written, self._has_fused = inputs, written, has_fused_kernels
        unnamed = unnamed_symbols(inputs)
        self._unnamed = [i for i, value in enumerate(inputs) if value.name in unnamed]
        self._latest: _Places | None = None
        self._may_overlap = any(value.name in written for value in inputs)

    @staticmethod
    def of(graph: TaskGraph, positions: Sequence[int] | None = None) -> "SharedMemory":
        """Compares the inputs of a program, or those at some positions."""
        inputs = graph.inputs if positions is None else [graph.inputs[i] for i in positions]
        fused = any(is_kernel(task.target) for task in graph.tasks)
        return SharedMemory(inputs, written_inputs(graph), fused)

    def found(self, values: Sequence[Any]) -> tuple[str, str] | None:
        """The names of two inputs that share memory, but did not when it was traced; or None.

        Args:
            values: the values of the inputs, in order: tensors, numbers, and None for one to leave
                out.
        """
        if not self._may_overlap or are_fake(values):
            return None
        key = tuple([_data_ptr(v) if isinstance(v, Tensor) else v for v in values])
        layouts = tuple([_layout(values[i]) for i in self._unnamed])
        latest = self._latest
        if latest is not None and (latest.key, latest.layouts) == (key, layouts):
            return None
        places = _Places(key, layouts, _ranges(values, key, layouts, latest))
        found = self._overlapping(values, places.ranges)
        self._latest = places if found is None else None
        return found

    def _overlapping(
        self, values: Sequence[Any], ranges: Sequence[tuple[int, int] | None]
    ) -> tuple[str, str] | None:
        written, others = list[tuple[int, int]](), list[tuple[int, int]]()  # heaps, by their ends
        for start, end, i in sorted((*each, i) for i, each in enumerate(ranges) if each):
            for begun in (written, others):
                while begun and begun[0][0] <= start:
                    heappop(begun)
            is_written = self._inputs[i].name in self._written
            for _, k in (*written, *others) if is_written else written:
                one, other = sorted((i, k))
                if self._conflict(one, other, values):
                    return self._inputs[one].name, self._inputs[other].name
            heappush(written if is_written else others, (end, i))
        return None

    def _conflict(self, i: int, k: int, values: Sequence[Any]) -> bool:
        one, other = self._inputs[i], self._inputs[k]
        if set(one.holds).isdisjoint(other.holds):
            return True
        return self._has_fused and may_overlap(values[i], values[k])


_Layout = tuple[torch.Size, tuple[int, ...]] | None


def _layout(value: Tensor | None) -> _Layout:
    return None if value is None else (value.shape, value.stride())


class _Places(NamedTuple):
    """Where the inputs of a call are.

    Attributes:
        key: the addresses of tensors, and the numbers, which with these `layouts` say all sizes.
        layouts: shapes and strides of tensors with sizes that no number among the inputs is.
        ranges: the addresses of the first byte and behind the last; None for what has no memory.
    """

    key: tuple[Any, ...]
    layouts: tuple[_Layout, ...]
    ranges: list[tuple[int, int] | None]


def _ranges(
    values: Sequence[Any],
    key: tuple[Any, ...],
    layouts: tuple[_Layout, ...],
    latest: _Places | None,
) -> list[tuple[int, int] | None]:
    """The ranges of a call; takes those of the latest call over, unless a size has changed."""
    found = list(latest.ranges) if latest is not None else []
    moved = [i for i, each in enumerate(key) if latest is None or latest.key[i] != each]
    is_resized = any(type(values[i]) is int for i in moved)
    if latest is None or latest.layouts != layouts or is_resized:
        found, moved = [None] * len(values), [*range(len(values))]
    for i in moved:
        has_memory = isinstance(values[i], Tensor) and values[i].numel()
        found[i] = byte_range(values[i]) if has_memory else None
    return found


def byte_range(tensor: Tensor) -> tuple[int, int]:
    """The addresses of a tensor's first byte and of the byte after its last."""
    start = tensor.data_ptr()
    return start, start + extent(tensor.shape, tensor.stride()) * tensor.itemsize
