"""Launches a kernel that Inductor compiled with Triton."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from nimble_fx.ir.symbolic_sizes import extent
from nimble_fx.torch_internals.names import current_cuda_stream

ALIGNMENT = 16
"""Bytes. Triton's code relies on addresses that are multiples of this."""


def triton_launch(kernel: Any, writes: Sequence[bool | None]) -> Callable[..., None]:
    """A function that launches a kernel on the current stream.

    A tensor at an address that the kernel cannot take is copied before the launch, and copied back
    if the kernel writes it.

    Args:
        kernel: Inductor's autotuner of the kernel; its first launch times the variants.
        writes: for each argument, whether the kernel writes the tensor; None for a number.
    """

    def launch(*args: Any) -> None:
        given = [_aligned(each) if isinstance(each, Tensor) else each for each in args]
        (device, *_) = {each.device.index for each in args if isinstance(each, Tensor)}
        kernel.run(*given, stream=current_cuda_stream(device))
        for is_written, one, other in zip(writes, args, given, strict=True):
            if is_written and one is not other:
                _memory(one).copy_(_memory(other))

    return launch


def _aligned(tensor: Tensor) -> Tensor:
    """The tensor itself, or a copy with its strides."""
    if tensor.data_ptr() % ALIGNMENT == 0:
        return tensor
    return _memory(tensor).clone().as_strided(tensor.shape, tensor.stride())


def _memory(tensor: Tensor) -> Tensor:
    """A tensor's memory from its first to its last element, including gaps, in one dimension."""
    return tensor.as_strided([extent(tensor.shape, tensor.stride())], [1])
