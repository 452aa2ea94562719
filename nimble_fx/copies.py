"""Copies between two lists of tensors in as few kernels as PyTorch can make of it."""

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor


class GroupedCopy:
    """Copies some items of one list to the same places of another.

    `torch._foreach_copy_` copies tensors of one dtype in one kernel, so there is a group for each.
    The groups are found once, for tensors of the same dtypes in every call.
    """

    def __init__(self, examples: Sequence[Tensor], places: Sequence[int]) -> None:
        """Groups the places.

        Args:
            examples: tensors of the dtypes that will be copied, one for each place.
            places: their indices in the lists that will be copied.
        """
        groups: dict[torch.dtype, list[int]] = {}
        for place, example in zip(places, examples, strict=True):
            groups.setdefault(example.dtype, []).append(place)
        self._groups = [_items_at(group) for group in groups.values()]

    def __call__(self, targets: Sequence[Any], values: Sequence[Any]) -> None:
        """Copies, on the current stream."""
        for items in self._groups:
            torch._foreach_copy_(items(targets), items(values))


def _items_at(places: list[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    if len(places) == 1:
        (place,) = places
        return lambda items: (items[place],)
    return itemgetter(*places)
