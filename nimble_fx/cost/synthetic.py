"""Values for what is timed without its model: of the shapes, strides and types that they have."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from nimble_fx.errors import UnsupportedError
from nimble_fx.ir import Ref, ScalarType, Task, TensorType, TupleType, Type
from nimble_fx.sizes import number, numbers

_aten = torch.ops.aten
_EMBEDDINGS = {_aten.embedding, _aten._embedding_bag, _aten._embedding_bag_forward_only}


def synthetic(value: Type | None) -> Any:
    """A value of a type.

    Floating-point ones are random. A CPU is slow with numbers that are nearly zero, so what a deep
    model computes of them must neither vanish nor, by a sigmoid, be made to: a product with a
    matrix or a convolution's weight is about half as large as what it is a product of, vectors
    (biases, means, variances) are about 1. Integers are zeros, which as indices are in range.

    Raises:
        UnsupportedError: nothing is known of it, or a size is symbolic.
    """
    match value:
        case TensorType(shape, stride, dtype, device):
            lengths, steps = numbers(shape), numbers(stride)
            extent = 1 + sum((n - 1) * step for n, step in zip(lengths, steps, strict=True))
            memory = torch.zeros(0 if 0 in lengths else extent, dtype=dtype, device=device)
            if dtype.is_floating_point or dtype.is_complex:
                _randomize(memory, lengths)
            return memory.as_strided(lengths, steps)
        case ScalarType(expression):
            return number(expression, {})
        case TupleType(items):
            return tuple(synthetic(item) for item in items)
    raise UnsupportedError("nothing is known of an argument")


def look_elsewhere(task: Task, values: Mapping[str, Any]) -> None:
    """If a task is an embedding, it looks up other rows from now on, all over its table.

    If it is one with bags and these are all empty but one, as made-up ones are, they become alike.

    Args:
        task: of any kind.
        values: its arguments by name; indices and offsets are written.
    """
    table, indices, offsets, *_ = [*_of_embedding(task, values), None, None, None]
    if table is None or indices is None:
        return
    indices.random_(table.shape[0])
    if offsets is not None and not offsets.any():
        n_bags = max(1, offsets.numel())
        offsets.copy_(torch.arange(offsets.numel()) * indices.numel() // n_bags)


def _randomize(memory: Tensor, shape: Sequence[int]) -> None:
    memory.normal_()
    if len(shape) > 1:
        memory.mul_(0.5 * (shape[0] / max(1, prod(shape))) ** 0.5)
    elif not memory.is_complex():
        memory.uniform_(0.5, 1.5)


def _of_embedding(task: Task, values: Mapping[str, Any]) -> list[Tensor]:
    """The table, indices and offsets of an embedding; nothing of another task."""
    if getattr(task.target, "overloadpacket", None) not in _EMBEDDINGS:
        return []
    return [values[arg.name] for arg in task.args if isinstance(arg, Ref)]
