"""Tensors computed from weights on a CPU, kept from call to call until a weight changes."""

import threading
import weakref
from collections.abc import Callable, Sequence
from ctypes import string_at
from typing import Any

import torch
from torch import Tensor

from nimble_fx.ir.symbolic_sizes import extent
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

    Cost: half a microsecond a weight in each call, and memory for the results.
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
        state, known = list(map(_state, weights)), self._known
        if known is not None and known.is_of(state):
            return known.results
        with self._lock, torch.no_grad():
            self._known = known = _Known(weights, state, self._compute(*weights))
        return known.results


class _Known:
    """Results, and the state of the weights that they were computed from."""

    def __init__(self, weights: Sequence[Tensor], state: object, results: Sequence[Tensor]) -> None:
        self.results, self._state = results, state
        # Memory that was freed may be allocated again for other weights.
        self._storages = [weakref.ref(weight.untyped_storage()) for weight in weights]

    def is_of(self, state: object) -> bool:
        return self._state == state and None not in [storage() for storage in self._storages]


def _state(weight: Tensor) -> tuple[object, ...]:
    """What is compared of a weight."""
    address, layout = weight.data_ptr(), (weight.shape, weight.stride())
    n_bytes = extent(*layout) * weight.itemsize
    if n_bytes <= COMPARED_WHOLE:
        return address, layout, weight._version, string_at(address, n_bytes) if n_bytes else b""
    ends = string_at(address, _END), string_at(address + n_bytes - _END, _END)
    return address, layout, weight._version, ends


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
