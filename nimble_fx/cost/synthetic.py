"""Synthetic values of given types, to time operators without their model."""

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from nimble_fx.errors import UnsupportedError
from nimble_fx.ir.symbolic_sizes import extent, number, numbers
from nimble_fx.ir.task_graph import Arg, Ref, Task, target_name
from nimble_fx.ir.types import ScalarType, TensorType, TupleType, Type
from nimble_fx.torch_internals.operators import is_kernel, reads_opaque_memory
from nimble_fx.torch_internals.storages import with_math_bits

_aten = torch.ops.aten
_EMBEDDINGS = {_aten.embedding, _aten._embedding_bag, _aten._embedding_bag_forward_only}


def synthetic(value: Type | None) -> Any:
    """A value of a type.

    Floating-point values are random (see `randomize`), scaled so that the product of a value with a
    matrix or a convolution's weight is about half as large as the value. Integers are zeros, which
    are valid indices.

    Raises:
        UnsupportedError: the type is not known, or a size is symbolic.
        RuntimeError: PyTorch does not support its type, or has no memory for it.
    """
    match value:
        case TensorType(shape, stride, dtype, device):
            lengths, steps = numbers(shape), numbers(stride)
            memory = torch.empty(extent(lengths, steps), dtype=dtype, device=device)
            view = memory.as_strided(lengths, steps)
            written = memory if is_expanded(view) else view  # large gaps are not written
            randomize(written.zero_(), 0.5 / max(1, prod(lengths[1:])) ** 0.5)
            return with_math_bits(view, value.is_conj, value.is_neg)
        case ScalarType(expression):
            return number(expression, {})
        case TupleType(items):
            return tuple(synthetic(item) for item in items)
    raise UnsupportedError("the type of an argument is not known")


def check_runs(task: Task, operands: Iterable[Tensor]) -> None:
    """Checks that a task runs on synthetic values, or raises an error there.

    Args:
        task: a launching task.
        operands: the tensors among its arguments.

    Raises:
        UnsupportedError: it would crash, or Inductor's C++ might divide integers by zero, which
            ends the process.
    """
    if reads_opaque_memory(task.target):
        raise UnsupportedError(f"{task.name} reads memory in a library's own format")
    if is_kernel(task.target) and "div" in target_name(task.target) and any(map(_is_int, operands)):
        raise UnsupportedError(f"{task.name} may divide integers, and synthetic ones are zeros")


def _is_int(x: Tensor) -> bool:
    is_number = x.dtype.is_floating_point or x.dtype.is_complex
    return x.device.type == "cpu" and not is_number and x.dtype is not torch.bool


def randomize(x: Tensor, scale: float = 1.0) -> None:
    """Fills a floating-point tensor, whose elements must not overlap, with random numbers.

    A tensor of several dimensions gets numbers around 0; one of one dimension, such as a bias or a
    variance, gets numbers around 1. Other dtypes are not changed.

    Args:
        x: the tensor; it is written.
        scale: the standard deviation of numbers around 0.
    """
    if not (x.is_floating_point() or x.is_complex()):
        return
    if x.is_floating_point() and x.itemsize == 1:  # torch has no random float8
        x.copy_(torch.randn(x.shape, device=x.device) * scale)
    elif x.dim() > 1 or x.is_complex():
        x.normal_(std=scale)
    else:
        x.uniform_(0.5, 1.5)


def random_rows(task: Task, values: Mapping[str, Any]) -> dict[str, Tensor]:
    """Random indices for an embedding, by name; empty for other tasks.

    An embedding bag whose offsets are all zeros, as synthetic ones are, gets offsets for bags of
    equal size too.

    Args:
        task: any task.
        values: its arguments by name.
    """
    if getattr(task.target, "overloadpacket", None) not in _EMBEDDINGS:
        return {}
    table, indices, offsets, *_ = (*_tensors(task.args[:3], values), None, None)
    if table is None or indices is None or not table.shape[0]:
        return {}
    rows = torch.randint(table.shape[0], indices.shape, device=indices.device)
    found = {task.args[1].name: rows.to(indices.dtype)}
    if offsets is not None and not offsets.any():
        each = torch.arange(offsets.numel(), device=offsets.device)
        alike = each * indices.numel() // max(1, offsets.numel())
        found[task.args[2].name] = alike.to(offsets.dtype)
    return found


def is_expanded(x: Tensor) -> bool:
    """Whether several elements share one memory location."""
    return any(n > 1 and step == 0 for n, step in zip(x.shape, x.stride(), strict=True))


def _tensors(args: Sequence[Arg], values: Mapping[str, Any]) -> list[Tensor | None]:
    found = [values[arg.name] if isinstance(arg, Ref) else None for arg in args]
    return [value if isinstance(value, Tensor) else None for value in found]
