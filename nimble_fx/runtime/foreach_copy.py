"""Copies between two lists of tensors in as few kernels as possible."""

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any

import torch

from nimble_fx.torch_internals.names import foreach_copy


class GroupedCopy:
    """Copies some items of one list to the same positions of another.

    `torch._foreach_copy_` copies tensors of one dtype in one kernel, so they are grouped by dtype.
    The groups are computed once: the dtypes must be the same in every call.
    """

    def __init__(self, examples: Sequence[Any], positions: Iterable[int]) -> None:
        """Groups the positions by dtype.

        Args:
            examples: a list like those that will be copied.
            positions: the indices of the items to copy, which are tensors.
        """
        groups: dict[torch.dtype, list[int]] = {}
        self._singly: list[int] = []
        for position in positions:
            example = examples[position]
            if example.is_conj() or example.is_neg():  # _foreach_copy_ cannot write to these
                self._singly.append(position)
            else:
                groups.setdefault(example.dtype, []).append(position)
        self._groups = [_items_at(group, len(examples)) for group in groups.values()]

    def __call__(self, targets: list[Any], values: list[Any]) -> None:
        """Copies from `values` to `targets` on the current stream."""
        for items in self._groups:
            foreach_copy(items(targets), items(values))
        for position in self._singly:
            targets[position].copy_(values[position])


def _items_at(positions: list[int], n_items: int) -> Callable[[list[Any]], Any]:
    if positions == list(range(n_items)):
        return lambda items: items
    if len(positions) == 1:
        (position,) = positions
        return lambda items: (items[position],)
    return itemgetter(*positions)
