"""How what a replay has computed becomes the caller's to keep.

A replay overwrites the results of the one before, so they are copied out. Whatever can be known
ahead of the calls is worked out once, from the outputs of the capture: which share memory, which
lie in an input or a parameter, which are no tensors.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from nimble_fx.copies import GroupedCopy

Make = Callable[[Sequence[Any], list[Tensor]], Any]
"""Makes an output of a call from what the call was given and the copies that were made for it."""


class Outputs:
    """Hands out the outputs of one capture, call by call.

    Parameters and their views are handed out as they are; views of inputs become views of the
    caller's. Of each other storage one copy is made, and what shared it shares the copy, so that
    writing to one output is seen in the others, and by autograd.
    """

    def __init__(
        self,
        captured: Sequence[Any],
        buffers: Sequence[Any],
        static: Sequence[Tensor],
        copied: bool,
    ) -> None:
        """Works out how each output is made.

        Args:
            captured: the outputs that each replay overwrites.
            buffers: the inputs that each replay reads, in the order of a call's.
            static: the parameters.
            copied: whether to copy; if not, callers get the memory that the next replay overwrites.
        """
        self._originals: list[Tensor] = []
        self._inputs = {_storage(b): k for k, b in enumerate(buffers) if isinstance(b, Tensor)}
        self._parameters = {_storage(value) for value in static}
        self._copied = copied
        first: dict[int, int] = {}
        distinct = {id(value): value for value in captured}
        self._makers = [self._maker(value, first) for value in distinct.values()]
        places = {key: place for place, key in enumerate(distinct)}
        self._places = [places[id(value)] for value in captured]
        self._copy = GroupedCopy(self._originals, range(len(self._originals)))
        self._all_whole = all(a is b for a, b in zip_longest(captured, self._originals))

    def hand_out(self, given: Sequence[Any]) -> list[Any]:
        """The outputs of a call, after its replay."""
        copies = [torch.empty_like(original) for original in self._originals]
        self._copy(copies, self._originals)
        if self._all_whole:
            return copies
        made = [make(given, copies) for make in self._makers]
        return [made[place] for place in self._places]

    def _maker(self, value: Any, first: dict[int, int]) -> Make:
        """How an output is made; `first` knows the copy of each storage that has one."""
        if not isinstance(value, Tensor) or _storage(value) in self._parameters:
            return lambda given, copies: value
        storage = _storage(value)
        if storage in self._inputs:
            return partial(_view_of_input, self._inputs[storage], value)
        if not self._copied:
            return lambda given, copies: value.detach()
        if storage in first:
            return partial(_view_of_copy, first[storage], value)
        first[storage] = n = len(self._originals)
        is_whole = _fills_its_storage(value)
        self._originals.append(value if is_whole else _bytes_of(value))
        return partial(_copy if is_whole else _part_of_copy, n, value)


def _copy(n: int, value: Tensor, given: Sequence[Any], copies: list[Tensor]) -> Tensor:
    return copies[n]


def _part_of_copy(n: int, value: Tensor, given: Sequence[Any], copies: list[Tensor]) -> Tensor:
    """A tensor of `value`'s geometry in the copy of the whole storage; views are taken of it."""
    storage = copies[n].untyped_storage()
    bare = _bare(value).set_(storage, value.storage_offset(), value.shape, value.stride())
    copies[n] = _read_as(value, bare)
    return copies[n]


def _view_of_copy(n: int, value: Tensor, given: Sequence[Any], copies: list[Tensor]) -> Tensor:
    return _view(copies[n], value)


def _view_of_input(k: int, value: Tensor, given: Sequence[Any], copies: list[Tensor]) -> Tensor:
    base = given[k]
    return _view(base, value, shift=base.storage_offset())


def _view(base: Tensor, value: Tensor, shift: int = 0) -> Tensor:
    """The view of `base` that has `value`'s geometry, `shift` elements further on."""
    same_kind = (base.dtype, base.is_conj(), base.is_neg()) == (value.dtype, False, False)
    if same_kind and not (value.is_conj() or value.is_neg()):
        return base.as_strided(value.shape, value.stride(), shift + value.storage_offset())
    shift = shift * base.itemsize // value.itemsize
    whole = _bare(value).set_(base.untyped_storage())
    bare = whole.as_strided(value.shape, value.stride(), shift + value.storage_offset())
    return _read_as(value, bare)


def _storage(tensor: Tensor) -> int:
    """What tells storages apart; not the address, which all empty ones share."""
    key: int = tensor.untyped_storage()._cdata
    return key


def _fills_its_storage(value: Tensor) -> bool:
    """Whether a tensor is read as it is stored, each byte of its storage once."""
    if value.is_conj() or value.is_neg() or value.storage_offset():
        return False
    is_whole = value.numel() * value.itemsize == value.untyped_storage().nbytes()
    return is_whole and torch.empty_like(value).stride() == value.stride()


def _bytes_of(value: Tensor) -> Tensor:
    """The whole storage of a tensor."""
    return torch.empty(0, dtype=torch.uint8, device=value.device).set_(value.untyped_storage())


def _bare(value: Tensor) -> Tensor:
    """An empty tensor of the same type, which is read as it is stored."""
    return torch.empty(0, dtype=value.dtype, device=value.device)


def _read_as(value: Tensor, bare: Tensor) -> Tensor:
    """`bare`, read with the signs and conjugates that reading `value` adds to what is stored."""
    bare = torch._neg_view(bare) if value.is_neg() else bare
    return torch._conj(bare) if value.is_conj() else bare
