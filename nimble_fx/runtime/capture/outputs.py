"""Builds the outputs of a call from the outputs of a captured graph.

A replay overwrites the results of the previous one, so they are copied out. Which outputs alias
each other, an input or a parameter, and which are not tensors, is determined once, at the capture.
"""

from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nimble_fx.runtime.capture.grouped_copies import GroupedClone
from nimble_fx.torch_internals.storages import storage_key
from nimble_fx.torch_internals.tensor_metadata import TensorMetadata


@dataclass(slots=True)
class Call:
    """The tensors that the outputs of a call are built from.

    Attributes:
        inputs: the inputs of the call.
        static: the parameters and buffers.
        copies: copies of the graph's output storages, made for the call.
    """

    inputs: Sequence[Any]
    static: Sequence[Tensor]
    copies: list[Tensor]


Builder = Callable[[Call], Any]


class OutputBuilder:
    """Builds the outputs of each call from those of one captured graph.

    An output in the memory of a parameter or an input becomes a view of the caller's tensor. Each
    other storage is copied once, and outputs that alias it become views of the copy, so that
    writing to one is seen in the others, and by autograd. It keeps neither inputs nor parameters
    alive.

    Attributes:
        in_place: the positions of outputs that alias the graph's memory.
    """

    def __init__(
        self,
        captured: Sequence[Any],
        buffers: Sequence[Any],
        static: Sequence[Tensor],
        in_place: Container[int] = (),
    ) -> None:
        """Determines how each output is built.

        Args:
            captured: the outputs that each replay overwrites.
            buffers: the input buffers that each replay reads, in the order of the inputs.
            static: the parameters and buffers.
            in_place: the positions of outputs that may alias the graph's memory.
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
        copies: dict[int, int] = {}
        distinct = {id(value): value for value in captured}
        tensors = [value for value in distinct.values() if isinstance(value, Tensor)]
        self._n_outputs = Counter(map(storage_key, tensors))
        self._whole = {
            storage_key(value): value for value in reversed(tensors) if self._is_whole_copy(value)
        }
        self._builders = [
            self._builder(value, buffers, static, copies) for value in distinct.values()
        ]
        places = {key: place for place, key in enumerate(distinct)}
        self._places = [places[id(value)] for value in captured]
        self._copies = GroupedClone(self._originals)
        self.in_place = {i for i, value in enumerate(captured) if self._is_in_place(value)}
        self._are_all_whole_copies = list(map(id, captured)) == list(map(id, self._originals))
        self._is_one_whole_copy = self._are_all_whole_copies and len(captured) == 1

    def build(self, inputs: Sequence[Any], static: Sequence[Tensor]) -> list[Any]:
        """Builds the outputs of a call, after its replay."""
        if self._is_one_whole_copy:
            return [self._originals[0].clone()]
        copies = self._copies()
        if self._are_all_whole_copies:
            return copies
        call = Call(inputs, static, copies)
        built = [build(call) for build in self._builders]
        return [built[place] for place in self._places]

    def _is_whole_copy(self, value: Tensor) -> bool:
        """Whether an output is copied, and is all of its storage, so that the others are views.

        If it is a view like the others, it is not what they are views of.
        """
        storage = storage_key(value)
        is_callers = storage in self._static or storage in self._buffers
        is_copied = storage in self._copied and not is_callers
        is_base = self._n_outputs[storage] == 1 or not value._is_view()
        return is_copied and is_base and _fills_its_storage(value)

    def _is_in_place(self, value: Any) -> bool:
        """Whether an output aliases the graph's memory."""
        if not isinstance(value, Tensor):
            return False
        return storage_key(value) not in self._elsewhere

    def _builder(
        self,
        value: Any,
        buffers: Sequence[Any],
        static: Sequence[Tensor],
        copies: dict[int, int],
    ) -> Builder:
        """The function that builds an output.

        Args:
            value: the captured output.
            buffers: the input buffers that each replay reads.
            static: the parameters and buffers.
            copies: the position of the copy of each storage, by its key; adds to it.
        """
        if not isinstance(value, Tensor):
            return partial(_non_tensor, value)
        storage, view = storage_key(value), TensorMetadata.of(value)
        if storage in self._static:
            j = self._static[storage]
            base = TensorMetadata.of(static[j])
            begin = base.offset * base.dtype.itemsize // view.dtype.itemsize
            relative = replace(view, offset=view.offset - begin)
            return partial(_static_input if view == base else _view_of_static, j, relative)
        if storage in self._buffers:
            k = self._buffers[storage]
            is_whole = view == TensorMetadata.of(buffers[k])
            return partial(_input if is_whole else _view_of_input, k, view)
        if self._is_in_place(value):
            return partial(_graph_memory, value)
        if storage not in copies:
            copies[storage] = len(self._originals)
            is_alone = self._n_outputs[storage] == 1
            whole = self._whole.get(storage)
            self._originals.append(_whole_storage(value, is_alone) if whole is None else whole)
        n = copies[storage]
        if value is self._originals[n]:
            return partial(_whole_copy, n, view)
        is_detached = value._base is not self._whole.get(storage, value._base)
        is_detached |= value._base is None and self._n_outputs[storage] > 1
        return partial(_detached_view_of_copy if is_detached else _view_of_copy, n, view)


