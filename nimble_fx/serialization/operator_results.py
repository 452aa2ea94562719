"""What operators return for arguments of given types; no kernel runs, and no memory is taken.

PyTorch says so itself: an operator called on fake tensors gives fake tensors, of which one lies in
the memory of another as the real ones will.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nimble_fx.ir.task_graph import Arg, ScalarType, TensorType, TupleType, Type
from nimble_fx.torch_internals.names import FakeTensorMode, disable_modes
from nimble_fx.torch_internals.storages import storage_key

Kwargs = Mapping[str, Arg]


@dataclass(frozen=True, slots=True)
class Returned:
    """What a call returns.

    Attributes:
        type: its type, with numbers for sizes.
        owners: for each tensor in it, the position of the tensor that it lies in the memory of, in
            depth-first order: among the arguments' if it is negative, -1 the first, else among
            those returned, of which a new one is its own owner.
    """

    type: Type | None
    owners: tuple[int, ...]


class Results:
    """Calls operators, each once for the same arguments."""

    def __init__(self) -> None:
        self._mode = FakeTensorMode()
        self._known: dict[Any, Returned] = {}

    def of(self, target: Callable[..., Any], args: tuple[Arg, ...], kwargs: Kwargs) -> Returned:
        """What a call returns; a tensor among its arguments is given by its type.

        Raises:
            Exception: whatever the operator has to say of its arguments.
        """
        key = (target, _key(args), _key(tuple(kwargs.items())))
        if key not in self._known:
            with disable_modes(), self._mode:
                self._known[key] = self._called(target, args, kwargs)
        return self._known[key]

    def _called(
        self, target: Callable[..., Any], args: tuple[Arg, ...], kwargs: Kwargs
    ) -> Returned:
        operands: list[Tensor] = []
        positional = [_made(arg, operands) for arg in args]
        by_keyword = {name: _made(arg, operands) for name, arg in kwargs.items()}
        geometries = list(map(_geometry, operands))
        returned = target(*positional, **by_keyword)
        if geometries != list(map(_geometry, operands)):
            raise ValueError("it changes the shape of what it is given, which cannot be followed")
        owners = {storage_key(tensor): -1 - i for i, tensor in reversed(list(enumerate(operands)))}
        lies_in = [owners.setdefault(storage_key(t), i) for i, t in enumerate(_tensors(returned))]
        return Returned(_type_of(returned), tuple(lies_in))


def _key(arg: Arg) -> Any:
    """An argument that can be looked up; 1 is neither True nor 1.0."""
    if type(arg) is tuple:
        return tuple(map(_key, arg))
    if type(arg) is slice:
        return slice, _key((arg.start, arg.stop, arg.step))
    return type(arg), arg


def _made(arg: Arg, operands: list[Tensor]) -> Any:
    """An argument, with tensors for their types; these are added to `operands`."""
    if type(arg) is TensorType:
        shape, stride = (tuple(map(int, sizes)) for sizes in (arg.shape, arg.stride))
        operands.append(torch.empty_strided(shape, stride, dtype=arg.dtype, device=arg.device))
        return operands[-1]
    if type(arg) is tuple:
        return [_made(item, operands) for item in arg]
    return arg


def _geometry(tensor: Tensor) -> tuple[torch.Size, tuple[int, ...], int]:
    return tensor.shape, tensor.stride(), int(tensor.storage_offset())


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _type_of(value: Any) -> Type | None:
    if isinstance(value, Tensor):
        return TensorType(tuple(value.shape), value.stride(), value.dtype, value.device)
    if isinstance(value, (list, tuple)):
        return TupleType(tuple(map(_type_of, value)))
    return None if value is None else ScalarType(str(value))
