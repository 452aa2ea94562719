"""Checks values against the types that the inputs of a program were compiled for."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from nimble_fx.errors import InputError, UnsupportedError
from nimble_fx.ir.symbolic_sizes import Sizes, extent, number
from nimble_fx.ir.task_graph import Input
from nimble_fx.ir.types import ScalarType, Size, TensorType, dtype_name

_NUMBERS = (int, float, bool)

_COMPILE_AGAIN = (
    "It has changed since: compile the model again, with nimble_fx.compile, or with torch.compile "
    "after torch.compiler.reset()"
)


def check_type(value: Input, actual: Any, what: str, sizes: dict[Size, Any]) -> None:
    """Checks a value against an input's type; a symbolic size must be the same in all inputs.

    Args:
        value: the input.
        actual: its value in a call.
        what: its name in errors.
        sizes: the known symbolic sizes; adds those of the value.

    Raises:
        InputError: its type, shape, dtype, device or a fixed stride differs.
    """
    if isinstance(value.type, TensorType):
        if not isinstance(actual, Tensor):
            raise InputError(
                f"{what} is of type {type(actual).__name__}, not a tensor: {value.type}"
            )
        for attribute, found, expected in _attributes(value.type, actual):
            if found != expected:
                raise InputError(
                    f"{what} has the {attribute} {found}, and the program was compiled for "
                    f"{expected}: {value.type}"
                )
        for size, found in zip(value.type.shape, actual.shape, strict=True):
            _check_size(size, found, what, sizes)
    elif isinstance(value.type, ScalarType):
        if not isinstance(actual, _NUMBERS):
            raise InputError(f"{what} is of type {type(actual).__name__}, not a number")
        _check_size(value.type.expression, actual, what, sizes)
    elif actual is not None:
        raise InputError(f"{what} is of type {type(actual).__name__}, and was compiled for None")


def _attributes(expected: TensorType, actual: Tensor) -> list[tuple[str, Any, Any]]:
    """Attributes that must be equal: name, actual and expected value; or one that differs.

    Leaves out strides of dimensions of size 1, and strides that depend on symbolic sizes, which are
    checked when all sizes are known.
    """
    if actual.dim() != len(expected.shape):
        return [("number of dimensions", actual.dim(), len(expected.shape))]
    if actual.layout is not torch.strided:
        return [("layout", actual.layout, torch.strided)]
    shape, stride = actual.shape, actual.stride()
    static = [i for i, n in enumerate(expected.shape) if type(n) is int]
    if any(shape[i] != expected.shape[i] for i in static):
        return [("shape", list(shape), f"[{', '.join(map(str, expected.shape))}]")]
    strided = [i for i in static if type(expected.stride[i]) is int and expected.shape[i] != 1]
    if actual.dtype != expected.dtype:
        return [("dtype", dtype_name(actual.dtype), dtype_name(expected.dtype))]
    if any(stride[i] != expected.stride[i] for i in strided):
        return [("stride", list(stride), f"[{', '.join(map(str, expected.stride))}]")]
    return [
        ("conjugate bit", actual.is_conj(), expected.is_conj),
        ("negative bit", actual.is_neg(), expected.is_neg),
        ("device", actual.device, expected.device),
    ]


def _check_size(size: Size, found: Any, what: str, sizes: dict[Size, Any]) -> None:
    if type(size) is not str:
        return  # `_attributes` has compared it
    known = sizes.setdefault(size, found)
    if known != found:
        raise InputError(f"{what} has the size {found} for {size}, which is {known} elsewhere")


def check_weights(
    inputs: Sequence[Input], names: Mapping[str, str], weights: Sequence[Any]
) -> None:
    """Checks parameters and buffers, which may not be those that the program was compiled with.

    Args:
        inputs: the program's inputs for them.
        names: the model's names of parameters and buffers, by the graph's.
        weights: the parameters and buffers.

    Raises:
        InputError: one does not fit its input, or its memory was freed.
    """
    sizes: dict[Size, Any] = {}
    for value, weight in zip(inputs, weights, strict=True):
        what = f"the parameter or buffer {names.get(value.name, value.name)}"
        try:
            check_type(value, weight, what, sizes)
        except InputError as error:
            raise InputError(f"{error}. {_COMPILE_AGAIN}") from None
        if isinstance(weight, Tensor):
            _check_memory(weight, what)


def _check_memory(weight: Tensor, what: str) -> None:
    """Checks that a storage, which may have been resized, still holds all elements of its tensor.

    PyTorch's guards do not check that.

    Raises:
        InputError: it does not.
    """
    end = weight.storage_offset() + extent(weight.shape, weight.stride())
    nbytes = weight.untyped_storage().nbytes()
    if nbytes < end * weight.itemsize:
        raise InputError(
            f"{what} needs {end * weight.itemsize} bytes of a storage that has {nbytes}: it was "
            "resized after the compile"
        )


def check_expressions(value: Input, actual: Any, sizes: Mapping[Size, Any]) -> None:
    """Checks an input's sizes and strides that are expressions of symbols, for those of a call.

    Raises:
        InputError: a size or a stride differs.
    """
    if not isinstance(value.type, TensorType):
        return
    symbols = {str(name): n for name, n in sizes.items() if type(n) is int}
    shape, stride = value.type.shape, value.type.stride
    for found, size in zip(actual.shape, shape, strict=True):
        _check_expression(value, "size", size, found, symbols)
    if 0 in actual.shape:
        return
    for n, found, size, step in zip(actual.shape, actual.stride(), shape, stride, strict=True):
        if n != 1 and (type(size) is str or type(step) is str):
            _check_expression(value, "stride", step, found, symbols)


def _check_expression(value: Input, what: str, size: Size, found: int, symbols: Sizes) -> None:
    expected = _evaluated(size, symbols)
    if expected is not None and found != expected:
        raise InputError(
            f"input {value.name} has the {what} {found} where the program was compiled for {size}, "
            f"which is {expected}: {value.type}"
        )


def _evaluated(size: Size, sizes: Sizes) -> int | None:
    """A size as a number; None if the inputs do not determine it."""
    try:
        return number(size, sizes)
    except UnsupportedError:
        return None
