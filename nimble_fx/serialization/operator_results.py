"""The types and aliases of operators' results, from calls on fake tensors.

No kernel runs and no memory is allocated. Fake tensors alias each other as the real ones will.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nimble_fx.ir.task_graph import Arg
from nimble_fx.ir.types import ScalarType, TensorType, TupleType, Type
from nimble_fx.torch_internals.fake_tensors import unlogged_errors
from nimble_fx.torch_internals.leaves import tensors_in
from nimble_fx.torch_internals.names import FakeTensorMode, disable_modes
from nimble_fx.torch_internals.normalizations import (
    has_single_statistics,
    with_single_statistics,
)
from nimble_fx.torch_internals.storages import storage_key, with_math_bits

Kwargs = Mapping[str, Arg]


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of a call.

    Attributes:
        type: its type, with numbers for sizes.
        owners: for each tensor in it, in depth-first order, the position of the tensor that it
            aliases: negative among the arguments' tensors (-1 is the first), else among the
            results' tensors, where a new one is its own owner.
    """

    type: Type | None
    owners: tuple[int, ...]


class OperatorResults:
    """Calls operators on fake tensors, each once for the same arguments."""

    def __init__(self) -> None:
        self._mode = FakeTensorMode()
        self._known: dict[Any, CallResult] = {}

    def of(self, target: Callable[..., Any], args: tuple[Arg, ...], kwargs: Kwargs) -> CallResult:
        """The result of a call; tensors among its arguments are represented by their types.

        Raises:
            Exception: any error of the operator about its arguments.
        """
        key = (target, _key(args), _key(tuple(kwargs.items())))
        if key not in self._known:
            with disable_modes(), self._mode, unlogged_errors():
                self._known[key] = self._called(target, args, kwargs)
        return self._known[key]

    def _called(
        self, target: Callable[..., Any], args: tuple[Arg, ...], kwargs: Kwargs
    ) -> CallResult:
        operands: list[Tensor] = []
        positional = [_with_fakes(arg, operands) for arg in args]
        by_keyword = {name: _with_fakes(arg, operands) for name, arg in kwargs.items()}
        before = list(map(_shape_and_stride, operands))
        returned = target(*positional, **by_keyword)
        if has_single_statistics(target, operands):
            returned = with_single_statistics(returned)
        if before != list(map(_shape_and_stride, operands)):
            raise ValueError(
                "it changes the shape or strides of an argument, which is not supported"
            )
        owners = {storage_key(tensor): -1 - i for i, tensor in reversed(list(enumerate(operands)))}
        aliases = [owners.setdefault(storage_key(t), i) for i, t in enumerate(tensors_in(returned))]
        return CallResult(_type_of(returned), tuple(aliases))


def _key(arg: Arg) -> Any:
    """A hashable key of an argument, which tells 1 from True and 1.0, and of which NaN is one."""
    if type(arg) is tuple:
        return tuple(map(_key, arg))
    if type(arg) is slice:
        return slice, _key((arg.start, arg.stop, arg.step))
    return type(arg), arg if arg == arg else repr(arg)


def _with_fakes(arg: Arg, operands: list[Tensor]) -> Any:
    """An argument with fake tensors in place of types; these are appended to `operands`."""
    if type(arg) is TensorType:
        shape, stride = (tuple(map(int, sizes)) for sizes in (arg.shape, arg.stride))
        bare = torch.empty_strided(shape, stride, dtype=arg.dtype, device=arg.device)
        operands.append(with_math_bits(bare, arg.is_conj, arg.is_neg))
        return operands[-1]
    if type(arg) is tuple:
        return [_with_fakes(item, operands) for item in arg]
    return arg


def _shape_and_stride(tensor: Tensor) -> tuple[torch.Size, tuple[int, ...]]:
    return tensor.shape, tensor.stride()


def _type_of(value: Any) -> Type | None:
    if isinstance(value, Tensor):
        bits = value.is_conj(), value.is_neg()
        return TensorType(tuple(value.shape), value.stride(), value.dtype, value.device, *bits)
    if isinstance(value, (list, tuple)):
        return TupleType(tuple(map(_type_of, value)))
    return None if value is None else ScalarType(str(value))
