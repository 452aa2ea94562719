"""Tensors computed from weights on a CPU, kept from call to call until a weight changes."""

import threading
import weakref
from collections.abc import Callable, Sequence
from ctypes import c_char
from operator import attrgetter
from typing import Any, Literal

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

COMPARED_WHOLE = 16 * 1024
"""The most bytes of a weight that are compared in each call; of a larger one samples are."""

_MOST_SAMPLES = 512
_FORMATS: dict[int, Literal["B", "H", "I", "Q"]] = {1: "B", 2: "H", 4: "I", 8: "Q"}
_version = attrgetter("_version")


class FoldedWeights:
    """Computes tensors from weights at the first call, and again after a weight has changed.

    A weight has changed if its memory is another or its version counter has risen: by an operator
    in place, an optimizer, `load_state_dict`, a new tensor in its place. Some writes are not
    counted: BatchNorm's to its statistics in training, those through `tensor.data` or NumPy. So
    bytes are compared too: all of a small weight, and of a large one samples, in each row another
    column. What goes unnoticed is a write that is not counted and meets none of them.

    Cost: about 0.2 microseconds a weight in each call, for a large one 10; and memory for the
    results.
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
            return self._computed(weights)
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
        with torch.no_grad():
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
        self._small = [copy.bytes for copy in copies if copy.is_small]
        self._large = [copy.bytes for copy in copies if not copy.is_small]
        self._saved = self._values()
        self._freed: list[Any] = []
        self._storages = [weakref.ref(copy.storage, self._freed.append) for copy in copies]

    def are_of(self, weights: Sequence[Tensor]) -> bool:
        """Whether the weights are the same; their shapes and strides are guarded by PyTorch."""
        return (
            not self._freed
            and list(map(Tensor.data_ptr, weights)) == self._addresses
            and list(map(_version, weights)) == self._versions
            and self._values() == self._saved
        )

    def _values(self) -> tuple[bytes, list[bytes]]:
        return b"".join(self._small), [samples.tobytes() for samples in self._large]


class _Copy:
    """What is compared of a weight.

    Attributes:
        storage: its memory; if that is freed, another weight may get it.
        is_small: whether all of it is compared.
        bytes: what is compared, in place.
    """

    def __init__(self, weight: Tensor) -> None:
        self.address, self.version = weight.data_ptr(), weight._version
        self.storage = weight.untyped_storage()
        start, end = byte_range(weight)
        self.is_small = end - start <= COMPARED_WHOLE
        memory = memoryview((c_char * (end - start)).from_address(start)).cast("B")
        self.bytes = memory if self.is_small else _samples(memory, weight)


def _samples(memory: memoryview, weight: Tensor) -> memoryview:
    """Elements of a weight, in each row another column.

    In a contiguous weight of a convolution each row and column is an output and an input channel.
    """
    unit = min(weight.itemsize, 8)
    elements: memoryview = memory.cast(_FORMATS[unit])
    row = weight.numel() // len(weight)
    column = row // weight.shape[1] if weight.dim() > 1 else 0
    step = max(row - column, weight.numel() // _MOST_SAMPLES, 1)
    return elements[:: step * (weight.itemsize // unit)]


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
