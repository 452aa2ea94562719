"""The arguments of a call as a flat list, if they have the structure of an earlier call's."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

CONSTANTS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
"""The types of arguments that are part of a compiled program by their value."""


class CallArguments:
    """Reads the tensors of a call whose other arguments must be as in the call that was compiled.

    Attributes:
        names: of the tensors, such as "args[0]" or "kwargs['x'][1]".
    """

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Takes a call as the example for others."""
        self._keywords = tuple(kwargs)
        leaves, self._structure = _flat([*args, *kwargs.values()])
        self._is_flat = len(leaves) == len(args) + len(kwargs)
        self._n_positional, self._n_leaves = len(args), len(leaves)
        paths: list[str] = []
        for i, value in enumerate(args):
            _add_paths(f"args[{i}]", value, paths)
        for key, value in kwargs.items():
            _add_paths(f"kwargs[{key!r}]", value, paths)
        self._paths = paths
        self._tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self._others = [(i, v) for i, v in enumerate(leaves) if not isinstance(v, Tensor)]
        self.names = [paths[i] for i in self._tensors]

    def why_not_checked(self) -> str | None:
        """Why other arguments could go unnoticed; None if they are noticed."""
        for i, value in self._others:
            if type(value) not in CONSTANTS:
                return f"{self._paths[i]} is of type {type(value).__name__}"
        return None

    def tensors(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any] | None:
        """The values in the places of the tensors; None if anything else differs."""
        if len(args) != self._n_positional or len(kwargs) != len(self._keywords):
            return None
        leaves = list(args)
        if kwargs:
            try:
                leaves += [kwargs[key] for key in self._keywords]
            except KeyError:
                return None
        if not self._is_flat:
            leaves, structure = _flat(leaves)
            if structure != self._structure:
                return None
        if not self._others:
            return leaves
        if not all(_is_same(leaves[i], value) for i, value in self._others):
            return None
        return [leaves[i] for i in self._tensors]

    def difference(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """In what a call differs besides its tensors, as a sentence; None if it does not."""
        if len(args) != self._n_positional or set(kwargs) != set(self._keywords):
            return (
                f"it was compiled for {self._n_positional} positional arguments and the keywords "
                f"{list(self._keywords)}, and was called with {len(args)} and {list(kwargs)}"
            )
        leaves, structure = _flat([*args, *[kwargs[key] for key in self._keywords]])
        if structure != self._structure:
            return "the lists, tuples and dicts in its arguments have another structure"
        for i, value in self._others:
            if not _is_same(leaves[i], value):
                return f"{self._paths[i]} is {leaves[i]!r:.99}, and was {value!r:.99}"
        return None


def _flat(values: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The leaves of nested lists, tuples and dicts, and a list that says how they are nested."""
    leaves: list[Any] = []
    structure: list[Any] = []
    for value in values:
        _add_flat(value, leaves, structure)
    return leaves, structure


def _add_flat(value: Any, leaves: list[Any], structure: list[Any]) -> None:
    kind = type(value)
    if kind is list or kind is tuple:
        structure.append((kind, len(value)))
        items = value
    elif kind is dict:
        structure.append((kind, tuple(value)))
        items = value.values()
    else:
        structure.append(None)
        leaves.append(value)
        return
    for item in items:
        _add_flat(item, leaves, structure)


def _add_paths(path: str, value: Any, paths: list[str]) -> None:
    if type(value) in (list, tuple):
        for i, item in enumerate(value):
            _add_paths(f"{path}[{i}]", item, paths)
    elif type(value) is dict:
        for key, item in value.items():
            _add_paths(f"{path}[{key!r}]", item, paths)
    else:
        paths.append(path)


def _is_same(value: Any, expected: Any) -> bool:
    """Whether two constants are equal; the zeros of both signs differ, and NaN is equal to NaN."""
    if type(value) is not type(expected):
        return False
    if isinstance(value, float):
        return repr(value) == repr(expected)
    return bool(value == expected)
