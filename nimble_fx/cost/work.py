"""How much a task does: operations and bytes, from the shapes of its arguments and results."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from nimble_fx.errors import UnsupportedError
from nimble_fx.ir.symbolic_sizes import n_elements, numbers
from nimble_fx.ir.task_graph import (
    Arg,
    Ref,
    Task,
    TaskGraph,
    TensorType,
    TupleType,
    Type,
    target_name,
)

_aten = torch.ops.aten
_ALIKE = {
    _aten._scaled_dot_product_flash_attention_for_cpu: _aten._scaled_dot_product_flash_attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        _aten._scaled_dot_product_flash_attention_backward
    ),
}
"""Operators that PyTorch has no formula for, and those that do the same."""

_CONVOLUTIONS = {_aten.convolution, _aten.convolution_backward}
_LOOK_UPS = {
    _aten.embedding, _aten._embedding_bag, _aten._embedding_bag_forward_only, _aten.gather,
    _aten.index, _aten.index_select,
}  # fmt: skip
"""Operators that read a few rows of their first argument."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a task does, whatever it runs on.

    Attributes:
        flops: by PyTorch's formulas for matrix products, convolutions and attention; one for each
            element of the largest value else.
        nbytes: read and written: each tensor among its arguments and results once.
        n_elements: of the largest of its results.
        dtype: of its first floating-point result or argument, else float32.
        is_product: whether PyTorch has a formula for its operations.
        is_convolution: whether it is a convolution, for which PyTorch allows TF32.
        n_channels: that each of its results is a sum over, if it is a convolution: of a group's
            inputs; 1 if it is depthwise.
    """

    flops: float
    nbytes: float
    n_elements: float
    dtype: torch.dtype
    is_product: bool
    is_convolution: bool
    n_channels: int = 0


def work_of(task: Task, types: Mapping[str, Type | None]) -> Work:
    """What a task does.

    Args:
        task: one that launches.
        types: of all values, by name.

    Raises:
        UnsupportedError: a size is symbolic (see `sizes.concrete`), or PyTorch's formula does not
            fit.
    """
    read = list(_tensors(types[name] for name in task.uses))
    made = list(_tensors([task.type]))
    n_read = _elements_read(task, read)
    n_made = [n_elements(each) for each in made]
    counts, tensors = [*n_read, *n_made], [*read, *made]
    product = _product_flops(task, types)
    return Work(
        flops=max(counts, default=0) if product is None else product,
        nbytes=sum(n * each.dtype.itemsize for n, each in zip(counts, tensors, strict=True)),
        n_elements=max(n_made or counts, default=0),
        dtype=next(iter(floating_types(task, types)), torch.float32),
        is_product=product is not None,
        is_convolution=_packet(task) in _CONVOLUTIONS,
        n_channels=_n_channels(task, types),
    )


def floating_types(task: Task, types: Mapping[str, Type | None]) -> list[torch.dtype]:
    """Those of a task's floating-point results, then arguments."""
    tensors = _tensors([task.type, *(types[name] for name in task.uses)])
    return [each.dtype for each in tensors if each.dtype.is_floating_point]


def nbytes_of(task: Task) -> float:
    """The bytes of what a task makes.

    Raises:
        UnsupportedError: a size is symbolic.
    """
    return sum(n_elements(each) * each.dtype.itemsize for each in _tensors([task.type]))


def value_types(graph: TaskGraph) -> dict[str, Type | None]:
    """The type of each value of a graph."""
    return {value.name: value.type for value in graph.values}


def _product_flops(task: Task, types: Mapping[str, Type | None]) -> float | None:
    """By PyTorch's formula; None if it has none."""
    packet = _packet(task)
    formula = flop_registry.get(_ALIKE.get(packet, packet))
    if formula is None:
        return None

    def shaped(arg: Arg) -> Any:
        if isinstance(arg, Ref):
            return _shape(types[arg.name])
        return [shaped(each) for each in arg] if isinstance(arg, (list, tuple)) else arg

    kwargs = {name: shaped(arg) for name, arg in task.kwargs}
    args = [shaped(arg) for arg in task.args]
    made = _shape(task.type)
    try:
        return float(formula(*args, out_val=made, **kwargs))
    except Exception as error:  # formulas assert what they expect of shapes
        message = f"PyTorch's formula for {target_name(task.target)} fails: {error!r}"
        raise UnsupportedError(message, task.name, task.source) from error


def _shape(value: Type | None) -> Any:
    if isinstance(value, TensorType):
        return numbers(value.shape)
    if isinstance(value, TupleType):
        return [_shape(item) for item in value.items]
    return None


def _elements_read(task: Task, read: Sequence[TensorType]) -> list[int]:
    """How many elements of each argument are read."""
    counts = [n_elements(each) for each in read]
    if _packet(task) in _LOOK_UPS and len(read) > 1:
        first = counts[0]
        rows = numbers(read[0].shape)[0] if read[0].shape else 1
        n_indices = max(counts[1:])
        by_element = _packet(task) is _aten.gather
        counts[0] = min(first, n_indices if by_element else n_indices * (first // max(rows, 1)))
    return counts


def _n_channels(task: Task, types: Mapping[str, Type | None]) -> int:
    """By the weight's second size; of a transposed convolution's it is the other one."""
    if _packet(task) not in _CONVOLUTIONS:
        return 0
    weight = types[task.args[1 if _packet(task) is _aten.convolution else 2].name]
    return int(_shape(weight)[1])


def _packet(task: Task) -> Any:
    """The operator, whichever overload is called; None if it is none."""
    return getattr(task.target, "overloadpacket", None)


def _tensors(values: Iterable[Type | None]) -> Iterator[TensorType]:
    for value in values:
        if isinstance(value, TensorType):
            yield value
        elif isinstance(value, TupleType):
            yield from _tensors(value.items)
