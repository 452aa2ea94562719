"""Copies of lists of tensors of any dtypes in as few kernels as possible."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from nimble_fx.runtime.items_at import items_at
from nimble_fx.torch_internals.foreach import foreach_clone, foreach_copy


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
        groups: dict[object, list[int]] = {}
        for position in positions:
            example = examples[position]
            alone = example.is_conj() or example.is_neg()  # _foreach_copy_ cannot write to these
            groups.setdefault(position if alone else example.dtype, []).append(position)
        self._singly = [group[0] for group in groups.values() if len(group) == 1]
        self._groups = [items_at(group) for group in groups.values() if len(group) > 1]

    def __call__(self, targets: Sequence[Any], values: Sequence[Any]) -> None:
        """Copies from `values` to `targets` on the current stream."""
        for items in self._groups:
            foreach_copy(items(targets), items(values))
        for position in self._singly:
            targets[position].copy_(values[position])


class GroupedClone:
    """Clones a list of tensors, which may have new values in each call."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        """Groups the tensors by dtype."""
        by_dtype = defaultdict[torch.dtype, list[int]](list)
        for position, tensor in enumerate(tensors):
            by_dtype[tensor.dtype].append(position)
        self._groups = [[tensors[k] for k in group] for group in by_dtype.values()]
        cloned = list(chain(*by_dtype.values()))
        self._in_order = items_at(sorted(range(len(cloned)), key=cloned.__getitem__))

    def __call__(self) -> list[Tensor]:
        """The clones, in the order of the tensors."""
        clones = list(chain.from_iterable(map(foreach_clone, self._groups)))
        return clones if len(self._groups) < 2 else list(self._in_order(clones))