def _non_tensor(value: object, call: Call) -> object:
    return value


def _static_input(j: int, view: TensorMetadata, call: Call) -> Tensor:
    return call.static[j]


def _view_of_static(j: int, view: TensorMetadata, call: Call) -> Tensor:
    base = call.static[j]
    return _view_on(base, view, shift=int(base.storage_offset()))


def _input(k: int, view: TensorMetadata, call: Call) -> Tensor:
    tensor: Tensor = call.inputs[k]
    return tensor


def _view_of_input(k: int, view: TensorMetadata, call: Call) -> Tensor:
    base = call.inputs[k]
    return _view_on(base, view, shift=base.storage_offset())


def _graph_memory(value: Tensor, call: Call) -> Tensor:
    return value.detach()


def _whole_copy(n: int, view: TensorMetadata, call: Call) -> Tensor:
    return call.copies[n]


def _view_of_copy(n: int, view: TensorMetadata, call: Call) -> Tensor:
    return _view_on(call.copies[n], view)


def _detached_view_of_copy(n: int, view: TensorMetadata, call: Call) -> Tensor:
    """For what the model has detached: autograd would make it require gradients with the copy."""
    return _view_of_copy(n, view, call).detach()


def _view_on(base: Tensor, view: TensorMetadata, shift: int = 0) -> Tensor:
    """A tensor in the storage of `base`, `shift` elements of `base` further on.

    Autograd knows it as a view of `base`, unless types or math bits differ.
    """
    has_bits = base.is_conj() or base.is_neg() or view.is_conj or view.is_neg
    if base.dtype == view.dtype and not has_bits:
        return base.as_strided(view.shape, view.stride, shift + view.offset)
    shift = shift * base.itemsize // view.dtype.itemsize
    return replace(view, offset=shift + view.offset).on(base.untyped_storage())


def _fills_its_storage(value: Tensor) -> bool:
    """Whether a tensor covers each byte of its storage once, without conjugate or negative bit."""
    if value.is_conj() or value.is_neg():
        return False
    is_whole = value.numel() * value.itemsize == value.untyped_storage().nbytes()
    return is_whole and torch.empty_like(value).stride() == value.stride()


def _whole_storage(value: Tensor, is_alone: bool) -> Tensor:
    """The whole storage of a tensor.

    As bytes, of which autograd knows no views, if it is alone there, or their number is odd. Else
    in the tensor's type, so that all outputs there are views of a tensor without gaps: PyTorch
    compiles no write to a view of one with gaps.
    """
    storage = value.untyped_storage()
    has_rest = storage.nbytes() % value.itemsize != 0
    dtype = torch.uint8 if is_alone or has_rest else value.dtype
    return torch.empty(0, dtype=dtype, device=value.device).set_(storage)
