"""Finds inputs that share memory which a program writes, and did not when it was traced.

PyTorch's guards compare at most the storages of a call's arguments, and not with those of
parameters and buffers. So PyTorch may call a program with a view of a buffer, or with two views of
one tensor, although it was traced with tensors that shared no memory. The schedule may then run a
write before a read that precedes it in the program.
"""

from collections.abc import Collection, Sequence
from typing import Any

from torch import Tensor

from nimble_fx.ir.symbolic_sizes import extent
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
    tensor; a sort if one has changed.
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
        self._separate: tuple[int, ...] | None = None
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
            values: the values of the inputs, in order: tensors and numbers.
        """
        if not self._may_overlap or are_fake(values):
            return None
        key = tuple([_data_ptr(v) if isinstance(v, Tensor) else v for v in values])
        if key == self._separate:
            return None
        found = self._overlapping(values)
        self._separate = key if found is None else None
        return found

    def _overlapping(self, values: Sequence[Any]) -> tuple[str, str] | None:
        pairs = zip(self._inputs, values, strict=True)
        ranges = sorted(
            (*byte_range(value), i)
            for i, (_, value) in enumerate(pairs)
            if isinstance(value, Tensor) and value.numel()
        )
        begun: list[tuple[int, int]] = []
        for start, end, i in ranges:
            begun = [(last, k) for last, k in begun if last > start]
            for _, k in begun:
                one, other = sorted((i, k))
                if self._conflict(one, other, values):
                    return self._inputs[one].name, self._inputs[other].name
            begun.append((end, i))
        return None

    def _conflict(self, i: int, k: int, values: Sequence[Any]) -> bool:
        one, other = self._inputs[i], self._inputs[k]
        if one.name not in self._written and other.name not in self._written:
            return False
        if set(one.holds).isdisjoint(other.holds):
            return True
        return self._has_fused and may_overlap(values[i], values[k])


def byte_range(tensor: Tensor) -> tuple[int, int]:
    """The addresses of a tensor's first byte and of the byte after its last."""
    start = tensor.data_ptr()
    return start, start + extent(tensor.shape, tensor.stride()) * tensor.itemsize
