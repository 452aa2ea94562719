"""Copies between two lists of tensors in as few kernels as PyTorch can make of it."""

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any

import torch

from nimble_fx.torch_internals.names import foreach_copy


class GroupedCopy:
    """Copies some items of one list to the same places of another.

    `torch._foreach_copy_` copies tensors of one dtype in one kernel, so there is a group for each.
    The groups are found once, for tensors of the same dtypes in every call.
    """

    def __init__(self, examples: Sequence[Any], places: Iterable[int]) -> None:
        """Groups the places.

        Args:
            examples: a list such as those that will be copied.
            places: the indices of the items to copy, which are tensors.
        """
        groups: dict[torch.dtype, list[int]] = {}
        self._singly: list[int] = []
        for place in places:
            example = examples[place]
            if example.is_conj() or example.is_neg():  # together they cannot be written
                self._singly.append(place)
            else:
                groups.setdefault(example.dtype, []).append(place)
        self._groups = [_items_at(group, len(examples)) for group in groups.values()]

    def __call__(self, targets: list[Any], values: list[Any]) -> None:
        """Copies, on the current stream."""
        for items in self._groups:
            foreach_copy(items(targets), items(values))
        for place in self._singly:
            targets[place].copy_(values[place])


def _items_at(places: list[int], n_items: int) -> Callable[[list[Any]], Any]:
    if places == list(range(n_items)):
        return lambda items: items
    if len(places) == 1:
        (place,) = places
        return lambda items: (items[place],)
    return itemgetter(*places)
