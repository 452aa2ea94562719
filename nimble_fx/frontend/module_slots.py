"""Where a module keeps its parameters and buffers, to fetch those that are there now."""

from collections.abc import Iterator, Mapping, Sequence
from operator import getitem, is_
from typing import Any

from torch import Tensor, nn

Slot = tuple[Mapping[str, Any], str]
"""A table of a module, and a name in it."""


class ModuleSlots:
    """Fetches some of a model's parameters and buffers, which may have been replaced.

    Cost of a call: a lookup for each of them and for each module on the way.
    """

    def __init__(self, parents: Sequence[Slot], modules: Sequence[Any], slots: Sequence[Slot]):
        """See `slots_of`.

        Args:
            parents: where the modules are that hold them, directly or not.
            modules: these modules.
            slots: where the tensors are.
        """
        self._parents, self._in_parents = [t for t, _ in parents], [name for _, name in parents]
        self._modules = modules
        self._tables, self._names = [t for t, _ in slots], [name for _, name in slots]

    @property
    def are_same_modules(self) -> bool:
        """Whether no module on the way was replaced."""
        return all(map(is_, map(getitem, self._parents, self._in_parents), self._modules))

    def tensors(self) -> list[Any]:
        """What is in the slots now."""
        return list(map(getitem, self._tables, self._names))


def slots_of(model: nn.Module, tensors: Sequence[Tensor]) -> ModuleSlots | None:
    """The slots of parameters and buffers; None if one of them is in none, or in several.

    In which of several a model looks for a tensor is not known here.
    """
    wanted = {id(tensor) for tensor in tensors}
    found: dict[int, list[tuple[str, Slot]]] = {key: [] for key in wanted}
    for path, slot, value in _all_slots(model):
        if id(value) in wanted:
            found[id(value)].append((path, slot))
    if any(len(places) != 1 for places in found.values()):
        return None
    places = [found[id(tensor)][0] for tensor in tensors]
    steps = {}
    for path in dict.fromkeys(path for path, _ in places):
        steps.update(_steps(model, path))
    parents = [parent for parent, _ in steps.values()]
    return ModuleSlots(parents, [child for _, child in steps.values()], [s for _, s in places])


def _all_slots(model: nn.Module) -> Iterator[tuple[str, Slot, Any]]:
    """Each slot of a model, with the path of its module and what is in it."""
    for path, module in model.named_modules(remove_duplicate=False):
        for table in (vars(module)["_parameters"], vars(module)["_buffers"]):
            for name, value in table.items():
                yield path, (table, name), value


def _steps(model: nn.Module, path: str) -> dict[str, tuple[Slot, nn.Module]]:
    """Where each module on a path is, and the module, by its own path."""
    steps, module, parts = dict[str, tuple[Slot, nn.Module]](), model, path.split(".")
    for i, name in enumerate(parts if path else []):
        table = vars(module)["_modules"]
        module = table[name]
        steps[".".join(parts[: i + 1])] = (table, name), module
    return steps
