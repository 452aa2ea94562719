"""Tensors computed from weights on a CPU, kept from call to call until a weight changes."""

import threading
import weakref
from collections.abc import Callable, Sequence
from ctypes import string_at
from typing import Any

import torch
from torch import Tensor

from nimble_fx.runtime.shared_memory import byte_range
from nimble_fx.torch_internals.fake_tensors import are_fake
from nimble_fx.torch_internals.forward_ad import carry_tangents

COMPARED_WHOLE = 16 * 1024
"""The most bytes of a weight that are compared in each call; of a larger one its two ends are."""

_END = 64


class FoldedWeights:
    """Computes tensors from weights at the first call, and again after a weight has changed.

    A weight has changed if its memory is another or its version counter has risen: by an operator
    in place, an optimizer, `load_state_dict`, a new tensor in its place. Some writes are not
    counted: BatchNorm's to its statistics in training, those through `tensor.data` or NumPy. So
    bytes are compared too, all of a small weight, and the first and last of a large one. What goes
    unnoticed is a write that is not counted and is inside of a large weight alone.

    Cost: about a microsecond a weight in each call, and memory for the results.
    """

    def __init__(self, compute: Callable[..., Sequence[Tensor]]) -> None:
        """Nothing is computed yet.

        Args:
            compute: takes the weights and returns the tensors.
        """
        self._compute = compute
        self._lock = threading.Lock()
        self._known: _Known | None = None

    def __call__(self, weights: Sequence[Tensor]) -> Sequence[Tensor]:
        """The tensors for the weights as they are now."""
        if are_fake(weights) or carry_tangents(weights) or any(w.is_inference() for w in weights):
            with torch.no_grad():
                return self._compute(*weights)  # these have no versions, or no bytes
        known = self._known
        if known is not None and known.are_of(weights):
            return known.results
        with self._lock, torch.no_grad():
            copies = [_Copy(weight) for weight in weights]
            self._known = known = _Known(copies, self._compute(*weights))
        return known.results


class _Known:
    """Results, and the weights that they were computed from."""

    def __init__(self, copies: Sequence["_Copy"], results: Sequence[Tensor]) -> None:
        self.results = results
        self._places = [(copy.address, copy.version) for copy in copies]
        self._storages = [copy.storage for copy in copies]
        self._bytes = [part for copy in copies for part in copy.parts]

    def are_of(self, weights: Sequence[Tensor]) -> bool:
        """Whether the weights are the same; their shapes and strides are guarded by PyTorch."""
        return (
            [(weight.data_ptr(), weight._version) for weight in weights] == self._places
            and None not in [storage() for storage in self._storages]
            and all(string_at(at, n) == saved for at, n, saved in self._bytes)
        )


class _Copy:
    """What is compared of a weight.

    Attributes:
        storage: its memory; if that is freed, another weight may get it.
        parts: ranges of its bytes: address, size, value.
    """

    def __init__(self, weight: Tensor) -> None:
        self.address, self.version = weight.data_ptr(), weight._version
        self.storage = weakref.ref(weight.untyped_storage())
        start, end = byte_range(weight)
        ranges = [(start, end - start)] if end > start else []
        if end - start > COMPARED_WHOLE:
            ranges = [(start, _END), (end - _END, _END)]
        self.parts = [(at, n, string_at(at, n)) for at, n in ranges]


def with_folded(
    run: Callable[[list[Any]], Sequence[Any]],
    folded: FoldedWeights,
    sources: Sequence[int],
    kept: Sequence[int],
) -> Callable[[list[Any]], Sequence[Any]]:
    """A program that takes folded weights, as one that takes the weights themselves.

    Args:
        run: takes some of the arguments, and then the folded weights.
        folded: computes these.
        sources: the positions of its weights among the arguments.
        kept: the positions of the arguments that `run` takes.
    """

    def call(args: list[Any]) -> Sequence[Any]:
        values = folded([args[i] for i in sources])
        inputs = [*[args[i] for i in kept], *values]
        args.clear()
        return run(inputs)

    call._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd's mark
    return call
