"""Tensors computed from weights on a CPU, kept from call to call until a weight changes."""

import threading
import weakref
from collections.abc import Callable, Sequence
from ctypes import c_char
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from nimble_fx.codegen.load import load
from nimble_fx.devices import device_here
from nimble_fx.ir.scheduled_program import ScheduledProgram
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.runtime.launch import Launcher
from nimble_fx.runtime.packed_weights import Layout, layouts
from nimble_fx.runtime.shared_memory import byte_range
from nimble_fx.torch_internals.fake_tensors import are_fake
from nimble_fx.torch_internals.forward_ad import carry_tangents
from nimble_fx.torch_internals.onednn import packed
from nimble_fx.tracing.constant_folding import plain_eager_mode

COMPARED_WHOLE = 16 * 1024
"""The most bytes of a weight that are compared in each call; of a larger one a part is."""

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_version = attrgetter("_version")


class FoldedWeights:
    """Computes tensors from weights at the first call, and again after a weight has changed.

    A weight has changed if its memory is another or its version counter has risen: by an operator
    in place, an optimizer, `load_state_dict`, a new tensor in its place. Some writes are not
    counted: BatchNorm's to its statistics in training, those through `tensor.data` or NumPy. So
    bytes are compared too: all of a small weight, and of a large one a row and an element of each
    row. What goes unnoticed is a write that is not counted and meets none of them.

    Cost: about 0.2 microseconds a weight in each call, for a large one a few more; and memory for
    the results.
    """

    def __init__(
        self, compute: Callable[..., Sequence[Tensor]], into: Sequence[Layout | None]
    ) -> None:
        """Nothing is computed yet.

        Args:
            compute: takes the weights and returns the tensors.
            into: the layout that each of these is packed into; None for one that stays as it is.
        """
        self._compute, self._into = compute, into
        self._lock = threading.Lock()
        self._known: _Known | None = None

    def __call__(self, weights: Sequence[Tensor]) -> Sequence[Tensor]:
        """The tensors for the weights as they are now."""
        if are_fake(weights):
            with torch.no_grad():
                return self._compute(*weights)
        known = self._known
        if known is not None and known.are_of(weights):
            return known.results
        if any(map(Tensor.is_inference, weights)):  # they have no versions
            return self._computed(weights)
        with self._lock:
            copies = [_Copy(weight) for weight in weights]
            results = self._packed(self._computed(weights))
            self._known = _Known(copies, results)
        return results

    def _computed(self, weights: Sequence[Tensor]) -> Sequence[Tensor]:
        with plain_eager_mode():  # they are not of this call alone
            return self._compute(*weights)

    def _packed(self, results: Sequence[Tensor]) -> Sequence[Tensor]:
        pairs = zip(results, self._into, strict=True)
        return [packed(result, *layout) if layout else result for result, layout in pairs]


class _Known:
    """Results, and the weights that they were computed from."""

    def __init__(self, copies: Sequence["_Copy"], results: Sequence[Tensor]) -> None:
        self.results = results
        self._addresses = [copy.address for copy in copies]
        self._versions = [copy.version for copy in copies]
        self._bytes = [copy.bytes for copy in copies]
        columns = [copy.column for copy in copies if copy.column is not None]
        self._columns = [[c for c in columns if c.dtype == d] for d in {c.dtype for c in columns}]
        self._saved_bytes, self._saved_columns = b"".join(self._bytes), self._read_columns()
        self._freed: list[Any] = []
        self._storages = [weakref.ref(copy.storage, self._freed.append) for copy in copies]

    def are_of(self, weights: Sequence[Tensor]) -> bool:
        """Whether the weights are the same; their shapes and strides are guarded by PyTorch."""
        return (
            not self._freed
            and list(map(Tensor.data_ptr, weights)) == self._addresses
            and list(map(_version, weights)) == self._versions
            and b"".join(self._bytes) == self._saved_bytes
            and all(map(torch.equal, self._read_columns(), self._saved_columns))
        )

    def _read_columns(self) -> list[Tensor]:
        return [torch.cat(columns) for columns in self._columns]


class _Copy:
    """What is compared of a weight, in place.

    The outermost dimension in memory is that of the rows: the output channels of a contiguous
    weight. One row has all columns, and all positions of a convolution's window.

    Attributes:
        storage: its memory; if that is freed, another weight may get it.
        bytes: all of a small weight, and a row of a large one.
        column: of a large weight an element of each row, as integers; None for a small one.
    """

    def __init__(self, weight: Tensor) -> None:
        self.address, self.version = weight.data_ptr(), weight._version
        self.storage = weight.untyped_storage()
        start, end = byte_range(weight)
        memory = (c_char * (end - start)).from_address(start)
        self.bytes = memoryview(memory).cast("B")
        self.column: Tensor | None = None
        if end - start > COMPARED_WHOLE:
            row = max(*weight.stride(), 1) * weight.itemsize
            middle = (end - start) // row // 2 * row
            self.bytes = self.bytes[middle : middle + row]
            dtype = _INTEGERS[min(weight.itemsize, 8)]
            elements = torch.frombuffer(memory, dtype=dtype)
            step = max(row // dtype.itemsize - 1, 1)  # not the same place in each row
            self.column = elements[::step]


def folded_weights(main: TaskGraph, weights: ScheduledProgram) -> FoldedWeights:
    """The folded weights of a program, not computed yet.

    Args:
        main: the program's graph, whose last inputs they are.
        weights: computes them.
    """
    module = load(weights.source, weights.file)
    launcher = Launcher(weights.graph, module, weights.constants, device_here(weights.device))
    into = layouts(main)[-len(weights.graph.outputs) :]
    return FoldedWeights(lambda *values: launcher(list(values)), into)


def with_folded(
    run: Callable[[list[Any]], Sequence[Any]],
    folded: FoldedWeights,
    sources: Sequence[int],
    kept: Sequence[int],
    unfolded: Callable[[list[Any]], Sequence[Any]],
) -> Callable[[list[Any]], Sequence[Any]]:
    """A program that takes folded weights, as one that takes the weights themselves.

    Args:
        run: takes some of the arguments, and then the folded weights.
        folded: computes these.
        sources: the positions of its weights among the arguments.
        kept: the positions of the arguments that `run` takes.
        unfolded: runs the program with PyTorch's kernels. Those of oneDNN drop the tangents of
            forward-mode differentiation.
    """

    def call(args: list[Any]) -> Sequence[Any]:
        if carry_tangents(args):
            return unfolded(args)
        values = folded([args[i] for i in sources])
        inputs = [*[args[i] for i in kept], *values]
        args.clear()
        return run(inputs)

    call._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd's mark
    return call
