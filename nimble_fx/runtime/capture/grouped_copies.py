"""Copies of lists of tensors of any dtypes in as few kernels as possible."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from nimble_fx.runtime.items_at import items_at
from nimble_fx.torch_internals.foreach import clone_each, foreach_clone, foreach_copy, takes_dtype

Copy = Callable[[Sequence[Any], Sequence[Any]], None]
"""A function that copies items of its second argument to the same positions of its first."""


def grouped_copy(examples: Sequence[Any], positions: Iterable[int]) -> Copy:
    """A function that copies some items of one list to the same positions of another.

    `torch._foreach_copy_` copies tensors of one dtype in one kernel, so they are grouped by dtype;
    those of dtypes that it does not take are copied one by one.
    The groups are computed once: the dtypes must be the same in every call. All copies are made on
    the current stream.

    Args:
        examples: a list like those that will be copied.
        positions: the indices of the items to copy, which are tensors.
    """
    by_kind = defaultdict[object, list[int]](list)
    for position in positions:
        example = examples[position]
        has_bits = example.is_conj() or example.is_neg()  # _foreach_copy_ cannot write to these
        alone = has_bits or not takes_dtype(example.dtype)
        by_kind[position if alone else example.dtype].append(position)
    singly = [group[0] for group in by_kind.values() if len(group) == 1]
    groups = [items_at(group) for group in by_kind.values() if len(group) > 1]
    return _copy_one(*singly) if len(singly) == 1 and not groups else _copy_all(singly, groups)


def _copy_one(position: int) -> Copy:
    def copy(targets: Sequence[Any], values: Sequence[Any]) -> None:
        targets[position].copy_(values[position])

    return copy


def _copy_all(
    singly: Sequence[int], groups: Sequence[Callable[[Sequence[Any]], Sequence[Any]]]
) -> Copy:
    def copy(targets: Sequence[Any], values: Sequence[Any]) -> None:
        for items in groups:
            foreach_copy(items(targets), items(values))
        for position in singly:
            targets[position].copy_(values[position])

    return copy


class GroupedClone:
    """Clones a list of tensors, which may have new values in each call."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        """Groups the tensors by dtype."""
        by_dtype = defaultdict[torch.dtype, list[int]](list)
        for position, tensor in enumerate(tensors):
            by_dtype[tensor.dtype].append(position)
        self._groups: list[Callable[[], Sequence[Tensor]]] = []
        for dtype, group in by_dtype.items():
            clone = foreach_clone if takes_dtype(dtype) else clone_each
            self._groups.append(partial(clone, [tensors[k] for k in group]))
        cloned = list(chain(*by_dtype.values()))
        self._in_order = items_at(sorted(range(len(cloned)), key=cloned.__getitem__))

    def __call__(self) -> list[Tensor]:
        """The clones, in the order of the tensors."""
        clones = list(chain.from_iterable(clone() for clone in self._groups))
        return clones if len(self._groups) < 2 else list(self._in_order(clones))
