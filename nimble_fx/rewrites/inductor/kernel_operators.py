"""Makes operators of Inductor's kernels.

An operator allocates and returns the tensors that its kernel writes first; its schema marks the
arguments that the kernel also writes.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import count
from typing import Any

import torch
from torch import Tensor

from nimble_fx.errors import OperatorError, UnsupportedError
from nimble_fx.ir.types import Size
from nimble_fx.rewrites.inductor.kernel_signature import (
    Argument,
    Signature,
    Taken,
    ViewLayout,
)
from nimble_fx.rewrites.kernel_registry import MAX_PARAMETERS, registered
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.torch_internals.names import part_of_tensor as _part

MAX_SIZES = 64
"""For how many values of its symbolic sizes an operator caches its kernel's launcher."""


def kernel_operator(
    name: str, kernel: Callable[..., Any], source: str, signature: Signature
) -> OpOverload:
    """The operator of a kernel.

    Args:
        name: the kernel's name, such as "cpp_fused_relu_0".
        kernel: launches it on the current stream; takes the arguments of the signature.
        source: the kernel's text.
        signature: what the operator takes and returns.

    Raises:
        UnsupportedError: the operator would have too many parameters.
    """
    if signature.n_parameters > MAX_PARAMETERS:
        raise UnsupportedError(
            f"Inductor's kernel {name} writes to more tensors than an operator of PyTorch may "
            f"take: {MAX_PARAMETERS}, symbolic sizes included"
        )
    return registered(
        name,
        (name, source, signature, torch.get_num_threads()),
        signature.schema,
        _launcher(kernel, signature),
        _fake(signature),
        source,
    )


def _launcher(kernel: Callable[..., Any], signature: Signature) -> Callable[..., Any]:
    n_symbols = len(signature.symbols)
    if not n_symbols:
        return _numeric_launcher(kernel, signature, signature.in_order)

    @lru_cache(maxsize=MAX_SIZES)
    def at(*sizes: int) -> Callable[..., Any]:
        return _numeric_launcher(kernel, signature.at(sizes), signature.in_order)

    return lambda *arguments: at(*arguments[-n_symbols:])(*arguments[:-n_symbols])


def _numeric_launcher(
    kernel: Callable[..., Any],
    signature: Signature,
    in_order: Callable[[Sequence[Any]], list[Tensor]],
) -> Callable[..., Any]:
    """The implementation of a kernel's operator, with numbers for all sizes.

    Args:
        kernel: launches it.
        signature: the operator's signature; all its sizes are numbers.
        in_order: picks the tensors that the kernel takes from the operator's arguments.
    """
    numbers = [argument for argument in signature.arguments if isinstance(argument, int)]
    places = list(_places(signature))

    def launch(*arguments: Tensor | Sequence[Tensor]) -> Any:
        taken = in_order(arguments)
        for tensor, expected in zip(taken, signature.taken, strict=True):
            fits = has_layout(tensor, expected.size, expected.stride)
            if not fits or tensor.dtype is not expected.dtype:
                raise OperatorError(_misfit(tensor, expected))
        new = [each.allocate() for each in signature.new]
        given = [*taken, *new, *numbers]
        kernel(
            *[
                given[i] if part is None else _part(given[i], part.size, part.stride, part.offset)
                for i, part in places
            ]
        )
        return _returned(new)

    return launch


def _places(signature: Signature) -> Iterator[tuple[int, ViewLayout | None]]:
    """For each argument of a kernel, the value that it is or is part of, and which part.

    The value is a position in the list of the taken tensors, the new tensors and the numbers.
    """
    n_taken = len(signature.taken)
    numbers = count(n_taken + len(signature.new))
    for argument in signature.arguments:
        if isinstance(argument, Argument):
            yield argument.index + n_taken * argument.is_new, argument.layout
        else:
            yield next(numbers), None


def has_layout(tensor: Tensor, size: tuple[Size, ...], stride: tuple[Size, ...]) -> bool:
    """Whether these sizes and strides locate the same elements as the tensor's own."""
    if tensor.stride() == stride and tensor.shape == size:
        return True
    same = zip(size, tensor.stride(), stride, strict=False)
    return tensor.shape == size and (0 in size or all(n == 1 or a == b for n, a, b in same))


def _misfit(tensor: Tensor, expected: Taken) -> str:
    return (
        f"a kernel that Inductor compiled for {expected.dtype}, the sizes {expected.size} and the "
        f"strides {expected.stride} was called with {tensor.dtype}, {tuple(tensor.shape)} and "
        f"{tensor.stride()}: an operator before it returned another type or layout than PyTorch's "
        "meta kernel says, a weight has changed, or an input is not what PyTorch took it for. "
        "Compile again after torch.compiler.reset(), or with kernels='aten'"
    )


def _fake(signature: Signature) -> Callable[..., Any]:
    def fake(*arguments: Any) -> Any:
        sizes = arguments[len(arguments) - len(signature.symbols) :]
        return _returned([each.allocate() for each in signature.at(sizes).new])

    return fake


def _returned(new: list[Tensor]) -> Any:
    if len(new) == 1:
        return new[0]
    return tuple(new) if new else None
