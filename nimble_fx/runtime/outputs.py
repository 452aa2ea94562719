"""How what a replay has computed becomes the caller's.

A replay overwrites the results of the one before, so they are copied out. Whatever can be known
ahead of the calls is worked out once, from the outputs of the capture: which share memory, which
lie in an input or a parameter, which are no tensors.
"""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nimble_fx.runtime.foreach_copy import GroupedCopy
from nimble_fx.torch_internals.storages import storage_key, with_math_bits


@dataclass(slots=True)
class Call:
    """What an output of a call can be made from.

    Attributes:
        given: the inputs that are new in each call.
        static: the parameters.
        copies: the copies that were made for the call.
    """

    given: Sequence[Any]
    static: Sequence[Tensor]
    copies: list[Tensor]


Make = Callable[[Call], Any]


class Outputs:
    """Hands out the outputs of one capture, call by call.

    What lies in a parameter or an input becomes a view of the caller's. Of each other storage one
    copy is made, and what shared it shares the copy, so that writing to one output is seen in the
    others, and by autograd. It holds on to neither inputs nor parameters.

    Attributes:
        in_place: the positions of outputs that are handed out where they are.
    """

    def __init__(
        self,
        captured: Sequence[Any],
        buffers: Sequence[Any],
        static: Sequence[Tensor],
        in_place: Container[int] = (),
    ) -> None:
        """Works out how each output is made.

        Args:
            captured: the outputs that each replay overwrites.
            buffers: the inputs that each replay reads, in the order of a call's.
            static: the parameters.
            in_place: the positions of outputs that may be handed out where they are.
        """
        self._originals: list[Tensor] = []
        self._buffers = {storage_key(b): k for k, b in enumerate(buffers) if isinstance(b, Tensor)}
        self._static = {storage_key(value): j for j, value in enumerate(static)}
        self._copied = {
            storage_key(value)
            for i, value in enumerate(captured)
            if isinstance(value, Tensor) and i not in in_place
        }
        self._elsewhere = {*self._static, *self._buffers, *self._copied}
        first: dict[int, int] = {}
        distinct = {id(value): value for value in captured}
        self._makers = [self._maker(value, static, first) for value in distinct.values()]
        places = {key: place for place, key in enumerate(distinct)}
        self._places = [places[id(value)] for value in captured]
        self._copy = GroupedCopy(self._originals, range(len(self._originals)))
        self.in_place = {i for i, value in enumerate(captured) if self._is_in_place(value)}
        self._all_whole = list(map(id, captured)) == list(map(id, self._originals))

    def hand_out(self, given: Sequence[Any], static: Sequence[Tensor]) -> list[Any]:
        """The outputs of a call, after its replay."""
        copies = [torch.empty_like(original) for original in self._originals]
        self._copy(copies, self._originals)
        if self._all_whole:
            return copies
        call = Call(given, static, copies)
        made = [make(call) for make in self._makers]
        return [made[place] for place in self._places]

    def _is_in_place(self, value: Any) -> bool:
        """Whether an output is handed out where it is, in memory of the capture."""
        if not isinstance(value, Tensor):
            return False
        return storage_key(value) not in self._elsewhere

    def _maker(self, value: Any, static: Sequence[Tensor], first: dict[int, int]) -> Make:
        """How an output is made; `first` knows the copy of each storage that has one."""
        if not isinstance(value, Tensor):
            return partial(_number, value)
        storage, view = storage_key(value), _View.of(value)
        if storage in self._static:
            j = self._static[storage]
            base = _View.of(static[j])
            relative = replace(view, offset=view.offset - base.offset)
            return partial(_parameter if view == base else _part_of_it, j, relative)
        if storage in self._buffers:
            return partial(_part_of_input, self._buffers[storage], view)
        if self._is_in_place(value):
            return partial(_itself, value)
        if storage in first:
            return partial(_part_of_copy, first[storage], view)
        first[storage] = n = len(self._originals)
        is_whole = _fills_its_storage(value)
        self._originals.append(value if is_whole else _bytes_of(value))
        return partial(_copy if is_whole else _first_of_copy, n, view)


@dataclass(frozen=True, slots=True)
class _View:
    """What a tensor is besides its memory."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    is_conj: bool
    is_neg: bool

    @staticmethod
    def of(value: Tensor) -> "_View":
        shape, stride = tuple(value.shape), value.stride()
        offset = int(value.storage_offset())
        return _View(shape, stride, offset, value.dtype, value.is_conj(), value.is_neg())

    def on(self, base: Tensor, shift: int = 0) -> Tensor:
        """Such a tensor in the memory of `base`, `shift` of its elements further on."""
        same_kind = (base.dtype, base.is_conj(), base.is_neg()) == (self.dtype, False, False)
        if same_kind and not (self.is_conj or self.is_neg):
            return base.as_strided(self.shape, self.stride, shift + self.offset)
        shift = shift * base.itemsize // self.dtype.itemsize
        bare = torch.empty(0, dtype=self.dtype, device=base.device)
        bare.set_(base.untyped_storage(), shift + self.offset, self.shape, self.stride)
        return with_math_bits(bare, self.is_conj, self.is_neg)


def _number(value: object, call: Call) -> object:
    return value


def _parameter(j: int, view: _View, call: Call) -> Tensor:
    return call.static[j]


def _part_of_it(j: int, view: _View, call: Call) -> Tensor:
    base = call.static[j]
    return view.on(base, shift=int(base.storage_offset()))


def _part_of_input(k: int, view: _View, call: Call) -> Tensor:
    base = call.given[k]
    if base.is_conj() or base.is_neg():  # what the program read was a plain copy
        conj, neg = base.is_conj() != view.is_conj, base.is_neg() != view.is_neg
        view = replace(view, is_conj=conj, is_neg=neg)
    return view.on(base, shift=base.storage_offset())


def _itself(value: Tensor, call: Call) -> Tensor:
    return value.detach()


def _copy(n: int, view: _View, call: Call) -> Tensor:
    return call.copies[n]


def _first_of_copy(n: int, view: _View, call: Call) -> Tensor:
    """What lies in the copy of a whole storage; the other outputs in it become views of this."""
    call.copies[n] = view.on(call.copies[n])
    return call.copies[n]


def _part_of_copy(n: int, view: _View, call: Call) -> Tensor:
    return view.on(call.copies[n])


def _fills_its_storage(value: Tensor) -> bool:
    """Whether a tensor is read as it is stored, each byte of its storage once."""
    if value.is_conj() or value.is_neg() or value.storage_offset():
        return False
    is_whole = value.numel() * value.itemsize == value.untyped_storage().nbytes()
    return is_whole and torch.empty_like(value).stride() == value.stride()


def _bytes_of(value: Tensor) -> Tensor:
    """The whole storage of a tensor."""
    return torch.empty(0, dtype=torch.uint8, device=value.device).set_(value.untyped_storage())
