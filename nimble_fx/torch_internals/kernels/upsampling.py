"""Keeps PyTorch's tracer from decomposing upsampling into index reads and sums.

The decompositions are for Inductor, which fuses them. As separate kernels they take five to fifty
times as long as the one kernel that eager calls.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import SymInt, Tensor
from torch._C import DispatchKey

from nimble_fx.torch_internals.names import OpOverload, lookup

_output_size = lookup("torch._decomp.decompositions.upsample_compute_output_size")

_aten = torch.ops.aten
_OPERATORS = (
    *(_aten.upsample_nearest1d, _aten.upsample_nearest2d, _aten.upsample_nearest3d),
    *(_aten._upsample_nearest_exact1d, _aten._upsample_nearest_exact2d),
    *(_aten._upsample_nearest_exact3d, _aten.upsample_linear1d, _aten.upsample_bilinear2d),
    *(_aten.upsample_bicubic2d, _aten.upsample_trilinear3d),
)
UPSAMPLING = tuple(packet.default for packet in _OPERATORS)
"""Eager's operators."""

_KEYS = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)


@contextmanager
def upsampling_as_one_operator() -> Iterator[None]:
    """Within the block, traces keep each upsampling as eager's operator.

    Exception: training with symbolic sizes, for which PyTorch lacks fake kernels of the operators
    of the backward.
    """
    taken_apart = [packet for packet in _OPERATORS if _KEYS[0] in packet.vec.py_kernels]
    changed = [op for packet in taken_apart for op in (packet.vec, packet.default)]
    before = [dict(op.py_kernels) for op in changed]
    for packet in taken_apart:
        in_parts = packet.vec.py_kernels[_KEYS[0]]
        _set_kernels(packet.vec, dict.fromkeys(_KEYS, partial(_whole, packet.default, in_parts)))
        _set_kernels(packet.default, {})
    try:
        yield
    finally:
        for op, kernels in zip(changed, before, strict=True):
            _set_kernels(op, kernels)


def _set_kernels(op: OpOverload, kernels: dict[Any, Callable[..., Any]]) -> None:
    """Sets an operator's Python implementations, which take precedence over those in C++."""
    for key in _KEYS:
        op.py_kernels.pop(key, None)
    op.py_kernels.update(kernels)
    op._dispatch_cache.clear()


def _whole(
    target: OpOverload,
    in_parts: Callable[..., Tensor],
    image: Tensor,
    size: Any,
    *align_and_factors: Any,
) -> Tensor:
    """Upsamples to a size, or by a factor for each dimension."""
    *align, factors = align_and_factors
    sizes = _output_size(image.shape, size, factors)
    is_symbolic = any(isinstance(n, SymInt) for n in (*image.shape, *sizes))
    if is_symbolic and image.requires_grad and torch.is_grad_enabled():
        return in_parts(image, size, *align, factors)
    result: Tensor = target(image, sizes, *align, *(factors or [None] * len(sizes)))
    return result
