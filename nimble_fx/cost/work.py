"""The operations and bytes of a task, from the shapes of its arguments and results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from operator import attrgetter
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from nimble_fx.errors import UnsupportedError
from nimble_fx.ir.symbolic_sizes import n_elements, nbytes, numbers
from nimble_fx.ir.task_graph import Arg, Ref, Task, ref_names, target_name
from nimble_fx.ir.types import TensorType, TupleType, Type, tensor_types
from nimble_fx.torch_internals.kernels import cudnn, onednn
from nimble_fx.torch_internals.kernels.onednn import LINEAR
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.torch_internals.operators import arguments_by_name, is_factory

_aten = torch.ops.aten
_SAME_FORMULA = {
    _aten._scaled_dot_product_flash_attention_for_cpu: _aten._scaled_dot_product_flash_attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        _aten._scaled_dot_product_flash_attention_backward
    ),
    _aten._addmm_activation: _aten.addmm,
}
"""Operators that PyTorch has no formula for, by equivalents that have one."""

_CONVOLUTIONS = {_aten.convolution, _aten.convolution_backward}
_FUSED_FILTER_POSITION = {**onednn.FILTER_POSITION, **cudnn.FILTER_POSITION}
_FILTER_POSITION = {_aten.convolution.default: 1, **_FUSED_FILTER_POSITION}
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_LOOK_UPS = {
    _aten.embedding, _aten._embedding_bag, _aten._embedding_bag_forward_only, _aten.gather,
    _aten.index, _aten.index_select,
}  # fmt: skip
"""Operators that read a few rows of their first argument."""


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a task, independent of the device.

    Attributes:
        flops: by PyTorch's formulas for matrix products, convolutions and attention; else one for
            each element of the largest value.
        nbytes: bytes read and written: those of each tensor among its arguments and results.
        n_elements: the elements of its largest result.
        dtype: the dtype of its first floating-point result or argument, else float32.
        is_product: whether PyTorch has a formula for its operations.
        is_convolution: whether it is a convolution, for which PyTorch allows TF32.
        n_channels: the input channels of a group, if it is a convolution.
        is_depthwise: whether it is a convolution with a group for each input channel, of several.
        n_conversions: which of its image and its weight have to be converted to channels last, if
            it is a convolution: tensor cores take nothing else.
    """

    flops: float
    nbytes: float
    n_elements: float
    dtype: torch.dtype
    is_product: bool
    is_convolution: bool
    n_channels: int = 0
    n_conversions: int = 0
    is_depthwise: bool = False


def work_of(task: Task, types: Mapping[str, Type | None]) -> Work:
    """The work of a task.

    Args:
        task: a launching task.
        types: the types of all values, by name.

    Raises:
        UnsupportedError: a size is symbolic (see `symbolic_sizes.concrete`), or PyTorch's formula
            rejects the shapes.
    """
    uses = ref_names((task.args[1:], task.kwargs)) if is_factory(task.target) else task.uses
    operands = [each for name in uses for each in tensor_types(types[name])]
    results = list(tensor_types(task.type))
    n_read = _elements_read(task, operands)
    n_written = [n_elements(each) for each in results]
    counts, tensors = [*n_read, *n_written], [*operands, *results]
    product = _product_flops(task, types)
    n_channels, n_groups = _channels(task, types)
    dtypes = floating_types(task, types)
    if product is not None:  # its result, its bias and its scales may be wider than its factors
        dtypes.sort(key=attrgetter("itemsize"))
    return Work(
        flops=max(counts, default=0) if product is None else product,
        nbytes=sum(n * each.dtype.itemsize for n, each in zip(counts, tensors, strict=True)),
        n_elements=max(n_written or counts, default=0),
        dtype=next(iter(dtypes), torch.float32),
        is_product=product is not None,
        is_convolution=_is_convolution(task),
        n_channels=n_channels,
        n_conversions=_n_conversions(task, types),
        is_depthwise=n_channels == 1 and n_groups > 1,
    )


def floating_types(task: Task, types: Mapping[str, Type | None]) -> list[torch.dtype]:
    """The dtypes of a task's floating-point results, then of its floating-point arguments."""
    values = [task.type, *(types[name] for name in task.uses)]
    dtypes = [each.dtype for value in values for each in tensor_types(value)]
    return [dtype for dtype in dtypes if dtype.is_floating_point]


def nbytes_of(task: Task) -> float:
    """The bytes of a task's results.

    Raises:
        UnsupportedError: a size is symbolic.
    """
    return sum(map(nbytes, tensor_types(task.type)))


def _product_flops(task: Task, types: Mapping[str, Type | None]) -> float | None:
    """The operations of a task by PyTorch's formula; None if it has none."""
    if task.target in (LINEAR, _aten.linear.default):
        (*n_rows, n_in), weight = (_shape(types[arg.name]) for arg in task.args[:2])
        return float(flop_registry[_aten.mm]((prod(n_rows), n_in), weight[::-1]))
    if task.target in _FUSED_FILTER_POSITION:
        x, weight = task.args[0], task.args[_FUSED_FILTER_POSITION[task.target]]
        same = (x, weight, None, (), (), (), False)
        task = task.updated(target=_aten.convolution.default, args=same)
    packet = _packet(task)
    formula = flop_registry.get(_SAME_FORMULA.get(packet, packet))
    if formula is None:
        return None

    def shaped(arg: Arg) -> Any:
        if isinstance(arg, Ref):
            return _shape(types[arg.name])
        return [shaped(each) for each in arg] if isinstance(arg, (list, tuple)) else arg

    kwargs = {name: shaped(arg) for name, arg in task.kwargs}
    # not the type of the result, which `bmm.dtype` takes where formulas take a shape
    args = [shaped(arg) for arg in task.args if not isinstance(arg, torch.dtype)]
    result = _shape(task.type)
    try:
        return float(formula(*args, out_val=result, **kwargs))
    except Exception as error:  # formulas assert their conditions on shapes
        message = f"PyTorch's formula for {target_name(task.target)} fails: {error!r}"
        raise UnsupportedError(message, task.name, task.source) from error


def _shape(value: Type | None) -> Any:
    if isinstance(value, TensorType):
        return numbers(value.shape)
    if isinstance(value, TupleType):
        return [_shape(item) for item in value.items]
    return None


def _elements_read(task: Task, read: Sequence[TensorType]) -> list[int]:
    """The number of elements that are read from each argument."""
    counts = [n_elements(each) for each in read]
    if _packet(task) in _LOOK_UPS and len(read) > 1:
        first = counts[0]
        rows = numbers(read[0].shape)[0] if read[0].shape else 1
        n_indices = max(counts[1:])
        by_element = _packet(task) is _aten.gather
        counts[0] = min(first, n_indices if by_element else n_indices * (first // max(rows, 1)))
    return counts


def _channels(task: Task, types: Mapping[str, Type | None]) -> tuple[int, int]:
    """The input channels of a convolution's group, and its groups; 0 for other operators."""
    if not _is_convolution(task):
        return 0, 0
    named = arguments_by_name(cast(OpOverload, task.target), task.args, dict(task.kwargs))
    n_groups, sizes = named["groups"], _shape(types[_filter(task).name])
    return int(sizes[0] // n_groups if named.get("transposed") else sizes[1]), n_groups


def _n_conversions(task: Task, types: Mapping[str, Type | None]) -> int:
    """How many operands of a convolution are copied into channels last, for tensor cores.

    PyTorch takes that format where one of the two clearly has it, and copies the other
    (`cudnn_conv_suggest_memory_format`); where none has, cuDNN copies both.
    """
    if not _is_convolution(task):
        return 0
    operands = [_like(types[arg.name]) for arg in (task.args[0], _filter(task))]
    last = [_may_be_channels_last(each) for each in operands]
    clearly = any(x and not each.is_contiguous() for x, each in zip(last, operands, strict=True))
    return last.count(False) if clearly else len(last)


def _filter(task: Task) -> Arg:
    """The weight among a convolution's arguments."""
    return task.args[_FILTER_POSITION.get(task.target, 2)]


def _like(value: Any) -> Tensor:
    """A tensor without memory of this shape and these strides."""
    return torch.empty_strided(numbers(value.shape), numbers(value.stride), device="meta")


def _may_be_channels_last(image: Tensor) -> bool:
    """Whether an image is in the channels-last format, be it also in the default format."""
    memory_format = _CHANNELS_LAST.get(image.dim())
    return memory_format is not None and image.is_contiguous(memory_format=memory_format)


def _is_convolution(task: Task) -> bool:
    return _packet(task) in _CONVOLUTIONS or task.target in _FUSED_FILTER_POSITION


def _packet(task: Task) -> Any:
    """The operator without its overload; None for other functions."""
    return getattr(task.target, "overloadpacket", None)
